"""The lag rows of stores that a Java broker wrote, against Apache's own description of them, recounted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.topics import MARK_GROUPS
from pocketmq.tools.lag.cold import store_rows
from pocketmq.tools.lag.rows import COLUMNS, LagRow, LagVerdict
from pocketmq.tools.stores.cold_store import open_cold
from pocketmq.tools.stores.locations import StoreLocation

from ...broker.pop.popping import GROUP, TOPIC, Popping
from ...recorded import by_size, expected, is_accepted, recorded_names, recorded_store, settings
from .oracle import recount

ACCEPTED = [name for name in recorded_names() if is_accepted(name)]
#: Later than every recording.
NOW_MS = 1_795_300_000_000
COUNTED = COLUMNS[4:10]


def rows_of(store: Path, given: dict[str, str], now_ms: int = NOW_MS) -> list[LagRow]:
    location = StoreLocation(str(store), str(store), "broker-a")
    return store_rows(open_cold(location, now_ms=now_ms, given=given), now_ms)


def counted(rows: Iterable[LagRow]) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Return the numbers of rows with a committed offset."""
    return {
        row.key[1:]: {name: row.to_json()[name] for name in COUNTED}
        for row in rows
        if row.facts.committed_offset is not None
    }


def write_offsets(store: Path, offsets: dict[str, dict[str, int]]) -> None:
    (store / "config").mkdir(exist_ok=True)
    (store / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))


def invented(document: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return offsets of three groups all over the queues of DOCUMENT: below, inside, at and above their bounds."""
    offsets: dict[str, dict[str, int]] = {}
    for number, queue in enumerate(document["queues"]):
        low, high = max(0, queue["minOffset"]), queue["maxOffset"]
        places = [0, low, (low + high) // 2, high, high + 3]
        for step, group in enumerate(("G1", "G2", "G3")):
            key = f"{queue['topic']}@{group}"
            offsets.setdefault(key, {})[str(queue["queueId"])] = places[(number + step) % 5]
    offsets["NoSuchTopic@G1"] = {"0": 5}
    return offsets


@pytest.mark.parametrize("name", by_size(ACCEPTED))
def test_recorded_offsets_are_judged_exactly(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")

    rows = rows_of(store, settings(name))

    assert counted(rows) == recount(expected(name), NOW_MS)


@pytest.mark.parametrize("name", by_size(ACCEPTED))
def test_offsets_anywhere_are_judged_exactly(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    document = expected(name)
    offsets = invented(document)
    write_offsets(store, offsets)

    rows = rows_of(store, settings(name))

    document["config"]["consumerOffsets"] = offsets
    assert counted(rows) == recount(document, NOW_MS)
    for row in rows:
        low, high, at = row.facts.min_offset, row.facts.max_offset, row.facts.committed_offset
        assert (row.verdict is LagVerdict.QUEUE_MISSING) == (high is None)
        if at is not None and high is not None:
            assert (row.verdict is LagVerdict.OFFSET_PAST_END) == (at > high)
            assert (row.verdict is LagVerdict.EXPIRED_UNREAD) == (low is not None and at < low)
            is_unread = row.verdict in (
                LagVerdict.LAGGING,
                LagVerdict.RETRYING,
                LagVerdict.DEAD_LETTERS,
            )
            assert is_unread == ((low or 0) <= at < high)


def test_lag_is_what_mqadmin_said_of_the_running_broker(tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")

    rows = {row.key[1:]: row for row in rows_of(store, settings("consumption"))}

    # mqadmin consumerProgress -g G_lagging: broker offset, consumer offset, diff
    said = {0: (38, 1, 37), 1: (38, 30, 8), 2: (37, 6, 31), 3: (37, 30, 7)}
    for queue_id, (end, committed, diff) in said.items():
        row = rows["Consumed", queue_id, "G_lagging"]
        assert (row.facts.max_offset, row.facts.committed_offset, row.lag) == (end, committed, diff)


def test_retries_dead_letters_and_popped_messages_are_told(tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")

    rows = {row.key[1:]: row for row in rows_of(store, settings("consumption"))}

    assert rows["%DLQ%G_failing", 0, "G_failing"].verdict is LagVerdict.DEAD_LETTERS
    assert rows["%DLQ%G_failing", 0, "G_failing"].reasons == ("4 dead letters",)
    assert rows["%RETRY%G_pop_Popped", 0, "G_pop"].verdict is LagVerdict.RETRYING
    assert rows["%RETRY%G_lagging", 0, "G_lagging"].verdict is LagVerdict.NEVER_COMMITTED
    assert rows["Failing", 0, "G_failing"].verdict is LagVerdict.OK
    assert "the group has 4 dead letters" in rows["Failing", 0, "G_failing"].reasons
    held = rows["Popped", 1, "G_pop"]
    assert held.verdict is LagVerdict.IN_FLIGHT
    assert held.facts.held == 5
    # Offsets 1 and 2 of an ordered group: 0 is acknowledged.
    assert rows["PoppedFifo", 0, "G_pop_fifo"].facts.held == 2


@pytest.mark.parametrize("group", sorted(MARK_GROUPS))
def test_marks_of_the_broker_are_no_readers(group: str, tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")
    expected = [row.key for row in rows_of(store, settings("consumption"))]
    path = store / "config" / "consumerOffset.json"
    text = path.read_text()
    path.write_text(
        text.replace('"offsetTable":{', f'"offsetTable":{{"%DLQ%G_failing@{group}":{{0:2}},', 1)
    )
    assert path.read_text() != text

    rows = rows_of(store, settings("consumption"))

    assert [row.key for row in rows] == expected


def test_what_waits_is_told_however_old_it_is(tmp_path: Path) -> None:
    store, month_ms = recorded_store("consumption", tmp_path / "store"), 30 * 86_400_000

    rows = {row.key[1:]: row for row in rows_of(store, settings("consumption"), NOW_MS + month_ms)}

    # Java's broker would not look at timers, check points among them, that are overdue for more than a week.
    assert rows["Popped", 1, "G_pop"].facts.held == 5
    assert rows["PoppedFifo", 0, "G_pop_fifo"].facts.held == 2


def test_what_waits_for_its_time_is_told_of_the_queue_it_goes_to(tmp_path: Path) -> None:
    store = recorded_store("delays", tmp_path / "store")
    write_offsets(store, {"Delayed@G": {"0": 8, "1": 4}, "Timed@G": {"0": 8, "1": 4}})

    rows = rows_of(store, settings("delays"))

    # 15 by delay level and 9 timed; four timed ones were recalled.
    assert {row.verdict for row in rows} == {LagVerdict.DELAYED}
    by_topic = {
        topic: sum(row.facts.delayed or 0 for row in rows if row.facts.topic == topic)
        for topic in ("Delayed", "Timed")
    }
    assert by_topic == {"Delayed": 15, "Timed": 9}


def test_a_known_group_is_told_of_queues_in_which_it_never_committed(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")
    write_offsets(store, {"BasicFour@G": {"2": 8}})

    rows = rows_of(store, {})

    assert [(row.facts.queue_id, str(row.verdict), row.lag) for row in rows] == [
        (0, "never_committed", rows[0].facts.max_offset),
        (1, "never_committed", rows[1].facts.max_offset),
        (2, "ok", 0),
        (3, "never_committed", rows[3].facts.max_offset),
    ]
    assert all(row.facts.max_offset for row in rows)


def test_a_negative_offset_is_none(tmp_path: Path) -> None:
    store = recorded_store("basic", tmp_path / "store")
    write_offsets(store, {"BasicFour@G": {"0": -1}})

    row = rows_of(store, {})[0]

    assert (row.facts.committed_offset, row.verdict) == (None, LagVerdict.NEVER_COMMITTED)


def test_a_row_has_exactly_the_names_of_the_report(tmp_path: Path) -> None:
    store = recorded_store("consumption", tmp_path / "store")

    document = rows_of(store, settings("consumption"))[0].to_json()

    assert list(document) == [
        "broker", "topic", "queue", "group", "committed_offset", "min_offset", "max_offset", "lag",
        "lag_bytes", "oldest_unread_age_ms", "skipped", "verdict", "reasons",
    ]  # fmt: skip
    assert json.loads(json.dumps(document)) == document


class TestOurPops:
    """What our broker has delivered stands in its journal; it commits what is finished."""

    @pytest.mark.parametrize("clean", [True, False], ids=["stopped", "running"])
    async def test_what_is_delivered_is_held(self, tmp_path: Path, clean: bool) -> None:
        broker = Popping(tmp_path)
        broker.send(*(b"%d" % number for number in range(8)))
        got = broker.pop(8)
        broker.ack(got[1], got[3])
        await broker.safe()
        broker.offsets.save()
        await broker.stop(clean=clean)

        (row,) = popped_rows(tmp_path)

        assert row.verdict is LagVerdict.IN_FLIGHT
        assert row.facts.held == 6
        assert row.reasons[0].startswith("6 messages popped and not acknowledged")
        assert (row.facts.committed_offset, row.lag) == (0, 8)

    async def test_what_is_behind_them_is_unread(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path)
        broker.send(*(b"%d" % number for number in range(8)))
        broker.pop(3)
        await broker.stop()

        (row,) = popped_rows(tmp_path)

        assert row.verdict is LagVerdict.LAGGING
        assert row.reasons[0] == "5 messages unread"
        assert row.reasons[1].startswith("3 messages popped")

    async def test_a_group_that_has_finished_everything_is_well(self, tmp_path: Path) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b")
        broker.ack(*broker.pop())
        await broker.stop()

        (row,) = popped_rows(tmp_path)

        assert row.verdict is LagVerdict.OK

    async def test_a_journal_of_before_another_brokers_stop_is_not_believed(
        self, tmp_path: Path
    ) -> None:
        broker = Popping(tmp_path)
        broker.send(b"a", b"b")
        broker.pop()
        broker.offsets.save()
        await broker.stop(clean=False)
        Popping(tmp_path).store.close()

        (row,) = popped_rows(tmp_path)

        assert row.facts.held is None
        assert row.verdict is LagVerdict.LAGGING


def popped_rows(path: Path) -> list[LagRow]:
    found = rows_of(path / "store", {})
    return [row for row in found if row.facts.topic == TOPIC and row.facts.group == GROUP]
