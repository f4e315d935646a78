"""Counts private words in the prose of the product: docstrings, comments, messages, help and documents."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from .source_tree import ROOT

LIST: Final = Path(__file__).with_name("private_words.toml")
_CODE_BLOCK: Final = re.compile(r"^ *(```|~~~).*?^ *\1`*$", re.MULTILINE | re.DOTALL)
_CODE_SPAN: Final = re.compile(r"(`+)[^`]+\1")


@cache
def replacements() -> dict[str, str]:
    """Return what to write instead of each private word. The word is a regular expression."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


@cache
def _patterns() -> tuple[re.Pattern[str], dict[str, re.Pattern[str]]]:
    """Return a pattern for all words, and one for each word. They match lower case: this is the fastest."""
    words = list(replacements())
    each = {word: re.compile(rf"\b(?:{word})\b") for word in words}
    return re.compile(rf"\b(?:{'|'.join(words)})\b"), each


def private_words(text: str) -> Iterator[str]:
    """Yield the private words in TEXT, as the list has them. Code spans and code blocks do not count."""
    any_word, each = _patterns()
    prose = " ".join(_CODE_SPAN.sub("`", _CODE_BLOCK.sub("", text)).lower().split())
    for match in any_word.finditer(prose):
        yield next(word for word, pattern in each.items() if pattern.match(prose, match.start()))


def count_in(texts: Iterable[str]) -> Counter[str]:
    return Counter(word for text in texts for word in private_words(text))


def documents() -> list[Path]:
    """Return the documents whose prose is counted. The change log is history and is left as it was."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*pages, *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def in_documents() -> Counter[str]:
    """Count the private words in the documents."""
    return count_in(path.read_text(encoding="utf-8") for path in documents())
