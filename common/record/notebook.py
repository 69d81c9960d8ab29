"""What a run shows in a notebook: one line that is written anew, and at the end a small table."""

from __future__ import annotations

import contextlib
import contextvars
import html
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..files import own_folder, standard_error_to, writing

REFRESH_SECONDS = 0.5  # between two versions of the line

NOTES = 5  # lines that stay, such as warnings; of more, the newest

LINE = '<pre style="white-space:pre-wrap;margin:0">{}</pre>'


def in_notebook() -> bool:
    """True in a Jupyter kernel, which shows what is published; false in IPython on a terminal."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    return hasattr(get_ipython(), "kernel")


class NotebookLine:
    """A line below the cell, written anew by a thread of its own, and above it notes that stay.

    Args:
        text: what the line says now.
    """

    def __init__(self, text: Callable[[], str]):
        self.text = text
        self.notes: list[str] = []
        self._context = contextvars.copy_context()  # knows the cell, in whichever thread
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
        """One more line that stays."""
        self.notes = [*self.notes, text][-NOTES:]
        self.show()

    def show(self) -> None:
        """Show how it is now."""
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
    """A table of names and values below the cell."""
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
    """In here, what native code of this process writes to standard error goes to a file, as that of a task does.

    Raises:
        CannotWrite: the file.
    """
    with writing(file):
        own_folder(file.parent)
    with standard_error_to(file):
        yield
