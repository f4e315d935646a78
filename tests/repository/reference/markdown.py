"""Markdown: tables, and text that is safe in a cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_CODE: Final = re.compile(r"(`[^`]*`)")
_IDENTIFIER: Final = re.compile(r'"?[$\w./-]*_[\w./-]*\w"?')
#: A range in brackets, [0<=x<=9], would be a reference to a heading.
_BARE: Final = re.compile(r"[<*]|\[(?=\d)")


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with TITLES, and a line for each of ROWS, whose cells are Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell(one) for one in line)} |\n" for line in lines)


def cell(text: str) -> str:
    """Return TEXT, Markdown, as it can be in a cell."""
    return " ".join(text.split()).replace("|", "\\|")


def plain(text: str) -> str:
    """Return TEXT so that nothing in it but code spans is markup; a word with an underscore becomes code."""
    parts = _CODE.split(_IDENTIFIER.sub(_as_code, " ".join(text.split())))
    return "".join(
        part if part.startswith("`") else _BARE.sub(lambda found: "\\" + found[0], part)
        for part in parts
    )


def _as_code(found: re.Match[str]) -> str:
    before, text = found.string[: found.start()], found[0]
    return text if before.count("`") % 2 else f"`{text}`"


def code(text: object) -> str:
    """Return TEXT as code; nothing if it is empty."""
    return f"`{text}`" if str(text) else ""


def sentence(text: str) -> str:
    """Return TEXT with a capital letter and a full stop."""
    text = text.strip()
    capital = text if text[:1] in "`$" else text[:1].upper() + text[1:]
    return capital if capital.endswith((".", "…", ":", "]")) else f"{capital}."
