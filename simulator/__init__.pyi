"""The simulator: it predicts runs on described machines, in virtual time."""

from .virtual_time.forecast import forecast

__all__ = ["forecast"]
