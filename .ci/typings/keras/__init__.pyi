# Builds its modules at import time: everything in it is Any to the type checker.
from typing import Any

def __getattr__(name: str) -> Any: ...
