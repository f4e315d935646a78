"""What a server keeps is left out of the collector's passes, as it grows; all is looked through once a day."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pocketmq.tools.cli import cli
from pocketmq.tools.process_memory import DAY_MS, GROWTH, Collector


class Rig:
    """A collector of a server that keeps so many entries as objects that the collector sees."""

    def __init__(self) -> None:
        self.kept: list[list[object]] = []
        self.collector = Collector(lambda: len(self.kept))

    def grow(self, count: int) -> None:
        self.kept += [[object()] for _ in range(count)]

    def looked_through(self) -> int:
        """Return how many of the entries a pass looks at."""
        seen = {id(one) for one in gc.get_objects()}
        return sum(id(one) in seen for one in self.kept)


@pytest.fixture
def rig() -> Iterator[Rig]:
    yield Rig()
    gc.unfreeze()
    gc.enable()


class Circle:
    """An object that uses itself."""

    def __init__(self) -> None:
        self.itself = self


def test_a_start_makes_what_passes_leave_out(rig: Rig) -> None:
    rig.collector.begin()
    assert not gc.isenabled()
    rig.grow(500)

    rig.collector.serve(0)

    assert gc.isenabled()
    assert rig.looked_through() == 0


def test_a_start_that_fails_leaves_the_collector_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "pocketmq").write_text("This file is where a folder of the store should be.")
    ports = ["--port", "0", "--nameserver-port", "0"]

    refused = CliRunner().invoke(cli, ["serve", "--force", "--store", str(tmp_path), *ports])

    assert refused.exit_code != 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_what_is_kept_is_left_out_whenever_it_has_grown(rig: Rig) -> None:
    rig.collector.serve(0)
    rig.grow(GROWTH - 1)
    rig.collector.tick(1_000)
    assert rig.looked_through() == GROWTH - 1
    rig.grow(1)
    rig.collector.tick(2_000)
    assert rig.looked_through() == 0
    rig.grow(GROWTH - 1)
    rig.collector.tick(3_000)
    assert rig.looked_through() == GROWTH - 1


def test_growth_counts_from_where_the_tables_were_smallest(rig: Rig) -> None:
    rig.grow(GROWTH)
    rig.collector.serve(0)
    del rig.kept[10:]
    rig.collector.tick(1_000)
    rig.grow(GROWTH - 10)
    rig.collector.tick(2_000)
    assert rig.looked_through() == GROWTH - 10
    rig.grow(10)
    rig.collector.tick(3_000)
    assert rig.looked_through() == 0


@pytest.mark.long
def test_a_circle_that_was_left_out_goes_within_a_day(rig: Rig) -> None:
    rig.collector.serve(0)
    circle = Circle()
    there = weakref.ref(circle)
    rig.grow(GROWTH)
    rig.collector.tick(1_000)
    del circle
    gc.collect()
    assert there() is not None

    rig.collector.tick(DAY_MS - 1)
    assert there() is not None
    rig.collector.tick(DAY_MS)

    assert there() is None
    assert rig.looked_through() == 0


def test_a_circle_that_nobody_uses_when_the_tables_have_grown_goes(rig: Rig) -> None:
    rig.collector.serve(0)
    gc.disable()
    there = weakref.ref(Circle())
    rig.grow(GROWTH)

    rig.collector.tick(1_000)

    assert there() is None
