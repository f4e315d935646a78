"""The prose of README and docs stays within prose.toml, and is measured as it should be."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import pytest

from . import prose

LIMITS: Final = tomllib.loads(Path(__file__).with_name("prose.toml").read_text(encoding="utf-8"))
PAGE: Final = """\
# A heading that is not a sentence

You send a message. The broker (`pocketmq serve`) stores it, see
[the page on sending](a/very-long.md#place).

- Your item. Another sentence
  of it
- A second item

```python
code = "is not counted. Not at all."
```

| name | |
|---|---|
| one | a cell. Two |
| two | [a long link](x.md) |
"""


@pytest.mark.parametrize("name", LIMITS)
def test_a_figure_stays_within_its_limit(name: str) -> None:
    value, limit = prose.figures()[name], LIMITS[name]["limit"]

    if name.startswith("minimum"):
        assert value >= limit, "run `make prose`: address the reader as you"
    else:
        assert value <= limit, "run `make prose`: it shows the pages with the longest sentences"


def test_each_figure_has_a_limit() -> None:
    assert list(LIMITS) == list(prose.figures())


def test_sentences_and_addresses_of_a_page_are_counted() -> None:
    page = prose.measured("page.md", PAGE)

    assert page.sentences == [4, 10, 2, 4, 3]
    assert (page.words, page.addresses) == (23, 2)
    assert (page.headless, page.wide_cells) == (1, 0)


def test_a_wide_cell_is_counted_unless_it_was_generated() -> None:
    table = f"| a |\n|---|\n| {'x' * 201} |\n"

    written = prose.measured("page.md", f"Text.\n\n{table}")
    generated = prose.measured("page.md", f"<!-- generated: x -->\n\n{table}\n<!-- end of x -->\n")

    assert (written.wide_cells, written.sentences) == (1, [1])
    assert (generated.wide_cells, generated.sentences) == (0, [])


def test_a_share_is_in_percent() -> None:
    assert prose.share([1, 26, 31, 2], prose.LONG) == 50.0
