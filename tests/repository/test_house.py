"""The measure of the house may only fall: each figure of house.py is held by its line in house.toml."""

from __future__ import annotations

import pytest

from pocketmq.broker import broker
from pocketmq.proto import errors
from pocketmq.store import disk

from . import house
from .source_tree import name_of
from .test_links import ARCHITECTURE, paths_named

#: A limit that lies further above its figure than this, and a few, was left behind.
LOOSE = 1.05
FEW = 3


def test_the_sources_grow_no_further() -> None:
    allowed = house.limits()

    too_large = {name: now for name, now in house.of_sources().items() if now > allowed[name]}

    assert too_large == {}, "make it smaller elsewhere: `make house` prints the table"


def test_no_road_grows_longer() -> None:
    allowed = house.limits()

    too_long = {name: now for name, now in house.of_roads().items() if now > allowed[name]}

    assert too_long == {}, "a call passes more files than it did: which of them can go?"


@pytest.mark.parametrize("name", ["SendMessage", "ReceiveMessage", "AckMessage"])
def test_the_architecture_tells_the_roads_of_official_clients_as_they_are(name: str) -> None:
    section = ARCHITECTURE.read_text(encoding="utf-8").split("## The road of an official client")[1]
    _, common, *_ = section.split("```")
    _, told, *_ = section.split(f"`{name}`")[1].split("```")

    passed = house.files_of_roads()[name]
    named = [path for block in (common, told) for path in paths_named(_firsts(block))]
    assert len(named) >= 9
    assert [name_of(path) for path in named if path not in passed] == []


def _firsts(block: str) -> str:
    """Return the first word of each line of BLOCK."""
    return " ".join(line.split()[0] for line in block.splitlines() if line.strip())


def test_limits_follow_what_falls() -> None:
    figures = house.of_sources() | house.of_roads()

    assert list(house.limits()) == list(figures)
    left_behind = {
        name: limit for name, limit in house.limits().items() if limit > figures[name] * LOOSE + FEW
    }
    assert left_behind == {}, "lower them to what `make house` prints, and a fiftieth"


def test_a_road_counts_the_files_that_all_its_runs_have_in_common() -> None:
    first, common, last = (part.__file__ for part in (broker, disk, errors))
    follower = house.Follower()
    for files in ((first, common), (common, last)):
        with follower.following():
            for file in files:
                exec(compile("(lambda: None)()", str(file), "exec"), {})

    assert [str(path) for path in follower.files()] == [common]
