"""The bench of the timing wheel, on few timers."""

import pytest

from pocketmq.tools.bench import wheel as bench


@pytest.mark.long
@pytest.mark.parametrize("name", bench.STRUCTURES)
def test_each_structure_fires_each_timer_once_that_was_not_cancelled(name: str) -> None:
    costs = bench.measure(bench.STRUCTURES[name], 500)

    assert set(costs) == set(bench.OPERATIONS) - ({"tick by tick"} if name != "wheel" else set())
    assert all(cost > 0 for cost in costs.values())


def test_the_table_shows_nanoseconds_and_ratios() -> None:
    costs: dict[str, float] = {name: 1000.0 for name in bench.OPERATIONS}
    others: dict[str, float] = {name: 2500.0 for name in bench.OPERATIONS if name != "tick by tick"}

    titles, *rows = bench.lines({10_000: {"wheel": costs, "heapq": others, "call_later": others}})

    assert titles.split() == [
        "timers", "ns", "each", "wheel", "heapq", "call_later", "heapq/wheel", "call_later/wheel"
    ]  # fmt: skip
    assert rows[0].split() == ["10,000", "insert", "1,000", "2,500", "2,500", "2.50", "2.50"]
    assert rows[-1].split() == ["10,000", "tick", "by", "tick", "1,000", "-", "-", "-", "-"]
