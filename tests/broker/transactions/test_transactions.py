"""What becomes of transactions: committed once, rolled back never, whoever asks how often."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path

import pytest

from pocketmq.broker.transactions import transactions
from pocketmq.proto.errors import (
    AlreadyDelivered,
    DiskFailure,
    InvalidArgument,
    Overloaded,
    PocketMQError,
    StoreFull,
    TransactionNotFound,
    TransactionResolved,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.run import Run
from pocketmq.proto.topics import HALF_TOPIC, OP_HALF_TOPIC

from ...fakes import FaultyDisk
from ...runs import make_run
from .transacting import hall


@pytest.mark.long
async def test_any_number_of_others_of_the_same_hash_hide_no_outcome(tmp_path: Path) -> None:
    ids = ["".join(parts) for parts in product(("Aa", "BB"), repeat=9)]
    async with hall(tmp_path) as broker:
        for number, unique in enumerate(ids):
            broker.begin(unique)
            kind = pb.ROLLBACK if number == 1 else pb.COMMIT
            assert not (await broker.end(unique, kind)).repeated
        broker.transactions._outcomes._recent.clear()

        calls = [broker.ask(ids[0]), broker.ask(ids[1], pb.ROLLBACK), broker.ask(ids[1])]
        for _ in range(20):
            await asyncio.sleep(0)

        assert [call.answer.repeated for call in calls[:2]] == [True, True]
        assert isinstance(calls[2].error, TransactionResolved)


async def test_a_committed_message_lies_in_its_queue_as_the_answer_says(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        begun = broker.begin("a", queue=2)
        assert broker.bodies(queue=2) == []
        assert broker.transactions.open_count == 1

        reply = await broker.end("a")

        (record,) = broker.records("T", 2)
        assert record.body == b"a"
        assert record.sys_flag == 8
        assert record.prepared_transaction_offset == begun.log_offsets[0]
        assert (reply.topic, reply.queue, reply.queue_offset) == ("T", 2, 0)
        assert reply.log_offset == record.log_offset
        assert reply.store_timestamp_ms == record.store_timestamp_ms
        assert not reply.repeated
        assert [op.body for op in broker.records(OP_HALF_TOPIC)] == [b"0,"]
        assert broker.transactions.open_count == 0


async def test_a_rolled_back_message_is_nowhere(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a")

        reply = await broker.end("a", pb.ROLLBACK)

        assert reply.queue_offset == reply.log_offset == -1
        assert broker.bodies() == []
        assert [op.body for op in broker.records(OP_HALF_TOPIC)] == [b"0,"]
        assert broker.transactions.open_count == 0


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("resolution", [pb.COMMIT, pb.ROLLBACK])
async def test_an_outcome_may_be_repeated_and_not_changed(
    tmp_path: Path, resolution: pb.Resolution, *, restarted: bool
) -> None:
    other = pb.ROLLBACK if resolution == pb.COMMIT else pb.COMMIT
    async with hall(tmp_path) as broker:
        broker.begin("a")
        first = await broker.end("a", resolution)
        if restarted:
            await broker.stop()
    async with hall(tmp_path) as broker:
        again = await broker.end("a", resolution)
        with pytest.raises(TransactionResolved, match=r"'a' was .* already"):
            await broker.end("a", other)

        first.repeated = True
        assert again == first
        assert len(broker.bodies()) == (resolution == pb.COMMIT)


async def test_outcomes_of_one_turn_share_op_messages(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a", "b", "c", topic="T", queue=0)
        broker.begin("d", topic="U", queue=1)
        calls = [
            broker.ask("c"),
            broker.ask("d", topic="U"),
            broker.ask("b", pb.ROLLBACK),
            broker.ask("a"),
            broker.ask("a"),
        ]
        with pytest.raises(TransactionResolved):
            broker.ask("a", pb.ROLLBACK)
        await asyncio.sleep(0)

        assert broker.bodies() == ["a", "c"]
        assert broker.bodies("U", 1) == ["d"]
        assert [op.body for op in broker.records(OP_HALF_TOPIC)] == [b"0,2,3,", b"1,"]
        assert [call.answer.repeated for call in calls] == [False, False, False, False, True]
        assert [call.answer.queue_offset for call in calls] == [1, 0, -1, 0, 0]


async def test_large_messages_are_committed_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_CHUNK_BYTES", 1_000)
    ids = [f"t{number}" for number in range(20)]
    async with hall(tmp_path) as broker:
        broker.begin(*ids)
        calls = [broker.ask(one) for one in ids]
        await asyncio.sleep(0)
        done = sum(len(call.answers) for call in calls)
        assert 0 < done < 10
        with pytest.raises(TransactionResolved):
            broker.ask("t19", pb.ROLLBACK)
        for _ in range(10):
            await asyncio.sleep(0)
        assert broker.bodies() == ids

        broker.begin("a", "b", own="x" * 2_000)
        calls += [broker.ask("a"), broker.ask("b")]
        await broker.stop()
        assert [len(call.answers) for call in calls] == [1] * 22
        assert [call.error for call in calls] == [None] * 22


async def test_bad_requests_name_what_is_wrong_and_store_nothing(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        begun = broker.begin("a", "other")
        end = broker.store.max_log_offset
        elsewhere = int(begun.log_offsets[1])

        with pytest.raises(TransactionNotFound, match="no half message of transaction 'nobody'"):
            await broker.end("nobody")
        with pytest.raises(
            TransactionNotFound, match="does not belong to group 'Q': only the group"
        ):
            await broker.end("a", group="Q")
        with pytest.raises(InvalidArgument, match="about a message for another topic"):
            await broker.end("a", topic="U")
        with pytest.raises(InvalidArgument, match="half_log_offset is"):
            await broker.end("a", half_log_offset=elsewhere)
        with pytest.raises(InvalidArgument, match="half_log_offset is"):
            await broker.end("a", half_log_offset=end + 100)
        with pytest.raises(InvalidArgument, match="half_log_offset is -1"):
            await broker.end("a", half_log_offset=-1)
        with pytest.raises(InvalidArgument, match="resolution is 7"):
            await broker.end("a", 7)  # type: ignore[arg-type]
        for empty in ("group", "topic", "transaction_id"):
            fields = {"group": "P", "topic": "T", "transaction_id": "a"} | {empty: ""}
            request = pb.EndTransactionRequest(
                group=fields["group"],
                topic=fields["topic"],
                transaction_id=fields["transaction_id"],
                resolution=pb.COMMIT,
            )
            with pytest.raises(InvalidArgument, match=f"{empty} is empty"):
                broker.transactions.end(request, None)  # type: ignore[arg-type]

        assert broker.store.max_log_offset == end
        assert broker.transactions.open_count == 2


async def test_an_unspecified_outcome_leaves_it_open(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a")
        reply = await broker.end("a", pb.RESOLUTION_UNSPECIFIED)

        assert reply.queue_offset == -1
        assert broker.transactions.open_count == 1


async def test_the_number_of_open_half_messages_is_bounded(tmp_path: Path) -> None:
    async with hall(tmp_path, transactions_open_max=3) as broker:
        broker.begin("a", "b")
        broker.transactions.check_room(1)
        with pytest.raises(Overloaded, match="3 transactions are open, the limit is 3"):
            broker.transactions.check_room(1)  # Both are sent in one turn.
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            broker.transactions.check_room(2)
        await broker.end("a")

        broker.transactions.check_room(2)


async def test_a_message_that_was_sent_twice_is_one_transaction(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        first = broker.begin("a")
        broker.begin("a")
        assert broker.transactions.open_count == 1

        await broker.end("a", half_log_offset=int(first.log_offsets[0]))

        assert broker.bodies() == ["a"]
        assert [op.body for op in broker.records(OP_HALF_TOPIC)] == [b"1,0,"]
    assert await reopened(tmp_path) == []


async def test_the_same_id_in_two_groups_is_two_transactions(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a", queue=0)
        broker.begin("a", queue=1, group="Q")

        await broker.end("a", pb.ROLLBACK)
        await broker.end("a", group="Q")

        assert broker.bodies(queue=0) == []
        assert broker.bodies(queue=1) == ["a"]


async def test_a_time_of_its_own_ends_what_the_sender_may_say(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("early", "late", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        await broker.clock.advance(59_000)
        await broker.end("early")
        await broker.clock.advance(2_000)

        with pytest.raises(AlreadyDelivered, match="within 60000 ms"):
            await broker.end("late")
        await broker.end("late", from_check=True)

        assert broker.bodies() == ["early", "late"]


async def test_what_the_store_refuses_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a", "b")
        full = StoreFull("full")
        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "append_many", lambda runs: [full] * len(runs))
            for unique, resolution in (("a", pb.COMMIT), ("b", pb.ROLLBACK)):
                with pytest.raises(StoreFull):
                    await broker.end(unique, resolution)
        assert broker.transactions.open_count == 2

        await broker.end("a")
        await broker.end("b", pb.ROLLBACK)
        assert broker.bodies() == ["a"]


async def test_a_half_message_that_cannot_be_read_costs_its_own_outcome_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hall(tmp_path) as broker:
        bad = broker.begin("a", "b").log_offsets[0]
        read_at = broker.store.read_at

        def fail_at_first(log_offset: int, size: int) -> bytes | None:
            if log_offset == bad:
                raise DiskFailure("Input/output error", path="commitlog", reason="EIO")
            return read_at(log_offset, size)

        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "read_at", fail_at_first)
            calls = [broker.ask("a"), broker.ask("b")]
            for _ in range(3):
                await asyncio.sleep(0)
        assert isinstance(calls[0].error, DiskFailure)
        assert calls[1].error is None
        assert broker.bodies() == ["b"]

        await broker.end("a")

        assert broker.bodies() == ["b", "a"]


async def test_a_commit_whose_mark_fails_is_marked_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a", "b")
        append = broker.store.append_many

        def refuse_ops(runs: list[Run]) -> list[object]:
            if runs[0].topic == OP_HALF_TOPIC:
                return [StoreFull("full")]
            return list(append(runs))

        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "append_many", refuse_ops)
            assert not (await broker.end("a")).repeated
        assert (await broker.end("a")).repeated
        await broker.end("b", pb.ROLLBACK)

        ops = broker.records(OP_HALF_TOPIC)
        assert [(op.body, op.properties.get("COPIED")) for op in ops] == [
            (b"0,", "true"),
            (b"1,", None),
        ]
        assert broker.bodies() == ["a"]


async def test_with_synchronous_flushing_the_answer_waits_for_the_device(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a")
        waiting: list[object] = []
        broker.appends.when_safe = (  # type: ignore[method-assign]
            lambda end_offset, done: waiting.append((end_offset, done))
        )
        call = broker.ask("a")
        await asyncio.sleep(0)
        assert call.answers == []
        ((end_offset, done),) = waiting  # type: ignore[misc]
        assert end_offset == broker.store.max_log_offset  # type: ignore[has-type]
        done(None)  # type: ignore[has-type]
        assert call.answer.queue_offset == 0


async def reopened(path: Path) -> list[str]:
    """Return the ids that are open when the store at PATH is opened."""
    async with hall(path) as broker:
        halves = broker.transactions._halves.open
        halves.check()
        return sorted(half.transaction_id for half in halves)


async def test_what_was_open_at_a_stop_is_open_afterwards(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a", "b", "c")
        await broker.end("b")
    assert await reopened(tmp_path) == ["a", "c"]
    async with hall(tmp_path) as broker:
        await broker.end("a")
        await broker.end("c", pb.ROLLBACK)
        assert broker.bodies() == ["b", "a"]
    assert await reopened(tmp_path) == []


async def test_progress_never_passes_an_open_half_message(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a", "b", "c", "d")
        await broker.end("a")
        await broker.end("c")
        broker.store.flush()
        broker.store.tick()
        await broker.stop()
        assert broker.progress() == (1, 1)
    async with hall(tmp_path) as broker:
        await broker.end("b")
        await broker.end("d")
        await broker.stop()
        assert broker.progress() == (4, 4)


async def test_progress_waits_for_the_device(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a")
        await broker.end("a")
        assert broker.progress()[0] in (None, 0)

        broker.store.flush()
        broker.transactions._halves._progress._flushed(broker.store.max_log_offset)
        assert broker.progress() == (1, 1)


async def test_a_commit_without_its_mark_is_found_after_a_kill(tmp_path: Path) -> None:
    async with hall(tmp_path) as broker:
        broker.begin("a", "b")
        append = broker.store.append_many

        def lose_ops(runs: list[Run]) -> list[object]:
            outcomes: list[object] = [PocketMQError("killed")]
            return outcomes if runs[0].topic == OP_HALF_TOPIC else list(append(runs))

        broker.store.append_many = lose_ops  # type: ignore[assignment, method-assign]
        await broker.end("a")
        await broker.kill()
        broker.store.health.closed = True

    async with hall(tmp_path) as broker:
        assert broker.transactions.open_count == 1
        assert (await broker.end("a")).repeated
        assert broker.bodies() == ["a"]
        await broker.end("b")
        assert broker.bodies() == ["a", "b"]
        assert len(broker.records(HALF_TOPIC)) == 2


async def test_a_half_message_that_nobody_can_resolve_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hall(tmp_path) as broker:
        broker.appends.append([make_run(HALF_TOPIC, 0, [b"x"], {"REAL_TOPIC": "T"})])
        broker.begin("a")

        assert "cannot be resolved" in caplog.text
        assert broker.transactions.open_count == 1
        await broker.stop()
        assert broker.progress() == (1, None)


async def test_a_half_message_that_java_put_back_is_resolved_by_the_mark_of_its_first_place(
    tmp_path: Path,
) -> None:
    """While its own time lasts a Java broker puts it back, and its mark names the place where it lay first."""
    async with hall(tmp_path) as broker:
        broker.begin("a", "b", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        first, second = broker.records(HALF_TOPIC)
        for half in (first, second):
            moved = {"TRAN_PREPARED_QUEUE_OFFSET": str(half.queue_offset)}
            again = make_run(HALF_TOPIC, 0, [half.body], dict(half.properties) | moved)
            broker.appends.append([again])
        op = make_run(OP_HALF_TOPIC, 0, [b"0,"], {"TAGS": "d"})
        broker.appends.append([op])
        await broker.stop()
    assert await reopened(tmp_path) == ["b"]


# --- what the log has is committed, whatever else failed


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_commit_that_only_its_queue_could_not_take_is_one(
    tmp_path: Path, *, restarted: bool
) -> None:
    disk = FaultyDisk()
    async with hall(tmp_path, disk=disk) as broker:
        broker.begin("a", "b")
        disk.run_full("consumequeue/T")

        assert (await broker.end("a")).queue_offset == 0
        with pytest.raises(TransactionResolved, match="committed already"):
            await broker.end("a", pb.ROLLBACK)
        assert (await broker.end("a")).repeated
        with pytest.raises(StoreFull):
            await broker.end("b")
        if restarted:
            await broker.kill()
            broker.store.health.closed = True
        else:
            disk.heal()
            broker.store.tick()
            assert broker.bodies() == ["a"]

    disk.heal()
    async with hall(tmp_path, disk=disk) as broker:
        assert (await broker.end("a")).repeated
        assert not (await broker.end("b")).repeated
        assert broker.bodies() == ["a", "b"]


async def test_a_transaction_whose_half_message_is_late_is_not_said_to_be_none(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    async with hall(tmp_path, disk=disk) as broker:
        disk.run_full(f"consumequeue/{HALF_TOPIC}")
        broker.begin("a")

        with pytest.raises(StoreFull, match="not in its queue yet"):
            await broker.end("a")
        disk.heal()
        broker.store.tick()

        assert not (await broker.end("a")).repeated
        assert broker.bodies() == ["a"]


async def test_a_mark_that_only_its_queue_could_not_take_rolls_back(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with hall(tmp_path, disk=disk) as broker:
        broker.begin("a")
        disk.run_full(f"consumequeue/{OP_HALF_TOPIC}")

        await broker.end("a", pb.ROLLBACK)

        with pytest.raises(TransactionResolved, match="rolled back already"):
            await broker.end("a")
        disk.heal()
    async with hall(tmp_path, disk=disk) as broker:
        assert broker.transactions.open_count == 0
        assert len(broker.records(OP_HALF_TOPIC)) == 1
        assert broker.bodies() == []
