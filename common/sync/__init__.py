"""The synchronization rules of the algorithms: asynchronous, bounded staleness, barrier, all-reduce, one worker.

A rule builds the exchange of a message for a reply, out of the operations that the parameter server offers (`Store`).
The folder imports only the lowest modules: `arguments`, `errors`, `files`, `reports`, `spec`, `waiting`.
"""

from .alone import Alone
from .asynchronous import Async, Unlocked
from .barrier import Barrier
from .bounded import Bounded
from .collective import Collective
from .store import Event, Message, Store, WorkerSlot
from .synchronization import Synchronization

__all__ = ["Alone", "Async", "Barrier", "Bounded", "Collective", "Synchronization", "Unlocked"]
__all__ += ["Event", "Message", "Store", "WorkerSlot"]
