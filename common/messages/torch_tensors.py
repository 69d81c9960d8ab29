"""Tensors of PyTorch as NumPy arrays and back. It is not imported here: a caller with a tensor has imported it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

NATIVE = ("cpu", "torch.float32")  # tensors that NumPy reads where they are


def _is_a(value: Any, module: str, name: str) -> bool:
    return any((base.__module__, base.__name__) == (module, name) for base in type(value).__mro__)


def is_torch(value: Any) -> bool:
    """Return True for a tensor or parameter of PyTorch."""
    return _is_a(value, "torch", "Tensor")


def is_module(value: Any) -> bool:
    """Return True for a `torch.nn.Module`."""
    return _is_a(value, "torch.nn.modules.module", "Module")


def place(tensor: Any) -> tuple[str, str]:
    """Return device and type of a tensor, in PyTorch's words."""
    return str(tensor.device), str(tensor.dtype)


def on_host(tensor: Any) -> np.ndarray:
    """Return the values of a tensor as an array, which shares its memory where both can; NumPy has no bfloat16."""
    tensor = tensor.detach().to_dense().cpu()
    return (tensor.float() if place(tensor)[1] == "torch.bfloat16" else tensor).numpy()


def as_tensor(array: Any, device: Any, dtype: Any) -> Any:
    """Return a new tensor with the values of an array, on that device and in that type."""
    return sys.modules["torch"].from_numpy(np.array(array, np.float32)).to(device, dtype)


def write(tensor: Any, values: np.ndarray) -> None:
    """Write values into a tensor in place; `backward` through an older value then is an error of PyTorch."""
    writable = np.require(values, requirements="W")  # or PyTorch warns
    tensor.detach().copy_(sys.modules["torch"].from_numpy(writable).reshape(tensor.shape))


def seed_torch(seed: int) -> None:
    """Seed PyTorch's generators, if a program has imported it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
