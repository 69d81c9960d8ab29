"""Everything that is not an algorithm."""

from .cluster import Cluster
from .errors import DistsgdError, UserError
from .launcher import keep_warm
from .scheme import Scheme
from .training import Result, train

__all__ = ["Cluster", "DistsgdError", "Result", "Scheme", "UserError", "keep_warm", "train"]
