"""The generated reference in docs/ is current: `make reference` writes it."""

from __future__ import annotations

import pytest

from .reference import environment
from .reference.pages import DOCS, PAGES, blocks_in, updated


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")

    assert updated(name, text) == text, "run `make reference`"


def test_every_block_is_generated() -> None:
    found = {
        page.name: blocks
        for page in DOCS.glob("*.md")
        if (blocks := blocks_in(page.read_text(encoding="utf-8")))
    }
    assert found == {name: [*blocks] for name, blocks in PAGES.items()}


def test_a_stale_block_is_found() -> None:
    name, (block, *_) = next((name, [*blocks]) for name, blocks in PAGES.items())
    text = (DOCS / name).read_text(encoding="utf-8")
    begin = f"<!-- generated: {block} -->\n"

    stale = text.replace(begin, f"{begin}\nstale\n")

    assert updated(name, stale) == text


def test_every_variable_that_is_read_is_on_the_page() -> None:
    page = (DOCS / "environment.md").read_text(encoding="utf-8")

    assert environment.read_variables() >= {"POCKETMQ_SECRET_FILE", "POCKETMQ_INSECURE"}
    assert [one for one in environment.read_variables() if f"| `{one}` |" not in page] == []


def test_every_option_shows_its_variable() -> None:
    assert environment.options_that_hide_their_variable() == []
