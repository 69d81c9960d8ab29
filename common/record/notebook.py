"""The display of a run in a notebook: a line that is rewritten, and a small table at the end."""

from __future__ import annotations

import contextlib
import contextvars
import html
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..files import own_folder, standard_error_to, writing

REFRESH_SECONDS = 0.5  # between two updates of the line

NOTES = 5  # most lines that stay, such as warnings; the newest are kept

LINE = '<pre style="white-space:pre-wrap;margin:0">{}</pre>'


def in_notebook() -> bool:
    """Return True in a Jupyter kernel, which shows published output; False in IPython on a terminal."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")


class NotebookLine:
    """A line below the cell, rewritten by a thread of its own, and above it notes that stay.

    Args:
        text: function that returns the current line.
    """

    def __init__(self, text: Callable[[], str]):
        self.text = text
        self.notes: list[str] = []
        self._context = contextvars.copy_context()  # publishes below this cell, from any thread
        self._handle: Any = None
        self._showing, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> NotebookLine:
        self.show()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.show()

    def note(self, text: str) -> None:
        """Add a line that stays."""
        self.notes = [*self.notes, text][-NOTES:]
        self.show()

    def show(self) -> None:
        """Publish the notes and the current line."""
        text = "\n".join([*self.notes, self.text()])
        with self._showing:
            self._context.run(self._publish, {"text/plain": text, "text/html": LINE.format(html.escape(text))})

    def _publish(self, data: dict[str, str]) -> None:
        from IPython.display import DisplayHandle

        if self._handle is None:
            self._handle = DisplayHandle()
            self._handle.display(data, raw=True)
        else:
            self._handle.update(data, raw=True)

    def _refresh(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            self.show()


def show_table(title: str, rows: Mapping[str, str]) -> None:
    """Show a table of names and values below the cell."""
    from IPython.display import display

    width = max(map(len, rows))
    plain = "\n".join([title, *(f"{name:<{width}}  {value}" for name, value in rows.items())])
    cells = "".join(
        f'<tr><td style="text-align:left">{html.escape(name)}</td>'
        f'<td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    page = f'<table><caption style="text-align:left">{html.escape(title)}</caption>{cells}</table>'
    display({"text/plain": plain, "text/html": page}, raw=True)


@contextlib.contextmanager
def native_output(file: Path) -> Iterator[None]:
    """Redirect the standard error of native code in this process to a file while the context is open.

    Raises:
        CannotWrite: the file cannot be written.
    """
    with writing(file):
        own_folder(file.parent)
    with standard_error_to(file):
        yield
