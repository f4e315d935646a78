"""Whoever reads, and whatever acts on messages, of a master knows of those only that are confirmed."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pocketmq.proto import properties as names
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.recall_handle import encode_handle
from pocketmq.proto.record import SYS_PREPARED, encode_run

from ...fake_calls import FakeStream
from ...runs import BORN, bodies_of
from .mastered import TOPIC, Fetcher, Mastered, Sender, bodies_in

V2 = "apache.rocketmq.v2.MessagingService"


def kept(mastered: Mastered) -> list[bytes]:
    """Return the bodies that TOPIC has, whether they are confirmed or not."""
    store = mastered.store
    store.confirm(None)
    found = bodies_of(store, TOPIC, 0)
    store.confirm(mastered.mastership.confirm)
    return found


# --- fetches

EITHER_FETCH = pytest.mark.parametrize(
    "wanted",
    [{}, {"filter": pb.Filter(kind=pb.Filter.TAG, expression="a")}],
    ids=["all", "filtered"],
)


@EITHER_FETCH
async def test_a_fetch_that_waits_is_woken_when_messages_are_confirmed(
    tmp_path: Path, wanted: dict[str, Any]
) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender, fetcher = Sender(mastered), Fetcher(mastered)
        fetcher.wait(**wanted)
        await sender.send(b"1", b"2", properties={"TAGS": "a"})
        await mastered.turns()
        assert fetcher.bodies == []

        mastered.mastership.raise_confirm()
        await mastered.turns()

        assert fetcher.bodies == [[b"1", b"2"]]
        assert fetcher.stream.sent[0].max_offset == 2


@EITHER_FETCH
async def test_a_reader_that_is_ahead_of_what_is_confirmed_waits(
    tmp_path: Path, wanted: dict[str, Any]
) -> None:
    """It read what another master had confirmed; that it is ahead is no error, and no reason to spin."""
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender, fetcher = Sender(mastered), Fetcher(mastered)
        await sender.send(b"1", b"2", properties={"TAGS": "a"})
        fetcher.wait(offset=2, **wanted)
        fetcher.fetch(offset=1, **wanted)
        await sender.send(b"3", properties={"TAGS": "a"})
        await mastered.turns()
        assert fetcher.bodies == [[]]

        mastered.mastership.raise_confirm()
        await mastered.turns()

        assert fetcher.bodies == [[], [b"3"]]


async def test_a_fetch_for_much_counts_what_is_confirmed(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender, fetcher = Sender(mastered), Fetcher(mastered)
        fetcher.fetch(min_bytes=700, max_wait_ms=60_000)
        await sender.send(b"x" * 100)
        first = mastered.store.max_log_offset
        await sender.send(b"y" * 1_000)
        mastered.mastership.raise_confirm(first)
        await mastered.turns()
        assert fetcher.bodies == []

        mastered.mastership.raise_confirm()
        await mastered.turns()

        assert [len(bodies) for bodies in fetcher.bodies] == [2]


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20))]
)
async def test_readers_see_the_confirmed_prefix_and_all_of_it(tmp_path: Path, seed: int) -> None:
    """Sends, confirms and fetches at random: each answer is what is confirmed by then, from its offset on."""
    random = Random(seed)
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender, fetcher = Sender(mastered), Fetcher(mastered)
        ends: list[int] = []  # Of each message, in the log.
        offset = sent = 0
        is_waiting = False
        for _ in range(150):
            match random.randrange(4):
                case 0:
                    count = random.randint(1, 5)
                    await sender.send(*(b"%d" % number for number in range(sent, sent + count)))
                    ends += [0] * (count - 1) + [mastered.store.max_log_offset]
                    sent += count
                case 1:
                    runs = [end for end in ends if end]
                    if runs:
                        mastered.mastership.raise_confirm(random.choice(runs))
                        await mastered.turns(3)
                case 2 if not is_waiting:
                    is_waiting = True
                    fetcher.wait(offset)
                case _:
                    await mastered.turns(3)
            seen = sum(map(len, fetcher.bodies))
            confirmed = max(
                (
                    at + 1
                    for at, end in enumerate(ends)
                    if end and end <= mastered.mastership.confirm
                ),
                default=0,
            )
            assert seen <= confirmed
            assert [body for bodies in fetcher.bodies for body in bodies] == [
                b"%d" % number for number in range(seen)
            ]
            if seen > offset:
                offset, is_waiting = seen, False
            assert not is_waiting or offset == confirmed
        mastered.mastership.raise_confirm()
        for _ in range(sent):
            await mastered.turns(3)
            fetcher.fetch(sum(map(len, fetcher.bodies)))
        assert sum(map(len, fetcher.bodies)) == sent


async def test_receives_lend_what_is_confirmed(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        sender, stream = Sender(mastered), FakeStream(metadata={"x-mq-client-id": "me"})
        receive = mastered.handler(f"/{V2}/ReceiveMessage")
        receive(
            v2.ReceiveMessageRequest(
                group={"name": "g"},
                message_queue=v2.MessageQueue(topic={"name": TOPIC}, id=-1),
                filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
                batch_size=8,
                invisible_duration={"seconds": 30},
                long_polling_timeout={"seconds": 20},
            ),
            stream,
        )
        await sender.send(b"1")
        await mastered.turns()
        assert stream.sent == []

        mastered.mastership.raise_confirm()
        await mastered.turns()

        assert [one.message.body for one in stream.sent if one.HasField("message")] == [b"1"]


# --- what waits for its time


@pytest.mark.parametrize("how", ["level", "instant"])
async def test_what_is_delayed_is_delivered_once_it_is_confirmed(tmp_path: Path, how: str) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        due_ms = mastered.clock.unix_ms() + 1_500
        properties = {"DELAY": "1"} if how == "level" else {"TIMER_DELIVER_MS": str(due_ms)}
        await Sender(mastered).send(b"late", properties=properties)
        await mastered.clock.advance(10_000)
        assert kept(mastered) == []

        mastered.mastership.raise_confirm()
        await mastered.turns()
        await mastered.clock.advance(2_000)

        assert kept(mastered) == [b"late"]
        # The copy is as new as any message: nobody sees it before it is confirmed.
        fetcher = Fetcher(mastered)
        fetcher.fetch()
        mastered.mastership.raise_confirm()
        fetcher.fetch()
        assert fetcher.bodies == [[], [b"late"]]


async def test_a_recall_waits_for_the_message_to_be_confirmed(tmp_path: Path) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        due_ms = mastered.clock.unix_ms() + 60_000
        properties = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": "id-7"}
        await Sender(mastered).send(b"never", properties=properties)
        handle = encode_handle(TOPIC, "broker-a", due_ms, "id-7")
        call = mastered.begin("Recall", pb.RecallRequest(topic=TOPIC, handle=handle))
        await mastered.turns()
        assert call.answers == []

        mastered.mastership.raise_confirm()
        await mastered.turns()
        assert call.answers == []  # Its marker is not confirmed.
        mastered.mastership.raise_confirm()
        await mastered.turns()

        assert call.answer.message_id == "id-7", call.error
        await mastered.clock.advance(120_000)
        assert kept(mastered) == []


# --- transactions


def half(unique: str, body: bytes = b"half") -> pb.ProduceRun:
    """Return a half message of group "p"."""
    strings = names.encode_properties({"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": unique})
    records, sizes = encode_run(
        TOPIC,
        0,
        [(body, strings)],
        born_timestamp_ms=1,
        born_host=BORN,
        sys_flag=SYS_PREPARED,
    )
    return pb.ProduceRun(topic=TOPIC, records=records, sizes=sizes, durability=pb.MEMORY)


def ending(unique: str, resolution: pb.Resolution = pb.COMMIT) -> pb.EndTransactionRequest:
    return pb.EndTransactionRequest(
        group="p", topic=TOPIC, transaction_id=unique, resolution=resolution
    )


async def test_an_outcome_waits_for_its_half_message_and_its_answer_for_the_message(
    tmp_path: Path,
) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        await Sender(mastered).put(half("id-1"))
        early = mastered.begin("EndTransaction", ending("id-1"))
        unknown = mastered.begin("EndTransaction", ending("never"))
        await mastered.turns()
        assert kept(mastered) == []

        mastered.mastership.raise_confirm()
        await mastered.turns()
        assert kept(mastered) == [b"half"]
        assert early.answers == []
        assert type(unknown.error).__name__ == "TransactionNotFound"
        again = mastered.begin("EndTransaction", ending("id-1"))
        await mastered.turns()
        assert again.answers == []

        mastered.mastership.raise_confirm()
        await mastered.turns()

        assert (early.answer.queue_offset, early.answer.repeated) == (0, False)
        assert again.answer.repeated
        assert kept(mastered) == [b"half"]


@pytest.mark.parametrize("resolution", [pb.COMMIT, pb.ROLLBACK])
async def test_a_transaction_that_ends_while_it_is_stored_again_for_a_check_has_ended(
    tmp_path: Path, resolution: pb.Resolution
) -> None:
    settings: dict[str, Any] = {
        "transaction_timeout_ms": 5_000,
        "transaction_check_interval_ms": 5_000,
    }
    async with Mastered(tmp_path, **settings) as mastered:
        await mastered.topic()
        await Sender(mastered).put(half("id-1"))
        mastered.mastership.raise_confirm()
        stream, receiver = mastered.stream("TransactionChecks")
        receiver.on_message(pb.TransactionListener(group="p", topics=[TOPIC]))
        await mastered.clock.advance(6_000)
        assert stream.sent == []  # What is asked about is stored again, and not confirmed.
        call = mastered.begin("EndTransaction", ending("id-1", resolution))
        await mastered.turns()

        for _ in range(3):
            mastered.mastership.raise_confirm()
            await mastered.turns()

        assert call.error is None
        assert mastered.parts.transactions.open_count == 0
        await mastered.clock.advance(60_000)
        assert stream.sent == []
        assert Counter(kept(mastered)) == ({b"half": 1} if resolution == pb.COMMIT else {})


async def test_a_producer_is_asked_about_what_is_confirmed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "transaction_timeout_ms": 5_000,
        "transaction_check_interval_ms": 5_000,
    }
    async with Mastered(tmp_path, **settings) as mastered:
        await mastered.topic()
        stream, receiver = mastered.stream("TransactionChecks")
        receiver.on_message(pb.TransactionListener(group="p", topics=[TOPIC]))
        await Sender(mastered).put(half("id-1"))
        await mastered.clock.advance(30_000)
        assert stream.sent == []

        for _ in range(3):
            mastered.mastership.raise_confirm()
            await mastered.turns()
            await mastered.clock.advance(100)

        assert [one.transaction_id for one in stream.sent] == ["id-1"]
        assert bodies_in(stream.sent[0].record) == [b"half"]


# --- what groups have


async def test_a_message_sent_back_is_answered_for_when_its_copy_is_confirmed(
    tmp_path: Path,
) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        mastered.parts.groups.ensure("g")
        await Sender(mastered).send(b"1")
        mastered.mastership.raise_confirm()
        request = pb.SendBackRequest(group="g", topic=TOPIC, queue_offset=0)
        call = mastered.begin("SendBack", request)
        await mastered.turns()
        assert call.answers == []

        mastered.mastership.raise_confirm()
        await mastered.turns()

        assert call.answer.topic == "%RETRY%g"


async def test_an_atomic_commit_is_answered_for_when_its_messages_can_be_read(
    tmp_path: Path,
) -> None:
    async with Mastered(tmp_path) as mastered:
        await mastered.topic()
        await Sender(mastered).send(b"1")
        mastered.mastership.raise_confirm()
        run = Sender.run(b"made of 1", properties={"UNIQ_KEY": "id-1"})
        request = pb.AtomicCommitRequest(
            commit_id="c-1",
            group="g",
            offsets=[pb.AtomicOffset(topic=TOPIC, queue=0, begin=-1, end=1)],
            runs=[pb.AtomicRun(topic=TOPIC, queue=0, records=run.records, sizes=run.sizes)],
        )
        call = mastered.begin("CommitAtomically", request)
        while kept(mastered) == [b"1"]:
            assert call.answers == []
            await asyncio.sleep(0.001)

        mastered.mastership.raise_confirm()
        await mastered.turns()

        assert list(call.answer.places[0].queue_offsets) == [1]
