"""The settings of Keras and TensorFlow that a program has made, and which of them concern its runs.

A task is a process of its own: what a program sets, or its `keras.json`, reaches the task only if it is sent. Each
function that sets something is in one of three tables:

    TRAVEL          settings that each task of a run gets; tasks on several machines compare those that change results
    REFUSED         settings with which no run does what its program asks for: an error before the start
    WITHOUT_EFFECT  settings that change no result of a run, by the reason

Models of the catalogue have the settings of `STANDARD`, whatever the program has set.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .errors import UserError
from .lazy import keras, keras_file, tf


def resolved(name: str) -> Any:
    """Return an object of Keras or TensorFlow by its full name, as in `tf.config.run_functions_eagerly`."""
    return pkgutil.resolve_name(name.replace("tf.", "tensorflow.", 1) if name.startswith("tf.") else name)


@dataclass(frozen=True)
class Setting:
    """A setting that travels to the tasks.

    Attributes:
        standard: its value for models of the catalogue: the default of Keras or TensorFlow.
        read: the function that returns its value, or its name.
        write: name of the function that sets it.
        off: name of the function that turns it off, "" if none does, where `write` turns it on; None if `write` takes
            the value.
        argument: returns the argument of that function for a value.
        compared: True if it may change a result.
    """

    standard: Any
    read: str | Callable[[], Any]
    write: str
    off: str | None = None
    argument: Callable[[Any], Any] = lambda value: value
    compared: bool = True

    def value(self) -> Any:
        """Return its value in this process, as JSON has it."""
        return self.read() if callable(self.read) else resolved(self.read)()

    def set(self, value: Any) -> None:
        """Set it in this process."""
        if self.off is None:
            resolved(self.write)(self.argument(value))
        elif name := self.write if value else self.off:
            resolved(name)()


def _policy() -> Any:
    """Return the name of the dtype policy, or the configuration of one that has none."""
    policy = keras.config.dtype_policy()
    return policy.name if type(policy) is keras.DTypePolicy else keras.dtype_policies.serialize(policy)


def is_deterministic() -> bool:
    """Return True if TensorFlow refuses operations that are not deterministic in this process."""
    return resolved("tensorflow.python.framework.config.is_op_determinism_enabled")()


TRAVEL: Mapping[str, Setting] = {
    "floatx": Setting("float32", "keras.config.floatx", "keras.config.set_floatx"),
    "epsilon": Setting(1e-7, "keras.config.epsilon", "keras.config.set_epsilon"),
    "image_data_format": Setting(
        "channels_last", "keras.config.image_data_format", "keras.config.set_image_data_format"
    ),
    "dtype_policy": Setting(
        "float32", _policy, "keras.config.set_dtype_policy", argument=lambda value: keras.dtype_policies.get(value)
    ),
    "max_steps_per_epoch": Setting(None, "keras.config.max_steps_per_epoch", "keras.config.set_max_steps_per_epoch"),
    "flash_attention": Setting(
        True,  # where the device has it
        lambda: keras.config.is_flash_attention_enabled() is not False,
        "keras.config.enable_flash_attention",
        "keras.config.disable_flash_attention",
    ),
    "numpy_behavior": Setting(
        False,
        lambda: hasattr(tf.Tensor, "ravel"),  # a method that tensors have from this setting alone
        "tf.experimental.numpy.experimental_enable_numpy_behavior",
        off="",
    ),
    "tensor_float_32_execution": Setting(
        True,
        "tf.config.experimental.tensor_float_32_execution_enabled",
        "tf.config.experimental.enable_tensor_float_32_execution",
    ),
    "op_determinism": Setting(False, is_deterministic, "tf.config.experimental.enable_op_determinism", off=""),
    "unsafe_deserialization": Setting(
        False,
        lambda: resolved("keras.src.saving.serialization_lib.in_safe_mode")() is False,
        "keras.config.enable_unsafe_deserialization",
        off="",
        compared=False,
    ),
    "traceback_filtering": Setting(
        True,
        "keras.config.is_traceback_filtering_enabled",
        "keras.config.enable_traceback_filtering",
        "keras.config.disable_traceback_filtering",
        compared=False,
    ),
}

STANDARD: Mapping[str, Any] = {name: setting.standard for name, setting in TRAVEL.items()}


def of_program() -> dict[str, Any]:
    """Return the settings of this program that travel, by name."""
    return {name: setting.value() for name, setting in TRAVEL.items()}


def set_here(values: Mapping[str, Any]) -> None:
    """Set what differs from these settings in this process, in the main thread: some hold for a thread alone."""
    for name, value in values.items():
        if TRAVEL[name].value() != value:
            TRAVEL[name].set(value)


@contextmanager
def using(values: Mapping[str, Any]) -> Iterator[None]:
    """Have these settings while the context is open; meanwhile `tf.function` makes graphs, also in an eager program."""
    before, is_eager = of_program(), tf.config.functions_run_eagerly()
    set_here(values)
    tf.config.run_functions_eagerly(False)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(is_eager)
        set_here(before)


def refuse() -> None:
    """Raise `UserError` for a setting of this program with which no run does what the program asks for."""
    for refusal in REFUSED.values():
        if text := refusal():
            raise UserError(text)


def use_tensorflow() -> None:
    """Let Keras compute with TensorFlow, if it has not been imported yet, whatever the environment and its file say."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = "tensorflow"


def origin(name: str) -> str:
    """Return where a setting of Keras in this program is from, in words: its file, or a call of the program."""
    variable = f"KERAS_{name.upper()}"
    if variable in os.environ:
        return f"from the environment variable {variable}"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if json.loads(keras_file().read_text()).get(name) == resolved(f"keras.config.{name}")():
            return f"from {keras_file()}"
    return f"set by keras.config.set_{name}"


def source_of(dtype: str) -> str:
    """Return which setting of Keras gives this dtype to layers, and its origin, in words; "" if none does."""
    policy, instead = keras.config.dtype_policy(), ": change it, or give the layers a dtype"
    if dtype == keras.config.floatx():
        return f". Keras' floatx is {dtype}, {origin('floatx')}{instead}"
    if dtype in (policy.variable_dtype, policy.compute_dtype):
        return f". Keras' dtype policy is {policy.name}, {origin('dtype_policy')}{instead}"
    return ""


def _other_backend() -> str:
    if (backend := keras.config.backend()) == "tensorflow":
        return ""
    return (
        "distsgd needs Keras on TensorFlow: set KERAS_BACKEND=tensorflow before Keras is imported. Received: "
        f"{backend}, {origin('backend')}"
    )


def _no_eager_execution() -> str:
    if tf.executing_eagerly() and isinstance(tf.TensorShape([1])[0], int):
        return ""
    return (
        "TensorFlow behaves as version 1 here, with which Keras 3 makes no models: leave out "
        "tf.compat.v1.disable_eager_execution, disable_v2_behavior and disable_v2_tensorshape, and call train outside "
        "of tf.Graph().as_default()"
    )


REFUSED: Mapping[tuple[str, ...], Callable[[], str]] = {
    ("keras.config.set_backend",): _other_backend,
    (
        "tf.compat.v1.disable_eager_execution",
        "tf.compat.v1.disable_v2_behavior",
        "tf.compat.v1.disable_v2_tensorshape",
    ): _no_eager_execution,
}


def compared(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that may change a result."""
    return {name: value for name, value in values.items() if TRAVEL[name].compared}


def unusual(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that may change a result, and differ from those of the catalogue."""
    return {name: value for name, value in compared(values).items() if value != STANDARD[name]}


OF_GPUS = ("tf.config.set_visible_devices", "tf.config.experimental.set_visible_devices")  # see `launch.gpus`

WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    "the seed of the run decides": (
        "keras.utils.set_random_seed",
        "tf.random.set_seed",
        "tf.random.set_global_generator",
        "tf.compat.v1.set_random_seed",
    ),
    "it limits Keras' fit alone": ("keras.config.set_max_epochs",),
    "a run is made of graphs, on all back ends": (
        "tf.config.run_functions_eagerly",
        "tf.config.experimental_run_functions_eagerly",
        "tf.data.experimental.enable_debug_mode",
    ),
    "tasks share the cores that the program may use": (
        "tf.config.threading.set_inter_op_parallelism_threads",
        "tf.config.threading.set_intra_op_parallelism_threads",
    ),
    "tasks take the memory of a GPU as they need it": (
        "tf.config.experimental.set_memory_growth",
        "tf.config.experimental.set_virtual_device_configuration",
        "tf.config.set_logical_device_configuration",
    ),
    "an option of the run decides": ("tf.config.optimizer.set_jit",),
    "tasks have sessions of their own, each with its own configuration": (
        "tf.config.experimental.disable_mlir_bridge",
        "tf.config.experimental.enable_mlir_bridge",
        "tf.config.experimental.set_device_policy",
        "tf.config.experimental.set_synchronous_execution",
        "tf.config.experimental_connect_to_cluster",
        "tf.config.experimental_connect_to_host",
        "tf.config.optimizer.set_experimental_options",
        "tf.config.set_soft_device_placement",
    ),
    "it changes what is printed or checked in the program": (
        "keras.config.disable_interactive_logging",
        "keras.config.enable_interactive_logging",
        "tf.autograph.set_verbosity",
        "tf.debugging.disable_check_numerics",
        "tf.debugging.disable_traceback_filtering",
        "tf.debugging.enable_check_numerics",
        "tf.debugging.enable_traceback_filtering",
        "tf.debugging.set_log_device_placement",
        "tf.debugging.experimental.disable_dump_debug_info",
        "tf.debugging.experimental.enable_dump_debug_info",
        "tf.experimental.enable_strict_mode",
    ),
    "models of Keras 3 and graphs of a run do not use it": (
        "tf.compat.v1.disable_control_flow_v2",
        "tf.compat.v1.disable_resource_variables",
        "tf.compat.v1.disable_tensor_equality",
        "tf.compat.v1.enable_control_flow_v2",
        "tf.compat.v1.enable_resource_variables",
        "tf.compat.v1.enable_tensor_equality",
    ),
    "it is the default, which a run needs": (
        "tf.compat.v1.enable_eager_execution",
        "tf.compat.v1.enable_v2_behavior",
        "tf.compat.v1.enable_v2_tensorshape",
    ),
}
