"""The contract of an algorithm: the methods that a scheme overrides.

The package also has the views of a worker and of the server, types of hyperparameters, the rounds of a worker,
learning-rate schedules, and the update rules that schemes are made of. It imports `sync` and the packages below. A
module of `algorithms/` can import all that it needs, synchronization rules included, from here.
"""

from ..errors import UserError
from ..lazy import tf
from ..messages.codec import Codec, Coordinates, ScaledSigns, Signs, Span, SummedCoordinates, WholeNumbers
from ..sync.alone import Alone
from ..sync.asynchronous import Async, Unlocked
from ..sync.barrier import Barrier, Quorum
from ..sync.bounded import Bounded
from ..sync.collective import Collective
from ..sync.gossip import Gossip
from ..sync.pairs import Pairs
from ..sync.synchronization import Synchronization
from .feedback import OfCoefficients, WithMemory
from .hyperparameters import (
    Count,
    Decay,
    Delay,
    FixedPeriod,
    Fraction,
    Fragments,
    Graph,
    Natural,
    NotNegative,
    Period,
    Positive,
    Probability,
    Rate,
    WeightDecay,
    unstable_above,
)
from .inner import InnerOptimizer, inner
from .kept import ClearedOnLoss, EachWorker, OfShard, PulledCenter
from .mixing import after_local_steps
from .on_graph import OnGraph
from .optimizers import (
    adagrad,
    adamw,
    count_senders,
    delayed_step,
    gathered,
    mean_over_senders,
    orthogonal,
    random_k,
    scaled_signs,
    sgd,
    steepest,
    take,
    top_k,
)
from .regions import Regions
from .robust import Robust, whole
from .rounding import DCT, BFloat16, Compression, Compressor, Int8, with_memory
from .rounds import Kind, Rounds
from .scheme import Scheme
from .seeded import uniform, uniform_numbers
from .views import Server, Tensor, Worker

__all__ = [
    "DCT",
    "Alone",
    "Async",
    "BFloat16",
    "Barrier",
    "Bounded",
    "ClearedOnLoss",
    "Codec",
    "Collective",
    "Compression",
    "Compressor",
    "Coordinates",
    "Count",
    "Decay",
    "Delay",
    "EachWorker",
    "FixedPeriod",
    "Fraction",
    "Fragments",
    "Gossip",
    "Graph",
    "InnerOptimizer",
    "Int8",
    "Kind",
    "Natural",
    "NotNegative",
    "OfCoefficients",
    "OfShard",
    "OnGraph",
    "Pairs",
    "Period",
    "Positive",
    "Probability",
    "PulledCenter",
    "Quorum",
    "Rate",
    "Regions",
    "Robust",
    "Rounds",
    "ScaledSigns",
    "Scheme",
    "Server",
    "Signs",
    "Span",
    "SummedCoordinates",
    "Synchronization",
    "Tensor",
    "Unlocked",
    "UserError",
    "WeightDecay",
    "WholeNumbers",
    "WithMemory",
    "Worker",
    "adagrad",
    "adamw",
    "after_local_steps",
    "count_senders",
    "delayed_step",
    "gathered",
    "inner",
    "mean_over_senders",
    "orthogonal",
    "random_k",
    "scaled_signs",
    "sgd",
    "steepest",
    "take",
    "tf",
    "top_k",
    "uniform",
    "uniform_numbers",
    "unstable_above",
    "whole",
    "with_memory",
]
