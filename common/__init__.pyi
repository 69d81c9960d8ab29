"""The framework: everything that is not an algorithm."""

from .cluster.cluster import Cluster
from .cluster.platform import Platform
from .contract.scheme import Scheme
from .errors import DistsgdError, UserError
from .group import Group
from .launch.client import keep_warm
from .launch.join import join
from .optimizer import Optimizer
from .record.callbacks import Callback
from .record.loggers import MLflowLogger, WandbLogger
from .sweeping import sweep
from .tasks.options import Recovery
from .training import Result, problem, train

__all__ = [
    "Callback",
    "Cluster",
    "DistsgdError",
    "Group",
    "MLflowLogger",
    "Optimizer",
    "Platform",
    "Recovery",
    "Result",
    "Scheme",
    "UserError",
    "WandbLogger",
    "join",
    "keep_warm",
    "problem",
    "sweep",
    "train",
]
