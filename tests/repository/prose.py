"""Measures the prose of README and docs: how long its sentences are, whom they address, and what its tables look like.

Headings, code blocks and cells of tables are not sentences. INTERNAL pages and generated tables are left out.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from .source_tree import ROOT

INTERNAL: Final = frozenset({"architecture.md", "http2.md", "performance.md"})
LONG: Final = 25
VERY_LONG: Final = 30
CELL_MAX: Final = 200
_GENERATED: Final = re.compile(r"<!-- generated: .*?<!-- end of .*?-->", re.DOTALL)
_FENCE: Final = re.compile(r" *(```|~~~)")
_NO_TEXT: Final = re.compile(r" *(#|\||!!!|::: |<!--|</?\w|!?\[[^]]*\]:|---+ *$)")
_ITEM: Final = re.compile(r"\s*(?:[-*+]|\d+\.)\s+|\s*>\s?")
_LINK: Final = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
_CODE: Final = re.compile(r"(`+)[^`]+\1")
_END: Final = re.compile(r"(?<=[.!?])[)\"'*]*\s+(?=[^a-z\s])|(?<=:)\s*$")
_YOU: Final = re.compile(r"\byou(?:r|rs|rself)?\b", re.IGNORECASE)
_DELIMITERS: Final = re.compile(r" *\|(?: *:?-+:? *\|)+ *$")


@dataclass
class Page:
    """A page, measured."""

    name: str
    sentences: list[int] = field(default_factory=list)
    """The words of each sentence."""
    words: int = 0
    addresses: int = 0
    """How often it says "you" or "your"."""
    headless: int = 0
    """Tables that have a column without a heading."""
    wide_cells: int = 0


def measured(name: str, text: str) -> Page:
    """Return the measures of TEXT, the page NAME."""
    page = Page(name)
    text = _GENERATED.sub("", text)
    for paragraph in paragraphs(text):
        plain = _CODE.sub("code", _LINK.sub(r"\1", paragraph)).replace("**", "")
        page.addresses += len(_YOU.findall(plain))
        counts = [len(sentence.split()) for sentence in _END.split(plain)]
        page.sentences += [count for count in counts if count]
    page.words = sum(page.sentences)
    for head, cells in tables(text):
        page.headless += "" in head
        page.wide_cells += sum(len(cell) > CELL_MAX for cell in cells)
    return page


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs and items of lists of TEXT, each on one line."""
    lines: list[str] = []
    in_code = False
    for line in [*text.splitlines(), ""]:
        starts_item = _ITEM.match(line)
        if _FENCE.match(line):
            in_code = not in_code
        if in_code or _FENCE.match(line) or not line.strip() or _NO_TEXT.match(line) or starts_item:
            if lines:
                yield " ".join(lines)
            lines = []
        if starts_item and not in_code:
            lines = [line[starts_item.end() :].strip()]
        elif not in_code and line.strip() and not _FENCE.match(line) and not _NO_TEXT.match(line):
            lines.append(line.strip())


def tables(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the headings and the cells of each table of TEXT."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if number and _DELIMITERS.match(line):
            cells = list[str]()
            for row in lines[number + 1 :]:
                if not row.lstrip().startswith("|"):
                    break
                cells += _cells(row)
            yield _cells(lines[number - 1]), cells


def _cells(row: str) -> list[str]:
    parts = re.split(r"(?<!\\)\|", _LINK.sub(r"\1", row.strip().strip("|")))
    return [part.strip() for part in parts]


def pages() -> list[Path]:
    """Return the pages for users."""
    found = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in INTERNAL]
    return [ROOT / "README.md", *found]


@cache
def all_measured() -> tuple[Page, ...]:
    return tuple(measured(path.name, path.read_text(encoding="utf-8")) for path in pages())


def figures() -> dict[str, float]:
    """Return the measures of all pages, by name. Where a limit is a minimum, its name starts with "minimum"."""
    found = all_measured()
    sentences = sorted(count for page in found for count in page.sentences)
    words = sum(page.words for page in found)
    return {
        f"% of sentences with more than {LONG} words": share(sentences, LONG),
        f"% of sentences with more than {VERY_LONG} words": share(sentences, VERY_LONG),
        "words in a sentence, median": statistics.median(sentences),
        "words in a sentence, p90": sentences[len(sentences) * 9 // 10],
        "minimum of 'you' in 1,000 words": round(
            1_000 * sum(page.addresses for page in found) / words, 1
        ),
        "tables with a column without heading": sum(page.headless for page in found),
        f"cells of tables with more than {CELL_MAX} characters": sum(
            page.wide_cells for page in found
        ),
        "words on a page, max": max(page.words for page in found),
    }


def share(counts: list[int], limit: int) -> float:
    """Return how many percent of COUNTS exceed LIMIT."""
    return round(100 * sum(count > limit for count in counts) / len(counts), 1)


def main() -> None:
    """Print the figures, and the pages with the largest share of long sentences."""
    for name, value in figures().items():
        print(f"{name:<56}{value:>9,}")  # noqa: T201
    worst = sorted(all_measured(), key=lambda page: -share(page.sentences or [0], VERY_LONG))
    for page in worst[:15]:
        line = (
            f"{page.name:<40}{share(page.sentences or [0], VERY_LONG):>6} %{page.words:>7,} words"
        )
        print(line)  # noqa: T201


if __name__ == "__main__":
    main()
