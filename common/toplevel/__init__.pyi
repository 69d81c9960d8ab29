"""The package `distsgd` itself: the names of `common` and `simulator`, and the classes of the catalogue."""

from . import algorithms as algorithms
from . import benchmarks as benchmarks
from . import common as common
from . import simulator as simulator
from .algorithms import *  # pyright: ignore[reportMissingImports]
from .common import *  # pyright: ignore[reportMissingImports]
from .simulator import *  # pyright: ignore[reportMissingImports]

__version__: str
