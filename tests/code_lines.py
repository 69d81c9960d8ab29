"""Count the lines of code of `common/`, and read their budget in pyproject.toml."""

import io
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITH_ALGORITHMS = "replay/reference", "messages/codec.py", "contract/rounding.py"  # which grow with the catalogue
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def lines_of(source):
    """Return the number of lines that hold a token other than a comment or a docstring."""
    lines, begins = set(), True  # a string at the beginning of a statement is a docstring
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in NO_CODE:
            begins = begins or (token.type != tokenize.COMMENT and token.type != tokenize.NL)
        elif token.type == tokenize.STRING and begins:
            begins = False
        else:
            begins = False
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def lines_of_common():
    """Return the lines of code of `common/`, without the transcriptions and codecs."""
    files = (ROOT / "common").rglob("*.py")
    names = {str(file.relative_to(ROOT / "common")): file for file in files}
    return sum(lines_of(file.read_text()) for name, file in names.items() if not name.startswith(WITH_ALGORITHMS))


def budget():
    """Return the most lines of code that `common/` may have."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["distsgd"]["most-code-lines-of-common"]
