"""The animated terminal of README is drawn from README as it is now."""

from __future__ import annotations

from . import demo_svg
from .source_tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_shows_the_quickstart_of_readme() -> None:
    drawn = demo_svg.drawn(README)

    assert demo_svg.PICTURE.read_text(encoding="utf-8") == drawn, "run `make demo-svg`"


def test_its_last_line_shows_long_enough_to_be_read() -> None:
    assert max(line.begin_s for line in demo_svg.lines(README)) < 0.9 * demo_svg.SECONDS
