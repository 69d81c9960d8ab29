"""The equations of an algorithm, from the docstring of its module to Markdown with TeX.

A docstring has its equations as indented lines: the acting task and its time, then the equations, between words. They
are written with the letters of the papers: `push g, wait, x ← θ`.
"""

from __future__ import annotations

import re

TASKS = {"push", "reply", "send", "draw", "none", "otherwise"}  # words that begin an equation, not its second line

MATHS = {"sign", "min", "max", "exp", "cos", "AdamW", "old", "cW", "ki", "ij"}  # of several letters, but no words

SIGNS = {
    "←": r"\leftarrow ", "−": "-", "Σ": r"\sum ", "⊙": r"\odot ", "≥": r"\ge ", "∈": r"\in ", "·": r"\cdot ",
    "‖": r"\Vert ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "ḡ": r"\bar{g}", "%": r"\%",
}  # fmt: skip

GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "λ": "lambda", "μ": "mu", "κ": "kappa", "τ": "tau", "φ": "varphi", "ψ": "psi", "Δ": "Delta",
}  # fmt: skip

RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))

WORD = re.compile(r"[A-Za-z]+(?:-[a-z]{2,})+|[A-Za-z]{2,}(?:'s)?|\ba(?= [a-hj-z])")
NAME = re.compile(r"(?P<letter>[^\W\d_])(?P<raised>[⁺])?_(?P<index>old|[^\W\d_]+)")
EDGE = " ,;:."


def rows_of(block: list[str]) -> list[tuple[str, list[str]]]:
    """Return each task with the lines of its equations; a sentence that is continued on a line is one with it.

    An indented task is a case of the one above it, which has the equations below the cases: `then`.
    """
    block = [line[4:] for line in block]
    gaps = [gap.end() for line in block if (gap := re.match(r"\S.*?\S {3,}(?=\S)", line))]
    place = min(gaps, default=0)
    rows: list[tuple[str, list[str]]] = []
    is_case = False
    for line in block:
        task, equations = _split(line, place)
        if not rows or (task and equations):
            rows.append((task, [equations]))
            is_case = bool(task) and line[0] == " "
        elif task:
            rows[-1] = f"{rows[-1][0]} {task}", rows[-1][1]
        elif _is_continued(rows[-1][1][-1], equations):
            rows[-1][1][-1] += f" {equations}"
        elif is_case:
            rows.append(("then", [equations]))
            is_case = False
        else:
            rows[-1][1].append(equations)
    return rows


def _split(line: str, place: int) -> tuple[str, str]:
    """Return what is before and behind a place of a line, or of its own gap if a longer task reaches over the place."""
    if place and line[place - 1 : place].strip():
        task, _, equations = re.sub(" {3,}", "\n", line.strip()).partition("\n")
        return task, equations
    return line[:place].strip(), line[place:].strip()


def _is_continued(before: str, line: str) -> bool:
    """Return True if a line is in the middle of a sentence: behind a word, with a word that is no task."""
    first, last = WORD.match(line), [word.end() for word in WORD.finditer(before)][-1:]
    return bool(first) and first[0] not in TASKS and last == [len(before)] and "   " not in line


def markdown(text: str) -> str:
    """Return words as they are, and what is between them as TeX between dollars."""
    pieces, begun = [], 0
    for word in WORD.finditer(text):
        if word[0] in MATHS:
            continue
        pieces += [_math(text[begun : word.start()]), word[0]]
        begun = word.end()
    return re.sub(" {3,}", " &emsp; ", "".join([*pieces, _math(text[begun:])]))


def _math(text: str) -> str:
    """Return TeX between dollars, with the spaces, marks and open brackets at its edges outside."""
    inner = text.strip(EDGE)
    if inner.count("(") > inner.count(")"):
        inner = inner.removesuffix("(")
    if inner.count(")") > inner.count("("):
        inner = inner.removeprefix(")")
    inner = inner.strip(EDGE)
    if not inner:
        return text
    before, after = text.split(inner, 1)
    return "&emsp;".join(f"${tex(part)}$" for part in re.split(" {2,}", inner)).join((before, after))


def tex(text: str) -> str:
    """Return an equation without words as TeX."""
    text = re.sub(r"√\((.*?)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"√(\w)", r"\\sqrt{\1}", text)
    text = NAME.sub(_with_index, text)
    text = re.sub(r"\^−(\w)", r"^{-\1}", text)
    text = re.sub(f"[{''.join(RAISED)}]+", lambda found: "^{" + "".join(RAISED[c] for c in found[0]) + "}", text)
    text = re.sub(f"[{''.join(LOWERED)}]+", lambda found: "_{" + "".join(LOWERED[c] for c in found[0]) + "}", text)
    text = re.sub(r"(?<![\\A-Za-z])(sign|AdamW)\b", r"\\operatorname{\1}", text)
    text = re.sub(r"(?<![\\A-Za-z])(min|max|exp|cos)\b", r"\\\1", text)
    for sign, command in SIGNS.items():
        text = text.replace(sign, command)
    for letter, name in GREEK.items():
        text = text.replace(letter, f"\\{name} ")
    return re.sub(r" +", " ", re.sub(r" (?=[)},_^/])", "", text)).strip()


def _with_index(found: re.Match[str]) -> str:
    raised = "^{+}" if found["raised"] else ""
    index = rf"\mathrm{{{found['index']}}}" if found["index"] == "old" else found["index"]
    return f"{found['letter']}{raised}_{{{index}}}"
