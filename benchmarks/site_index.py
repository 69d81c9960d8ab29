"""The file `llms.txt` of the site: a line for each page and each algorithm, for programs that look for a page."""

from __future__ import annotations

import re
from pathlib import Path

from ..algorithms import SCHEMES
from ..common.contract.scheme import idea_of

ABOUT = "Distributed SGD algorithms on TensorFlow, for models of Keras and PyTorch: real processes, replayed in NumPy."


def site_index(docs: Path) -> str:
    """Return the text: title, one sentence, then a link for each page of the folder `docs`, and for each algorithm.

    Args:
        docs: the folder of the pages, in Markdown: each begins with a heading and a paragraph, whose first sentence
            says what the page is about.
    """
    files = [*sorted(docs.glob("*.md")), *sorted(docs.glob("claims/*.md")), *sorted(docs.glob("exercises/*.md"))]
    pages = [_line(f"docs/{page.relative_to(docs).with_suffix('.html')}", page.read_text()) for page in files]
    algorithms = [f"- [{name}](docs/algorithms/{name}.html): {idea_of(kind)}" for name, kind in SCHEMES.items()]
    return "\n".join(["# distsgd", "", f"> {ABOUT}", "", "## Pages", *pages, "", "## Algorithms", *algorithms, ""])


def _line(link: str, text: str) -> str:
    title, _, rest = text.removeprefix("# ").partition("\n")
    parts = re.split(r"\n\s*\n", re.sub(r"```.*?```", "", rest, flags=re.DOTALL).strip())
    paragraph = next(part for part in parts if part[0] not in "!<|#:")
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    sentence = re.match(r".*?[.:](?= |$)", plain)
    return f"- [{title}]({link}): {sentence[0].rstrip(':') if sentence else plain}"
