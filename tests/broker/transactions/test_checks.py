"""Checks come when they are due, to one who listens, so often and not more often."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pocketmq.broker.transactions import checks
from pocketmq.broker.transactions.open_halves import OpenHalf
from pocketmq.broker.transactions.records import HalfCopies
from pocketmq.proto.access.policies import PUB, of_topic
from pocketmq.proto.errors import InvalidArgument, InvalidName, StoreFull, TransactionResolved
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import decode_record
from pocketmq.proto.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC

from ...fake_calls import FakeUser
from ...runs import make_run
from .transacting import GROUP, Hall, hall

SECOND_MS = 1_000


async def test_the_first_check_comes_after_six_seconds_exactly(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        stream, _ = broker.listen()
        begun = broker.begin("a", queue=3)
        await broker.clock.advance(5_999)
        assert stream.checks == []
        await broker.clock.advance(1)

        (check,) = stream.checks
        assert (check.group, check.topic, check.transaction_id, check.times) == ("P", "T", "a", 1)
        first, again = broker.records(HALF_TOPIC)
        assert check.half_log_offset == again.log_offset
        assert decode_record(check.record) == again
        assert again.store_timestamp_ms == first.store_timestamp_ms + 6_000
        assert again.properties == {**first.properties, "TRANSACTION_CHECK_TIMES": "1"}
        assert [op.body for op in broker.records(OP_HALF_TOPIC)] == [b"0,"]

        # Either place is the half message's.
        await broker.end("a", half_log_offset=int(begun.log_offsets[0]), from_check=True)
        (committed,) = broker.records("T", 3)
        assert committed.prepared_transaction_offset == again.log_offset
        await broker.clock.advance(3_600_000)
        assert len(stream.checks) == 1


@pytest.mark.parametrize("step_ms", [-86_400_000, -3_600_000, 3_600_000, 86_400_000])
async def test_checks_keep_their_pace_however_the_wall_clock_is_set(
    tmp_path: Path, step_ms: int
) -> None:
    async with hall(tmp_path) as broker:
        interval_ms = broker.config.transaction_check_interval_ms
        stream, _ = broker.listen()
        broker.begin("a")
        await broker.clock.advance(3_000)
        broker.clock.step(step_ms)
        await broker.clock.advance(2_999)
        assert stream.checks == []
        await broker.clock.advance(1)
        assert len(stream.checks) == 1
        broker.begin("b")

        broker.clock.step(-step_ms)
        await broker.clock.advance(interval_ms - 1)
        assert [check.transaction_id for check in stream.checks] == ["a", "b"]
        await broker.clock.advance(1)
        assert [check.transaction_id for check in stream.checks] == ["a", "b", "a"]


async def test_fifteen_checks_then_it_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hall(tmp_path) as broker:
        stream, _ = broker.listen()
        start_ms = broker.clock.now_ms()
        broker.begin("a")
        with caplog.at_level(logging.WARNING):
            await broker.clock.advance(6_000 + 15 * 30_000 - 1)
            assert broker.transactions.open_count == 1
            await broker.clock.advance(1)

        due = [start_ms + 6_000 + 30_000 * number for number in range(15)]
        stored = [record.store_timestamp_ms for record in broker.records(HALF_TOPIC)]
        assert stored == [start_ms, *due]
        assert [check.times for check in stream.checks] == list(range(1, 16))
        (given_up,) = broker.records(CHECK_MAX_TIME_TOPIC)
        assert given_up.store_timestamp_ms == start_ms + 6_000 + 15 * 30_000
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "15"
        assert given_up.properties["REAL_TOPIC"] == "T"
        assert broker.topics.get(CHECK_MAX_TIME_TOPIC).read_queues == 1
        assert "transaction given up group=P topic=T id=a checks=15" in caplog.text
        assert broker.transactions.open_count == 0

        with pytest.raises(TransactionResolved, match="'a' was given up already"):
            await broker.end("a")
        assert (await broker.end("a", pb.ROLLBACK)).repeated
        await broker.stop()
    async with hall(tmp_path) as broker:
        assert broker.transactions.open_count == 0
        with pytest.raises(TransactionResolved, match="given up"):
            await broker.end("a")


async def test_the_count_goes_on_while_nobody_listens(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a")
        await broker.clock.advance(6_000 + 30_000)
        stream, _ = broker.listen()
        other, _ = broker.listen("Q")
        await broker.clock.advance(30_000)

        assert [check.times for check in stream.checks] == [3]
        assert other.checks == []


async def test_listeners_of_a_group_are_asked_in_turn_those_of_the_topic_first(
    tmp_path: Path,
) -> None:
    async with hall(tmp_path) as broker:
        of_other, _ = broker.listen("P", "Other")
        one, _ = broker.listen("P", "T")
        two, two_end = broker.listen("P", "T", "U")
        broker.begin("a", "b", "c", "d")
        await broker.clock.advance(6_000)
        assert [check.transaction_id for check in one.checks] == ["a", "c"]
        assert [check.transaction_id for check in two.checks] == ["b", "d"]

        two_end.on_close()
        one.waiting_bytes = 1024 * 1024  # It does not read what it is sent.
        await broker.clock.advance(30_000)
        assert [len(stream.checks) for stream in (of_other, one, two)] == [4, 2, 2]


async def test_a_listener_whose_user_may_not_send_to_the_topic_is_not_asked(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        denied, _ = broker.listen("P", user=FakeUser("eve", of_topic("T", PUB)))
        broker.begin("a")
        await broker.clock.advance(6_000)
        allowed, _ = broker.listen("P", user=FakeUser("alice"))
        await broker.clock.advance(30_000)
        assert [len(stream.checks) for stream in (denied, allowed)] == [0, 1]


async def test_a_listener_may_leave_and_change_its_topics(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        stream, receiver = broker.listen("P", "T")
        receiver.on_message(pb.TransactionListener(group="P", topics=["U"]))
        assert receiver.topics == {"U"}
        with pytest.raises(InvalidArgument, match="open another stream for 'Q'"):
            receiver.on_message(pb.TransactionListener(group="Q"))
        with pytest.raises(InvalidArgument, match="the limit is 10000"):
            receiver.on_message(pb.TransactionListener(group="P", topics=["U"] * 10_001))
        with pytest.raises(InvalidName):
            broker.listen("")
        receiver.on_end()
        receiver.on_close()
        assert stream.is_over

        broker.begin("a")
        await broker.clock.advance(6_000)
        assert stream.checks == []


@pytest.mark.parametrize(
    ("seconds", "first_ms"), [("60", 60_000), ("2", 2_000), ("-1", 6_000), ("soon", 6_000)]
)
async def test_a_message_may_have_a_time_of_its_own_until_the_first_check(
    tmp_path: Path, seconds: str, first_ms: int
) -> None:
    async with hall(tmp_path) as broker:
        stream, _ = broker.listen()
        broker.begin("a", CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
        await broker.clock.advance(first_ms - 1)
        assert stream.checks == []
        await broker.clock.advance(1)
        assert len(stream.checks) == 1
        await broker.clock.advance(30_000)
        assert len(stream.checks) == 2


async def test_checks_go_on_after_a_restart_where_they_were(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        start_ms = broker.clock.now_ms()
        broker.begin("a")
        await broker.clock.advance(6_000 + 30_000 + 10_000)
        await broker.stop()
    async with hall(tmp_path, clock=broker.clock) as broker:
        stream, _ = broker.listen()
        await broker.clock.advance(start_ms + 66_000 - broker.clock.now_ms())
        assert [check.times for check in stream.checks] == [3]
        assert len(broker.records(HALF_TOPIC)) == 4


async def test_what_lay_longer_than_the_store_keeps_messages_is_given_up(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a")
        await broker.stop()
    async with hall(tmp_path) as broker:
        stream, _ = broker.listen()
        broker.clock.start_at(broker.clock.now_ms() + broker.store.config.retention_ms + 1)
        await broker.clock.advance(1)
        assert stream.checks == []
        assert len(broker.records(CHECK_MAX_TIME_TOPIC)) == 1
        assert broker.transactions.open_count == 0


async def test_a_backlog_is_checked_in_chunks_at_its_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_CHUNK", 10)
    async with hall(tmp_path) as broker:
        stream, _ = broker.listen()
        broker.begin(*[f"t{number}" for number in range(95)])
        start_ms = broker.clock.now_ms()
        await broker.clock.advance(6_000)

        assert [check.transaction_id for check in stream.checks] == [f"t{n}" for n in range(95)]
        again = broker.records(HALF_TOPIC)[95:]
        assert {record.store_timestamp_ms for record in again} == {start_ms + 6_000}
        assert [len(op.body.split(b",")) - 1 for op in broker.records(OP_HALF_TOPIC)] == [
            10
        ] * 9 + [5]


async def test_large_messages_are_checked_in_smaller_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_CHUNK_BYTES", 1_000)
    async with hall(tmp_path) as broker:
        stream, _ = broker.listen()
        broker.begin(*[f"t{number}" for number in range(10)], own="x" * 600)
        await broker.clock.advance(6_000)

        assert [check.transaction_id for check in stream.checks] == [f"t{n}" for n in range(10)]
        assert [op.body.count(b",") for op in broker.records(OP_HALF_TOPIC)] == [2] * 5


async def test_checks_are_counted_where_the_message_has_no_room_for_that(tmp_path: Path) -> None:
    async with hall(tmp_path, transaction_checks_max=2) as broker:
        stream, _ = broker.listen()
        # As another broker may have stored it: ours asks for more room.
        run = make_run(
            HALF_TOPIC,
            0,
            [b"a"],
            {
                **{"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "a", "REAL_TOPIC": "T"},
                **{"REAL_QID": "0", "own": "x" * 32_690},
            },
        )
        broker.appends.append([run])
        await broker.clock.advance(200_000)

        assert [check.times for check in stream.checks] == [1, 2]
        assert broker.transactions.open_count == 0
        assert [record.body for record in broker.records(CHECK_MAX_TIME_TOPIC)] == [b"a"]


async def test_a_full_store_is_tried_again_an_interval_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hall(tmp_path) as broker:
        stream, _ = broker.listen()
        broker.begin("a")
        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "append_many", lambda runs: [StoreFull("full")] * len(runs))
            await broker.clock.advance(6_000)
        assert stream.checks == []
        await broker.clock.advance(30_000)
        assert [check.times for check in stream.checks] == [1]


async def test_a_bug_in_a_check_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with hall(tmp_path) as broker:
        stream, _ = broker.listen()
        broker.begin("a")
        with monkeypatch.context() as broken:
            broken.setattr(HalfCopies, "checked", None)
            await broker.clock.advance(6_000)
        assert stream.checks == []
        assert "transaction checks failed" in caplog.text
        broker.begin("b")
        await broker.clock.advance(6_000)
        assert [check.transaction_id for check in stream.checks] == ["b"]
        await broker.clock.advance(24_000)
        assert [check.transaction_id for check in stream.checks] == ["b", "a"]


async def test_entries_of_transactions_that_ended_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_STALE_MIN", 10)
    async with hall(tmp_path) as broker:
        broker.begin("open")
        for number in range(100):
            broker.begin(f"t{number}")
            await broker.end(f"t{number}")
        assert len(waiting(broker)) <= 2 * 1 + 10
        assert waiting(broker)[0][2].transaction_id == "open"


def waiting(broker: Hall) -> list[tuple[int, int, OpenHalf]]:
    return broker.transactions._checks._due


async def test_progress_moves_on_with_the_checks(tmp_path: Path) -> None:
    """A half message that is checked lies further behind: what is below it is done."""
    async with hall(tmp_path) as broker:
        broker.begin("a", "b")
        await broker.clock.advance(6_000)
        await broker.stop()
        assert broker.progress() == (2, 1)
