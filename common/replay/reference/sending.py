"""What arrives of the messages of workers, which a codec may compress, with or without error feedback."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .gradients import Gradient

Rounding = Callable[[np.ndarray], np.ndarray]
Codec = Callable[[np.ndarray, int, int], np.ndarray]  # of a message [P], the index of its worker, and its round
Send = Callable[[np.ndarray, int], np.ndarray]  # of the next message [P] of a worker, and the index of the worker


def as_it_is(message: np.ndarray, k: int) -> np.ndarray:
    """Return the message of worker k, of which all arrives."""
    return message


def whole(vector: np.ndarray) -> np.ndarray:
    """Return the vector without rounding."""
    return vector


def compressing(codec: Codec, workers: int, memory: bool = True) -> Send:
    """Return what arrives of a message u of worker k: q = C(u + e_k);  e_k ← u + e_k − q, 0 where it is not finite.

    Without memory e_k is 0. The function keeps e_k, and counts the messages of each worker, so it serves one run only.
    """
    kept: list[np.ndarray | float] = [0.0] * workers
    sent = [0] * workers

    def send(message: np.ndarray, k: int) -> np.ndarray:
        wanted = message + kept[k]
        arrives = codec(wanted, k, sent[k])
        sent[k] += 1
        if memory:
            kept[k] = np.where(np.isfinite(wanted - arrives), wanted - arrives, 0)
        return arrives

    return send


def pushed(gradient: Gradient, send: Send, reply: Rounding) -> Gradient:
    """Return what arrives of the gradients that workers push, at points that are rounded replies.

    send(g_k(reply(x)), k), or g_k(x) at the first time.
    """
    return lambda x, k, t: send(gradient(reply(x) if t else x, k, t), k)
