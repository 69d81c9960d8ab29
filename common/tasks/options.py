"""The options of a run, declared once: keyword arguments of `train`, flags of the command line, a field of the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_type_hints

from ..arguments import CheckedCall, at_least, at_most, close_to, nearest, positive
from ..contract.hyperparameters import Count, Fraction, Natural, NotNegative, Positive, check_fields
from ..contract.rounding import codec_of
from ..data import USUAL_BATCH
from ..data.skew import parsed
from ..errors import UserError
from ..hostile import attack_of
from ..kernels import Kernels
from ..record.latest import named, newest
from ..signals import FURTHER, numbers_of
from ..sources import meanings

RESTART_CHECKPOINT_SECONDS = 10.0

MAX_SEED = 2**32 - 1  # the largest seed that NumPy and Keras accept

MAX_STEPS = 10**12  # of a worker: more than any run does, and within the range of every counter

Seed = Annotated[int, partial(at_least, 0), partial(at_most, MAX_SEED)]

Share = Annotated[float, positive, partial(at_most, 1)]

RecordMode = Literal["full", "off"]

OnNan = Literal["stop", "drop"]

TransportName = Literal["memory", "sockets"]

Jit = Literal["auto", "on", "off"]

KERAS = {
    "shuffle": "each worker shuffles its shard in every epoch, in an order that the seed fixes",
    "steps_per_epoch": "steps counts the local steps of each worker in the whole run",
    "initial_epoch": "resume continues an earlier run",
    "sample_weight": "give the weights with the data, (x, y, sample_weight)",
    "validation_freq": "evaluate_every counts the updates of the center between two evaluations",
    "validation_steps": "all validation data are used: give fewer, as with dataset.take(...)",
    "optimizer": "the algorithm takes the steps",
}  # arguments of Keras' `fit` that have another form here

# Options that config.json does not have: it has what follows from them, or they change no result.
NOT_WRITTEN = {"epochs", "steps", "run_dir", "transport", "kernels", "probe", "tensorboard", "schedule", "recovery"}

LIMITS = {
    "stop_at_version",
    "stop_at_accuracy",
    "evaluate_every",
    "exclude_from_weight_decay",
}  # in the configuration of a run that has them

NO_FLAG = {"flag": False}  # metadata of a field that the command line does not offer


@dataclass(frozen=True, kw_only=True)
class Recovery(CheckedCall):
    """Checkpoints, restarts and other reactions of a run to faults.

    Example:
        >>> recovery = Recovery(max_restarts=5, min_workers=1)
        >>> result = train(model, (x, y), Downpour(), recovery=recovery, verbose=False)
        >>> result.metrics["recovery"]["restarts"]  # by task; none has died
        {}
    """

    checkpoint_steps: Natural | None = None
    """Updates of the center between two checkpoints."""
    checkpoint_seconds: Positive | None = None
    """Seconds between two checkpoints; the default is 60, or 10 if tasks may be restarted."""
    keep_checkpoints: Natural = 3
    """Number of the newest checkpoints to keep. A run in the same run directory resumes from the newest."""
    resume: Path | None = None
    """Run directory whose newest checkpoint to resume from; `latest` is the newest run in runs/."""
    max_restarts: Count = 0
    """Maximum number of restarts of killed tasks, all tasks together."""
    min_workers: Natural | None = None
    """Number of workers with which the run continues if the others do not come back; the default is all. Of the
    algorithms without a ps, `d_psgd`, `sgp`, `noloco` and `gasloc` can continue so."""
    stop_signals: str | None = None
    """Signals that end the run as SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGUSR1 do, with its center and a checkpoint, as
    in USR2 or USR2,XCPU: those that a scheduler sends before it ends a job."""
    on_nan: OnNan = "stop"
    """Reaction to a message that is not finite: stop the run, or drop the message. It never reaches the center."""

    def __post_init__(self):
        check_fields(self)
        if self.resume is not None:
            object.__setattr__(self, "resume", named(Path(self.resume)))  # Python users give a text
        for name in self._names:
            if name not in FURTHER:
                further = ", ".join(name.removeprefix("SIG") for name in FURTHER)
                raise UserError(f"stop_signals takes {further}. Received: stop_signals={self.stop_signals!r}")

    @property
    def _names(self) -> list[str]:
        words = [word.strip().upper() for word in (self.stop_signals or "").split(",")]
        return [f"SIG{word.removeprefix('SIG')}" for word in words if word]

    @property
    def signals(self) -> tuple[int, ...]:
        """Numbers of the signals that `stop_signals` names."""
        return numbers_of(self._names)

    @property
    def seconds(self) -> float:
        """Seconds between two checkpoints."""
        if self.checkpoint_seconds is not None:
            return self.checkpoint_seconds
        if self.checkpoint_steps is not None:
            return float("inf")
        return RESTART_CHECKPOINT_SECONDS if self.max_restarts else 60.0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """All settings of a run besides the scheme, the model, the data and the cluster.

    Raises:
        UserError: an option is out of range.
    """

    epochs: Natural = 1
    """Passes over the training data."""
    steps: Natural | None = None
    """Local steps of each worker, instead of epochs."""
    batch_size: Natural = USUAL_BATCH
    """Examples of one local step."""
    seed: Seed = 0
    """Random seed for initial weights, data sharding and batch order."""
    skew: str | None = None
    """Unequal distribution of labels over the workers: dirichlet:alpha=0.1 (each worker draws its own proportions, and
    with a small alpha it has few labels), or sorted (equal parts of the examples, sorted by label)."""
    run_dir: Path | None = None
    """Folder for the results of the run; the default is a new one in runs/, to which runs/latest then points. In a
    folder that holds checkpoints, such as `latest`, the run resumes from them."""
    clip_norm: Positive | None = None
    """Maximum norm of a gradient, taken as one vector; longer ones are scaled down to it."""
    l2: NotNegative = 0.0
    """Coefficient of the term l2/2 ‖x‖² that is added to the loss."""
    exclude_from_weight_decay: str | None = None
    """Variables that the weight decay of the algorithm or of its inner optimizer leaves as they are: texts that occur
    in their paths, as in bias,gamma,beta. Variables on which the loss does not depend are left out in any case."""
    participation: Share | None = None
    """Share of the clients that take part in a round, as in 0.1. The data belong to workers/0.1 clients, and a seeded
    draw gives each worker the shard of another client in each round. For synchronous algorithms."""
    hostile: str | None = None
    """Attack of the last workers, as in sign-flip:2: two multiply their gradients by -1. huge:2 multiplies them by
    1e30, inf:2 by infinity, and nan:2 by NaN. label-flip:2 counts labels from the other end. With alie:2 and ipm:2 they
    know what the others send, and send the mean less z standard deviations, or the negative of a tenth of the mean;
    with a strength, as in alie:2,z=1.5 and ipm:2,epsilon=0.5."""
    ema_decay: Fraction | None = None
    """Evaluate an exponential moving average of the center, with this decay, instead of the center."""
    codec: str = "float32"
    """Compression of messages: bf16 (half of the bytes), int8, int4, fp4, qsgd, topk, randomk, sign or dct; with
    options, as in topk:fraction=0.01. The error is added to the next message, unless memory=no. With bf16, replies are
    also compressed for algorithms that send plain gradients taken at them."""
    transport: TransportName = "memory"
    """Channel for vectors of a megabyte and more between processes of one machine: shared memory, or sockets; between
    machines it is always sockets."""
    kernels: Kernels = "auto"
    """Kernels with which TensorFlow computes on CPUs: Eigen's, or oneDNN's, which are faster for large models. auto: on
    a CPU on which TensorFlow does not use oneDNN by itself, by the size of the model. What TF_ENABLE_ONEDNN_OPTS says
    in the environment is never changed."""
    jit: Jit = "auto"
    """Compilation of the workers' gradient by XLA. auto: on a GPU, if Keras would compile the model there by itself
    (jit_compile="auto" of model.compile)."""
    tf32: bool = True
    """Let GPUs round the factors of matrix products and convolutions to TF32, 10 bits of mantissa in place of 23, as
    TensorFlow does where the card can; replay allows for it."""
    probe: bool = True
    """Measure the largest curvature of the loss before the run, from which a warning of too large a learning rate
    comes."""
    stop_at_version: Natural | None = None
    """End the run after this number of updates of the center; a few more may be applied meanwhile."""
    stop_at_accuracy: Fraction | None = None
    """End the run when the center has this accuracy on the test data."""
    evaluate_every: Natural | None = None
    """Evaluate the center every N updates. The ps takes snapshots at the multiples of N, and they are evaluated after
    the training. If they need more than 256 MB, or are more than 1000, the evaluator uses the first center that it
    reads at or after each multiple. Between multiples the center is evaluated as often as that slows no worker. Some
    multiples are left out if evaluations would last longer than the training, which a warning says."""
    record: RecordMode = "full"
    """Record every round (88 bytes each, and 112 in trace.npz and rounds.npz), or only aggregate statistics."""
    tensorboard: bool = False
    """Write summaries of the center for TensorBoard to tb/ in the run directory."""
    schedule: Sequence[int] = field(default=(), metadata=NO_FLAG)
    """Order in which workers take turns, a worker for each round, so that staleness is deterministic (threads only)."""
    recovery: Recovery = Recovery()
    """Checkpoints, restarts and other reactions to faults."""

    def __post_init__(self):
        check_fields(self)
        if self.skew is not None:
            parsed(self.skew)
        if self.run_dir is not None:
            if not str(self.run_dir):
                raise UserError("run_dir must not be empty; leave it out for a fresh folder in runs/")
            object.__setattr__(self, "run_dir", newest(Path(self.run_dir)))
        attack_of(self.hostile)
        codec_of(self.codec)
        if not isinstance(self.schedule, Sequence):
            raise UserError(
                f"schedule must be a list of workers, as in [0, 1, 1]. Received: schedule={self.schedule!r}"
            )
        if not isinstance(self.recovery, Recovery):
            raise UserError(
                f"recovery must be a Recovery, as in recovery=Recovery(max_restarts=5). Received: {self.recovery!r}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The options that config.json has, by name."""
        values = {name: value for name, value in vars(self).items() if value is not None or name not in LIMITS}
        return {name: value for name, value in values.items() if name not in NOT_WRITTEN}

    @property
    def every_round(self) -> bool:
        """True if every round is recorded, and not only aggregate statistics."""
        return self.record == "full"


class Keywords(TypedDict, total=False):
    """The fields of `RunOptions` for editors. No type checker derives them from the dataclass; a test compares both."""

    epochs: int
    steps: int | None
    batch_size: int
    seed: int
    skew: str | None
    run_dir: str | Path | None
    clip_norm: float | None
    l2: float
    exclude_from_weight_decay: str | None
    participation: float | None
    hostile: str | None
    ema_decay: float | None
    codec: str
    transport: TransportName
    kernels: Kernels
    jit: Jit
    tf32: bool
    probe: bool
    stop_at_version: int | None
    stop_at_accuracy: float | None
    evaluate_every: int | None
    record: RecordMode
    tensorboard: bool
    schedule: Sequence[int]
    recovery: Recovery | None


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_options(function: Function) -> Function:
    """Name each option in the signature and, for `{options}`, in the docstring of a function that ends in **options."""
    parameters = dict(inspect.signature(function).parameters)
    parameters.popitem()
    kinds = get_type_hints(RunOptions)
    for option in fields(RunOptions):
        parameters[option.name] = inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=kinds[option.name]
        )
    function.__signature__ = inspect.Signature([*parameters.values()])  # pyright: ignore[reportFunctionMemberAccess]
    meant = "\n        ".join(f"{name}: {meaning}" for name, meaning in meanings(RunOptions).items())
    function.__doc__ = (function.__doc__ or "").replace("{options}", meant)
    return function


def options_of(keywords: Mapping[str, Any], names: Iterable[str], makers: Iterable[Callable[..., Any]]) -> RunOptions:
    """Return the options of a call; None stands for the default.

    Args:
        keywords: keyword arguments of the call.
        names: names of all keywords that the call accepts.
        makers: constructors of the other arguments; an unknown keyword may belong to one of them.

    Raises:
        UserError: a keyword is unknown; the message says where it belongs, or names the nearest ones.
    """
    for name in keywords:
        if name not in names:
            raise UserError(f"there is no option {name!r} of train{_instead(name, list(names), list(makers))}")
    return RunOptions(**{name: value for name, value in keywords.items() if value is not None})


def _instead(name: str, names: Sequence[str], makers: Sequence[Callable[..., Any]]) -> str:
    """Return what to write instead of an unknown keyword: the end of a sentence, or another one."""
    if name in KERAS:
        return f": {KERAS[name]}"
    owned = {maker: close_to(name, inspect.signature(maker).parameters) for maker in makers}
    owner = next((maker for maker in makers if name in owned[maker]), None)
    if owner is None and not close_to(name, names):
        owner = next((maker for maker in makers if owned[maker]), None)
    if owner is not None:
        return f": write {owner.__qualname__}({owned[owner][0]}=...)"
    return f". {nearest(name, names, 'See help(distsgd.train)')}"
