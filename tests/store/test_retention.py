"""When files are deleted and writes refused."""

from __future__ import annotations

from datetime import datetime

import pytest

from pocketmq.store.config import StoreConfig
from pocketmq.store.retention import decide, kept_back, local_hour

HOUR = 3_600_000
CONFIG = StoreConfig(path="/s")


def at_hour(hour: int) -> int:
    return int(datetime(2026, 3, 1, hour, 30).timestamp() * 1000)


@pytest.mark.parametrize(
    ("hour", "ages_h", "used", "deleted", "refuse"),
    [
        pytest.param(4, [100, 80, 70, 1], 10, 2, False, id="expired in the delete hour"),
        pytest.param(5, [100, 80, 70, 1], 10, 0, False, id="nothing at another hour"),
        pytest.param(5, [100, 80, 70, 1], 75, 0, False, id="75 percent is not above 75"),
        pytest.param(5, [100, 80, 70, 1], 76, 2, False, id="expired at any hour above 75"),
        pytest.param(5, [3, 2, 1, 0], 85, 0, False, id="85 percent still asks for age"),
        pytest.param(5, [3, 2, 1, 0], 86, 3, False, id="any age above 85, never the newest"),
        pytest.param(5, [3, 2, 1, 0], 90, 3, False, id="90 percent still takes writes"),
        pytest.param(5, [3, 2, 1, 0], 91, 3, True, id="above 90 writes are refused"),
        pytest.param(4, [100], 10, 0, False, id="the newest file stays though expired"),
        pytest.param(4, [], 99, 0, True, id="no file"),
        pytest.param(4, [100] * 20, 10, 10, False, id="at most ten a round"),
        pytest.param(5, [0] * 20, 95, 10, True, id="at most ten a round, forced"),
        pytest.param(4, [100, 1, 100, 100, 1], 10, 1, False, id="none behind an unexpired one"),
        pytest.param(4, [72, 0], 10, 1, False, id="expires at exactly 72 hours"),
    ],
)
def test_decision(hour: int, ages_h: list[int], used: int, deleted: int, refuse: bool) -> None:
    now = at_hour(hour)

    decision = decide(CONFIG, now, [now - age * HOUR for age in ages_h], used)

    assert (decision.delete_files, decision.refuse_writes) == (deleted, refuse)


@pytest.mark.parametrize(
    ("needed_from", "deleted"),
    [
        pytest.param(None, 2, id="nobody waits"),
        pytest.param(250, 2, id="what waits lies behind"),
        pytest.param(200, 2, id="it begins with the next file"),
        pytest.param(199, 1, id="it lies in the second file"),
        pytest.param(0, 0, id="it lies in the first file"),
    ],
)
def test_a_message_that_waits_keeps_its_file(needed_from: int | None, deleted: int) -> None:
    now = at_hour(4)
    decision = decide(CONFIG, now, [now - age * HOUR for age in (100, 80, 70, 1)], 10)

    assert kept_back(decision, [100, 200, 300, 400], needed_from).delete_files == deleted


def test_a_full_disk_forces_out_what_waits() -> None:
    now = at_hour(5)
    decision = decide(CONFIG, now, [now] * 4, 86)

    assert kept_back(decision, [100, 200, 300, 400], 0).delete_files == 3


def test_the_hour_is_local() -> None:
    assert [local_hour(at_hour(hour)) for hour in range(24)] == list(range(24))
