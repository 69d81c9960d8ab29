"""Everything that is not an algorithm."""

from .cluster import Cluster
from .errors import DistsgdError, UserError
from .hooks import Callback
from .launcher import keep_warm
from .recovery import Recovery
from .scheme import Scheme
from .training import Result, train

__all__ = [
    "Callback",
    "Cluster",
    "DistsgdError",
    "Recovery",
    "Result",
    "Scheme",
    "UserError",
    "keep_warm",
    "train",
]
