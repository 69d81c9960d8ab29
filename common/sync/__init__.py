"""Gates: who waits for whom.

A gate builds the exchange of a message for a reply, out of what it may ask of the parameter server (`Store`). It
imports nothing but the ground: `errors`, `files`, `reports`, `spec`, `waiting`.
"""

from .alone import Alone
from .asynchronous import Async, Unlocked
from .barrier import Barrier
from .bounded import Bounded
from .collective import Collective
from .gate import Gate
from .store import Event, Store, WorkerSlot

__all__ = ["Alone", "Async", "Barrier", "Bounded", "Collective", "Event", "Gate", "Store", "Unlocked", "WorkerSlot"]
