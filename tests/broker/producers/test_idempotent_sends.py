"""Idempotent runs through the road of a send: stored once, answered each time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from pocketmq.proto.errors import (
    DiskFailure,
    InvalidArgument,
    OutOfOrderSequence,
    PocketMQError,
    ProducerFenced,
    StoreFull,
    UnknownProducer,
)
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.run import Run
from pocketmq.proto.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pocketmq.store.files import MappedFile

from ...numbered import PRODUCER, bodies, numbered_run
from ...runs import bodies_of, records_of
from ..messages.sending import TOPIC, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def errors_of(rig: Rig) -> list[PocketMQError | None]:
    """Return what the runs so far were answered with."""
    return [from_wire(reply.error) if reply.HasField("error") else None for reply in rig.replies]


def places(reply: pb.ProduceReply) -> tuple[int, int]:
    assert not reply.HasField("error"), reply
    return reply.first_queue_offset, reply.first_log_offset


async def test_a_repeat_is_stored_once_and_answered_with_the_same_places(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 3), 0))
    await rig.send(numbered_run(bodies(3, 2), 3))

    await rig.send(numbered_run(bodies(0, 3), 0, run_id=9))

    first, _second, again = rig.replies
    assert places(again) == places(first)
    assert (again.run_id, again.repeated_count, first.repeated_count) == (9, 3, 0)
    assert again.store_timestamp_ms == first.store_timestamp_ms
    assert again.durability == pb.MEMORY
    found = [record.log_offset for record in records_of(rig.store, TOPIC, 0)]
    assert list(again.log_offsets) == found[:3]
    assert bodies_of(rig.store, TOPIC, 0) == bodies(0, 5)


async def test_two_tries_in_one_turn_store_once(rig: Rig) -> None:
    await rig.send(*(numbered_run(bodies(0, 3), 0, run_id=run_id) for run_id in range(3)))

    assert [reply.repeated_count for reply in rig.replies] == [0, 3, 3]
    assert len({places(reply) for reply in rig.replies}) == 1
    assert bodies_of(rig.store, TOPIC, 0) == bodies(0, 3)


async def test_runs_of_one_turn_that_follow_each_other_are_stored_in_order(rig: Rig) -> None:
    await rig.send(*(numbered_run(bodies(n, 2), n, run_id=n) for n in range(0, 20, 2)))

    assert errors_of(rig) == [None] * 10
    assert bodies_of(rig.store, TOPIC, 0) == bodies(0, 20)


async def test_large_and_small_runs_of_one_turn_keep_their_order(rig: Rig) -> None:
    large = bodies(2, 80, size=900)
    await rig.send(
        numbered_run(bodies(0, 2), 0), numbered_run(large, 2), numbered_run(bodies(82, 3), 82)
    )

    assert errors_of(rig) == [None] * 3
    assert bodies_of(rig.store, TOPIC, 0) == [*bodies(0, 2), *large, *bodies(82, 3)]


async def test_a_gap_an_old_epoch_and_an_unknown_producer_are_refused(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 3), 0, epoch=1))

    gap = await rig.refusal(numbered_run(bodies(5, 1), 5, epoch=1))
    old = await rig.refusal(numbered_run(bodies(3, 1), 3, epoch=0))
    unknown = await rig.refusal(numbered_run(bodies(3, 1), 3, producer_id=5))

    assert isinstance(gap, OutOfOrderSequence)
    assert (gap.details["expected"], gap.details["given"]) == ("3", "5")
    assert isinstance(old, ProducerFenced)
    assert isinstance(unknown, UnknownProducer)
    assert bodies_of(rig.store, TOPIC, 0) == bodies(0, 3)


async def test_queues_and_producers_count_for_themselves(rig: Rig) -> None:
    await rig.send(
        numbered_run(bodies(0, 1), 0),
        numbered_run(bodies(0, 1), 0, queue=1),
        numbered_run(bodies(0, 1), 0, producer_id=5),
    )

    assert errors_of(rig) == [None] * 3
    assert bodies_of(rig.store, TOPIC, 0) == [b"0", b"0"]
    assert bodies_of(rig.store, TOPIC, 1) == [b"0"]


async def test_fields_and_records_have_to_agree(rig: Rig) -> None:
    error = await rig.refusal(numbered_run(bodies(0, 2), 0, first_sequence=1))

    assert isinstance(error, InvalidArgument)
    assert error.details["field"] == "PRODUCER_SEQUENCE"


async def test_a_refused_run_takes_no_number(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 1), 0))
    await rig.refusal(numbered_run(bodies(1, 1), 1, queue=99))
    bad = numbered_run(bodies(1, 1), 1)
    bad.records = bad.records[:-1] + b"!"
    await rig.refusal(bad)

    await rig.send(numbered_run(bodies(1, 1), 1))

    assert errors_of(rig) == [None, None]


# --- the device


async def test_a_repeat_to_disk_waits_for_the_device_as_the_first_try_does(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 2), 0, durability=pb.DISK))
    await rig.send(numbered_run(bodies(0, 2), 0, run_id=2, durability=pb.DISK))
    assert rig.replies == []

    rig.report()
    while len(rig.replies) < 2:
        rig.report()

    assert [reply.durability for reply in rig.replies] == [pb.DISK, pb.DISK]
    assert [reply.repeated_count for reply in rig.replies] == [0, 2]
    assert rig.store.flushed_offset == rig.store.max_log_offset


async def test_a_repeat_to_disk_of_what_was_only_in_memory_waits_for_the_device(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 2), 0))
    assert rig.store.flushed_offset < rig.store.max_log_offset

    await rig.send(numbered_run(bodies(0, 2), 0, run_id=2, durability=pb.DISK))
    assert len(rig.replies) == 1
    rig.report()

    assert (rig.replies[1].durability, rig.replies[1].repeated_count) == (pb.DISK, 2)


async def test_a_repeat_on_a_failed_device_is_not_acknowledged(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 2), 0))
    rig.disk.break_syncs("commitlog")
    await rig.send(numbered_run(bodies(2, 1), 2, durability=pb.DISK))
    rig.report()

    error = await rig.refusal(numbered_run(bodies(0, 2), 0))

    assert isinstance(error, DiskFailure)


# --- a full disk


def no_new_log_files(rig: Rig) -> None:
    """From now on the log cannot have another file; what fits the present one goes in."""
    full = StoreFull("no space left")
    rig.disk.fail_create = lambda path: full if "commitlog" in path else None


async def test_a_run_whose_append_failed_is_new_and_nothing_passes_it(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 1), 0))
    large, small = numbered_run(bodies(1, 1, size=3_850), 1), numbered_run(bodies(2, 1), 2)
    no_new_log_files(rig)
    await rig.send(large, small, numbered_run(bodies(0, 1), 0, producer_id=5))
    assert [type(error) for error in errors_of(rig)[1:]] == [StoreFull, StoreFull, type(None)]
    rig.disk.heal()

    await rig.send(large, small)

    assert [reply.repeated_count for reply in rig.replies[4:]] == [0, 0]
    assert bodies_of(rig.store, TOPIC, 0) == [b"0", b"0", *bodies(1, 1, size=3_850), b"2"]


async def test_what_the_log_took_before_the_queues_were_full_is_not_stored_twice(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 3), 0))
    rig.disk.run_full("consumequeue")
    # A queue file holds 20 entries: this run needs the next.
    await rig.send(numbered_run(bodies(3, 30), 3))
    assert errors_of(rig)[-1] is None
    full = await rig.refusal(numbered_run(bodies(3, 30), 3))
    assert isinstance(full, StoreFull), "it cannot be read yet"

    rig.disk.heal()
    await rig.send(numbered_run(bodies(3, 30), 3))

    assert rig.replies[-1].repeated_count == 30
    assert places(rig.replies[-1])[0] == 3
    assert bodies_of(rig.store, TOPIC, 0) == bodies(0, 33)


async def test_of_a_run_that_was_stored_in_part_the_rest_is_stored(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = rig.store.append

    def first_only(runs: Sequence[Run]) -> NoReturn:
        """Leave in the log what a kill between two parts leaves there."""
        append(runs[0])
        raise StoreFull("no room")

    delayed = [{"DELAY": "1"} if n % 2 else {} for n in range(6)]
    run = numbered_run(bodies(0, 6, size=600), 0, properties=delayed, each=True)
    await rig.send(numbered_run(bodies(0, 1), 0, producer_id=5))
    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "append_together", first_only)
        await rig.send(run)
    assert isinstance(errors_of(rig)[-1], StoreFull)
    assert len(bodies_of(rig.store, TOPIC, 0)) == 1 + 3
    assert isinstance(await rig.refusal(numbered_run(bodies(6, 1), 6)), OutOfOrderSequence)

    await rig.send(run, numbered_run(bodies(6, 1), 6))

    reply, behind = rig.replies[-2:]
    assert (reply.repeated_count, behind.repeated_count) == (3, 0)
    assert bodies_of(rig.store, TOPIC, 0) == [b"0", *bodies(0, 6, size=600)[::2], b"6"]
    waiting = records_of(rig.store, SCHEDULE_TOPIC, 0)
    assert [record.body for record in waiting] == bodies(0, 6, size=600)[1::2]
    assert list(reply.queue_offsets) == [1, 0, 2, 1, 3, 2]
    assert list(reply.log_offsets)[1::2] == [record.log_offset for record in waiting]
    assert [due > 0 for due in reply.due_ms] == [False, True] * 3


# --- what waits


async def test_delayed_messages_are_stored_once_and_due_at_the_same_time(rig: Rig) -> None:
    due_ms = rig.clock.now_ms() + 60_000
    properties = [{}, {"DELAY": "2"}, {"TIMER_DELIVER_MS": str(due_ms)}, {}]
    run = numbered_run(bodies(0, 4), 0, properties=properties, each=True)
    await rig.send(run)
    await rig.clock.advance(1_500)

    await rig.send(run)

    first, again = rig.replies
    assert (again.repeated_count, again.store_timestamp_ms) == (4, first.store_timestamp_ms)
    assert list(again.queue_offsets) == list(first.queue_offsets)
    assert list(again.log_offsets) == list(first.log_offsets)
    assert list(again.due_ms) == list(first.due_ms)
    assert again.due_ms[2] == due_ms
    assert bodies_of(rig.store, TOPIC, 0) == [b"0", b"3"]
    assert bodies_of(rig.store, SCHEDULE_TOPIC, 1) == [b"1"]
    assert bodies_of(rig.store, TIMER_TOPIC, 0) == [b"2"]


async def test_half_messages_are_stored_once(rig: Rig) -> None:
    half = {"TRAN_MSG": "true", "PGROUP": "G", "UNIQ_KEY": "u"}
    run = numbered_run(bodies(0, 2), 0, properties=[half, {}], each=True)
    await rig.send(run, run)

    assert [reply.repeated_count for reply in rig.replies] == [0, 2]
    assert list(rig.replies[0].log_offsets) == list(rig.replies[1].log_offsets)
    assert bodies_of(rig.store, HALF_TOPIC, 0) == [b"0"]
    assert bodies_of(rig.store, TOPIC, 0) == [b"1"]


async def test_a_run_of_which_some_wait_needs_a_number_in_each_record(rig: Rig) -> None:
    error = await rig.refusal(numbered_run(bodies(0, 2), 0, properties=[{}, {"DELAY": "1"}]))

    assert isinstance(error, InvalidArgument)
    assert error.details["field"] == "PRODUCER_SEQUENCE"


# --- cut up anew


async def test_the_rest_of_a_run_that_is_partly_stored_says_its_own_numbers(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 3), 0))

    await rig.send(numbered_run(bodies(1, 4), 1))

    reply = rig.replies[-1]
    assert (reply.first_queue_offset, reply.repeated_count) == (1, 2)
    records = records_of(rig.store, TOPIC, 0)
    assert [record.body for record in records] == bodies(0, 5)
    assert list(reply.log_offsets) == [record.log_offset for record in records[1:]]
    assert [record.properties.get("PRODUCER_SEQUENCE") for record in records] == [
        f"{PRODUCER:x}:0:0:3",
        None,
        None,
        f"{PRODUCER:x}:0:3:1",
        f"{PRODUCER:x}:0:4:1",
    ]


async def test_a_repeat_of_what_is_too_old_to_be_remembered_has_no_places(rig: Rig) -> None:
    for first in range(7):
        await rig.send(numbered_run(bodies(first, 1), first))

    await rig.send(numbered_run(bodies(0, 1), 0))

    reply = rig.replies[-1]
    assert (reply.repeated_count, reply.first_queue_offset, reply.first_log_offset) == (1, -1, -1)


async def test_a_send_without_numbers_is_as_it_was(rig: Rig) -> None:
    run = numbered_run(bodies(0, 2), 0, producer_id=0)
    await rig.send(run, run)

    assert bodies_of(rig.store, TOPIC, 0) == bodies(0, 2) * 2
    assert len(rig.producers.sequences) == 0


async def test_answers_come_in_the_order_of_the_runs(rig: Rig) -> None:
    await rig.send(numbered_run(bodies(0, 1), 0, run_id=1))
    rig.replies.clear()

    for run_id, first in enumerate((1, 0, 2)):
        rig.sends.send(numbered_run(bodies(first, 1), first, run_id=run_id), rig.replies.append)
    await asyncio.sleep(0)

    assert [reply.run_id for reply in rig.replies] == [0, 1, 2]


async def test_a_failed_run_is_answered_where_the_log_cannot_be_read_either(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmapped(file: MappedFile) -> NoReturn:
        raise DiskFailure("no map on a read-only file system")

    await rig.send(numbered_run(bodies(0, 1), 0))
    monkeypatch.setattr(MappedFile, "view", property(unmapped))
    rig.disk.break_writes("commitlog")

    await rig.send(numbered_run(bodies(1, 1), 1))

    assert [type(error) for error in errors_of(rig)] == [type(None), DiskFailure]
