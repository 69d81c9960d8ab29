"""Replay of runs whose messages a codec has compressed: the equations of a scheme with the transcription of a codec."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np

from ..errors import UserError
from ..spec import parse
from .recorded import Centers, Hyperparameters, RecordedRun, Transcription
from .reference.codecs import CODECS, bf16
from .reference.codecs import Run as CodecRun
from .reference.sending import Codec, compressing, pushed, whole

# Workers use a reply only as the point of the next gradient, and send only that gradient, which a codec may round, like
# the reply. Rules of other messages have an argument `send`.
PUSH_GRADIENTS = (
    *("async_sgd", "dc_asgd", "ringmaster", "delay_adaptive", "rescaled_asgd", "ringleader", "malenia", "softsync"),
    *("k_batch_async", "k_batch_sync", "hierarchical", "ssp", "sync_sgd", "k_sync", "k_async", "trimmed_mean"),
    *("krum", "centered_clipping", "rfa", "ringmaster_lmo"),
    "demo",
)


def compressed(name: str, equations: Transcription, codec: str) -> Transcription:
    """Return the transcription of the algorithm `name` with messages that a codec has compressed.

    Args:
        name: the algorithm.
        equations: its transcription.
        codec: the codec of the run, `NAME:key=value[,...]`.

    Raises:
        UserError: the codec is unknown, or the equations have none for their messages.
    """
    if codec == equations.codec:
        return equations
    kind, options = _parsed(codec)
    if name not in PUSH_GRADIENTS and not equations.sends:
        raise UserError(f"the equations of {name} have no codec: replay a run without. Received: codec={codec}")
    memory = options.get("memory", signature(CODECS[kind]).parameters["memory"].default) == "yes"
    reply = bf16 if kind == "bf16" else whole

    def execute(run: RecordedRun, hyperparameters: Hyperparameters) -> Centers:
        if run.joins.any() or run.earlier_step_targets:
            raise UserError(f"a worker of {name} was started again, and its codec began anew: replay a run without")
        if run.result["recovery"]["evicted"]:
            raise UserError(f"{name} continued without a worker, and its codec began anew: replay a run without losses")
        send = compressing(compressor(run, codec), run.workers, memory)
        sending = {"send": send} if equations.sends else {"gradient": pushed(run.gradient, send, reply)}
        return equations.execute(replace(run, **sending), hyperparameters)

    return replace(equations, execute=execute, codec=codec)


def compressor(run: RecordedRun, codec: str, **changed: Any) -> Codec:
    """Return what a codec makes of the message of worker k in round t of a run, as a function of (u, k, t)."""
    kind, options = _parsed(codec)
    sizes = [len(part) for part in np.array_split(run.start, 1 if run.servers_apart else run.ps or 1)]
    of_run = CodecRun(sizes, run.shapes, lambda k, t: _random(run.seed, len(run.start), k, t))
    return CODECS[kind](**options | changed)(of_run)


def _parsed(codec: str) -> tuple[str, dict[str, Any]]:
    try:
        return parse("codec", codec, CODECS)
    except UserError as error:
        raise UserError(f"{error}. For a codec of your own, import its file: --import FILE replay RUN") from None


def _random(seed: int, size: int, k: int, t: int) -> np.ndarray:
    """Return the random numbers of the message of worker k in its round t."""
    from ..contract.seeded import OF_CODEC, uniform_numbers  # not at the top: few codecs are random

    return uniform_numbers(seed, size, OF_CODEC, k, t)
