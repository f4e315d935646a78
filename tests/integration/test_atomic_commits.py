"""Reading, sending and committing as one, with real clients and a real broker, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.broker import Broker
from pocketmq.client import (
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    OffsetTarget,
    Producer,
    PullConsumer,
    Queue,
    Receipt,
)
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import (
    ConfigError,
    ConnectionLost,
    InvalidArgument,
    LeaseLost,
    MessageTooLarge,
    OffsetMoved,
    PocketMQError,
    SerializationFailed,
)
from pocketmq.store.os_disk import OsDisk

from ..served import broker_config
from .test_client import Cluster, running
from .whole_broker import store_config

GROUP = "transformers"
COUNT = 40


@asynccontextmanager
async def filled(folder: Path, *, queues: int = 1) -> AsyncIterator[Cluster]:
    """A cluster with COUNT messages in the topic "in", and an empty topic "out"."""
    async with running(folder) as cluster:
        async with AsyncAdmin(cluster.address) as admin:
            await admin.create_topic("in", queues=queues)
            await admin.create_topic("out", queues=2)
        async with AsyncProducer(cluster.address) as producer:
            for number in range(COUNT):
                await producer.send("in", b"%d" % number, queue=number % queues)
        yield cluster


def reader(cluster: Cluster, **settings: Any) -> AsyncPullConsumer:
    settings = {"auto_commit": False, "max_poll_records": 8} | settings
    return AsyncPullConsumer(GROUP, "in", cluster.address, **settings)


async def results(cluster: Cluster) -> list[int]:
    """Return what "out" holds."""
    async with AsyncPullConsumer("lookers", "out", cluster.address, auto_commit=False) as consumer:
        found = []
        while batch := await consumer.poll(timeout_ms=500):
            found += [int(message.body) for message in batch]
    return sorted(found)


async def transform(
    producer: AsyncProducer, consumer: AsyncPullConsumer, least: int = COUNT
) -> int:
    """Make an output of each input until LEAST inputs were committed; return how many were."""
    done = 0
    while done < least:
        async with producer.atomic_commit(consumer) as commit:
            batch = await consumer.poll(timeout_ms=5_000)
            for message in batch:
                commit.send("out", message.body)
        if not batch:
            break
        done += len(batch)
    return done


async def committed(cluster: Cluster) -> list[int | None]:
    async with AsyncAdmin(cluster.address) as admin:
        return [one.offset for one in await admin.group_offsets(GROUP, "in")]


async def test_what_is_read_is_finished_with_what_was_made_of_it(tmp_path: Path) -> None:
    async with filled(tmp_path, queues=3) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as consumer:
            async with producer.atomic_commit(consumer) as commit:
                batch = await consumer.poll(timeout_ms=5_000)
                for message in batch:
                    commit.send("out", message.body, key="k")
                with pytest.raises(InvalidArgument, match="leave the `with` block"):
                    _ = commit.receipts
            assert len(commit.receipts) == len(batch)
            assert {receipt.durability for receipt in commit.receipts} == {"disk"}
            assert len({receipt.message_id for receipt in commit.receipts}) == len(batch)
            left = COUNT - len(batch)
            assert await transform(producer, consumer, left) == left

        assert await results(cluster) == list(range(COUNT))
        async with reader(cluster) as consumer:
            assert not await consumer.poll(timeout_ms=500)


async def test_an_exception_in_the_block_forgets_all_and_what_was_read_comes_again(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as consumer:
            seen: list[int] = []

            async def fail() -> None:
                async with producer.atomic_commit(consumer) as commit:
                    for _ in range(2):
                        for message in await consumer.poll(timeout_ms=5_000):
                            commit.send("out", message.body)
                            seen.append(message.queue_offset)
                    raise ZeroDivisionError

            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    await fail()
            assert seen == [*range(16)] * 3
            assert await results(cluster) == []
            assert await transform(producer, consumer) == COUNT

        assert await results(cluster) == list(range(COUNT))


async def test_interceptors_hear_of_each_message_what_became_of_it(tmp_path: Path) -> None:
    heard: list[tuple[str, bool, str]] = []

    class Listener:
        def on_send(self, message: Any) -> Any:
            return message.replace(tag="seen")

        def on_acknowledgement(
            self, receipt: Receipt | None, error: BaseException | None, message: Any
        ) -> None:
            heard.append((message.tag, receipt is not None, type(error).__name__))

    async with filled(tmp_path) as cluster:
        producer = AsyncProducer(cluster.address, interceptors=[Listener()])
        async with producer, reader(cluster) as consumer:
            async with producer.atomic_commit(consumer) as commit:
                await consumer.poll(timeout_ms=5_000)
                commit.send("out", b"1")
                commit.send(Message("out", b"2"))
                assert heard == []
            assert heard == [("seen", True, "NoneType")] * 2
            heard.clear()
            with contextlib.suppress(ZeroDivisionError):
                async with producer.atomic_commit(consumer) as commit:
                    commit.send("out", b"3")
                    raise ZeroDivisionError
            assert heard == [("seen", False, "ZeroDivisionError")]

        assert await results(cluster) == [1, 2]


async def test_a_batch_that_was_polled_before_the_block_belongs_to_it(tmp_path: Path) -> None:
    async with filled(tmp_path) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as consumer:
            batch = await consumer.poll(timeout_ms=5_000)
            with pytest.raises(ZeroDivisionError):
                async with producer.atomic_commit(consumer):
                    raise ZeroDivisionError
            assert [m.queue_offset for m in await consumer.poll(timeout_ms=5_000)] == [
                m.queue_offset for m in batch
            ]
            async with producer.atomic_commit(consumer) as commit:
                for message in batch:
                    commit.send(Message("out", message.body))
            assert await transform(producer, consumer, COUNT - 8) == COUNT - 8

        assert await results(cluster) == list(range(COUNT))


async def test_the_rest_of_a_batch_belongs_to_the_block_in_which_it_is_handed_out(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as consumer:

            async def step(*, fails: bool = False) -> list[int]:
                async with producer.atomic_commit(consumer) as commit:
                    batch = await consumer.poll(3, timeout_ms=5_000)
                    for message in batch:
                        commit.send("out", message.body)
                    if fails:
                        raise ZeroDivisionError
                return [message.queue_offset for message in batch]

            assert await step() == [0, 1, 2]
            with pytest.raises(ZeroDivisionError):
                await step(fails=True)
            assert await step() == [3, 4, 5]

            async def lose() -> None:
                async with producer.atomic_commit(consumer) as commit:
                    for message in await consumer.poll(3, timeout_ms=5_000):
                        commit.send("out", message.body)
                    async with AsyncAdmin(cluster.address) as admin:
                        await admin.reset_offsets(GROUP, "in", OffsetTarget(offset=6), force=True)

            with pytest.raises(LeaseLost):
                await lose()
            assert await transform(producer, consumer, COUNT - 6) == COUNT - 6

        assert await results(cluster) == list(range(COUNT))


async def test_a_lost_answer_is_asked_for_again_and_the_commit_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as consumer:
            assert cluster.broker is not None
            connection = producer._sender._session.connections.to(cluster.broker.address)
            call, lost = connection.call, list[str]()

            async def lose(path: str, request: Any, *rest: Any) -> Any:
                reply = await call(path, request, *rest)
                if path.endswith("CommitAtomically") and len(lost) % 2 == 0:
                    lost.append(request.commit_id)
                    raise ConnectionLost("the answer is lost")
                lost.append("")
                return reply

            monkeypatch.setattr(connection, "call", lose)
            async with producer.atomic_commit(consumer) as commit:
                batch = await consumer.poll(timeout_ms=5_000)
                commit.send("out", batch[0].body)
            assert {receipt.repeated for receipt in commit.receipts} == {True}
            assert lost[0]

        assert await results(cluster) == [0]
        assert await committed(cluster) == [8]


async def test_a_commit_that_is_given_up_and_was_made_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path) as cluster:
        producer = AsyncProducer(cluster.address, delivery_timeout_ms=300, linger_ms=0)
        async with producer, reader(cluster) as consumer:
            assert cluster.broker is not None
            connection = producer._sender._session.connections.to(cluster.broker.address)
            call = connection.call
            is_lost = True

            async def lose(path: str, *rest: Any) -> Any:
                reply = await call(path, *rest)
                if path.endswith("CommitAtomically") and is_lost:
                    raise ConnectionLost("the answer is lost")
                return reply

            monkeypatch.setattr(connection, "call", lose)
            with pytest.raises(PocketMQError, match="it may have been executed"):
                await transform(producer, consumer, 8)
            is_lost = False
            # The broker was asked where the group stands.
            assert await transform(producer, consumer, COUNT - 8) == COUNT - 8

        assert await results(cluster) == list(range(COUNT))


async def test_a_block_that_is_cancelled_twice_lets_go_of_its_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as consumer:
            assert cluster.broker is not None
            asked = asyncio.Queue[str]()
            with monkeypatch.context() as patch:
                for session in (producer._sender._session, consumer._session):
                    connection = session.connections.to(cluster.broker.address)

                    async def hang(path: str, *rest: Any, call: Any = connection.call) -> Any:
                        if path.endswith(("CommitAtomically", "GroupOffsets")):
                            asked.put_nowait(path.rpartition("/")[2])
                            await asyncio.Event().wait()
                        return await call(path, *rest)

                    patch.setattr(connection, "call", hang)
                work = asyncio.create_task(transform(producer, consumer, 8))
                assert await asked.get() == "CommitAtomically"
                work.cancel()
                assert await asked.get() == "GroupOffsets"
                work.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await work
            assert await transform(producer, consumer) == COUNT

        assert await results(cluster) == list(range(COUNT))


async def test_a_sticky_producer_goes_to_the_next_queue_once_it_has_filled_one(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as cluster:
        producer = AsyncProducer(cluster.address, queue_selector="sticky", batch_size=4096)
        async with producer, reader(cluster) as consumer:
            queues = []
            for _ in range(4):
                async with producer.atomic_commit(consumer) as commit:
                    await consumer.poll(timeout_ms=5_000)
                    commit.send("out", os.urandom(4096))
                queues.append(commit.receipts[0].queue)
            assert sorted(queues[:2]) == [0, 1]
            assert queues[2:] == queues[:2]


async def test_a_queue_that_was_lost_meanwhile_is_not_committed(tmp_path: Path) -> None:
    async with filled(tmp_path) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as consumer:

            async def lose() -> None:
                async with producer.atomic_commit(consumer) as commit:
                    for message in await consumer.poll(timeout_ms=5_000):
                        commit.send("out", message.body)
                    async with AsyncAdmin(cluster.address) as admin:
                        await admin.reset_offsets(GROUP, "in", OffsetTarget(offset=0), force=True)

            with pytest.raises(LeaseLost):
                await lose()
            assert await results(cluster) == []
            assert await transform(producer, consumer) == COUNT

        assert await results(cluster) == list(range(COUNT))


@pytest.mark.long
async def test_members_that_come_and_go_make_one_output_of_each_input(tmp_path: Path) -> None:
    async with filled(tmp_path, queues=4) as cluster:

        async def member(least: int) -> int:
            consumer = reader(cluster, max_poll_records=2)
            async with AsyncProducer(cluster.address) as producer, consumer:
                return await transform(producer, consumer, least)

        first = asyncio.create_task(member(COUNT))
        some = await asyncio.gather(member(3), member(5))
        assert await first + sum(some) == COUNT

        assert await results(cluster) == list(range(COUNT))


async def test_a_queue_that_is_to_go_is_committed_by_who_reads_it_and_goes_then(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path, queues=2) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as consumer:
            seen = set[int]()
            while len(seen) < 2:  # It reads both queues.
                async with producer.atomic_commit(consumer) as commit:
                    for message in await consumer.poll(timeout_ms=5_000):
                        seen.add(message.queue)
                        commit.send("out", message.body)
            async with producer.atomic_commit(consumer) as commit:
                batch = await consumer.poll(timeout_ms=5_000)
                for message in batch:
                    commit.send("out", message.body)
                async with reader(cluster) as other:
                    assert await other.poll(timeout_ms=2_000) is not None
            left = COUNT - len(await results(cluster))
            assert await transform(producer, consumer, left) == left

        assert await results(cluster) == list(range(COUNT))


@asynccontextmanager
async def second_broker(cluster: Cluster, folder: Path) -> AsyncIterator[None]:
    config = broker_config(name="broker-b", port=0, nameservers=(cluster.address,))
    broker = Broker.build(config, store_config(folder), disk=OsDisk(), clock=SystemClock())
    await broker.start()
    try:
        assert await broker.registered(10)
        async with AsyncAdmin(cluster.address) as admin:
            for topic in ("pairs", "made"):
                await admin.create_topic(topic, queues=1)
        yield
    finally:
        await broker.stop()


async def test_a_commit_is_of_one_broker_and_its_messages_go_there(tmp_path: Path) -> None:
    async with filled(tmp_path) as cluster, second_broker(cluster, tmp_path / "b"):
        settings: Any = {"auto_commit": False, "max_poll_records": 4}
        consumer = AsyncPullConsumer(GROUP, "pairs", cluster.address, **settings)
        async with AsyncProducer(cluster.address) as producer, consumer:
            for name in ("broker-a", "broker-b") * 6:
                await producer.send("pairs", name.encode(), queue=Queue("pairs", name, 0))
            seen: list[str] = []

            async def read_both() -> None:
                async with producer.atomic_commit(consumer):
                    while len(set(seen)) < 2:
                        seen.extend(m.broker for m in await consumer.poll(timeout_ms=5_000))

            with pytest.raises(InvalidArgument, match="several brokers"):
                await read_both()
            done = 0
            while done < 12:
                async with producer.atomic_commit(consumer) as commit:
                    batch = await consumer.poll(timeout_ms=5_000)
                    for message in batch:
                        commit.send("made", message.body)
                assert batch
                done += len(batch)
                assert {receipt.broker.encode() for receipt in commit.receipts} == {batch[0].body}


async def test_what_a_filter_passes_over_elsewhere_is_no_part_of_a_commit(tmp_path: Path) -> None:
    async with filled(tmp_path) as cluster, second_broker(cluster, tmp_path / "b"):
        settings: Any = {"auto_commit": False, "max_poll_records": 2}
        wanted = {"pairs": "yes"}
        consumer = AsyncPullConsumer(GROUP, wanted, cluster.address, **settings)
        async with AsyncProducer(cluster.address) as producer, consumer:
            for number in range(10):
                for name, tag in (("broker-a", "yes"), ("broker-b", "no")):
                    queue = Queue("pairs", name, 0)
                    await producer.send("pairs", b"%d" % number, queue=queue, tag=tag)
            done = 0
            while done < 10:
                async with producer.atomic_commit(consumer) as commit:
                    batch = await consumer.poll(timeout_ms=5_000)
                    for message in batch:
                        commit.send("made", message.body)
                done += len(batch)


async def test_who_finds_the_group_elsewhere_is_refused_and_goes_on_from_there(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as first:
            await transform(producer, first, 8)
            (queue,) = await first.assignment()
        chosen = AsyncPullConsumer(
            GROUP, nameservers=cluster.address, auto_commit=False, max_poll_records=8
        )
        other = AsyncPullConsumer(
            GROUP, nameservers=cluster.address, auto_commit=False, max_poll_records=8
        )
        async with AsyncProducer(cluster.address) as producer, chosen, other:
            await chosen.assign([queue])
            await other.assign([queue])

            async def come_late() -> None:
                async with producer.atomic_commit(chosen) as commit:
                    for message in await chosen.poll(timeout_ms=5_000):
                        commit.send("out", message.body)
                    await transform(producer, other, 8)

            with pytest.raises(OffsetMoved, match="is at 16"):
                await come_late()
            assert await transform(producer, chosen, COUNT - 16) == COUNT - 16

        assert await results(cluster) == list(range(COUNT))


async def test_what_an_atomic_commit_does_not_take_is_refused_at_once(tmp_path: Path) -> None:
    async with (
        filled(tmp_path) as cluster,
        AsyncProducer(cluster.address) as producer,
        reader(cluster) as consumer,
    ):
        for settings in ({"auto_commit": True}, {"broadcasting": True}):
            async with reader(cluster, **settings) as other:
                with pytest.raises(ConfigError, match="auto_commit=False"):
                    await producer.atomic_commit(other).begin()
        async with producer.atomic_commit(consumer) as commit:
            with pytest.raises(InvalidArgument, match="another atomic commit"):
                await producer.atomic_commit(consumer).begin()
            with pytest.raises(InvalidArgument, match="delay"):
                commit.send("out", b"x", delay="5s")
            with pytest.raises(SerializationFailed):
                commit.send("out", 5)
            await consumer.poll(timeout_ms=5_000)
        async with producer.atomic_commit(consumer) as commit:
            await consumer.poll(timeout_ms=5_000)
            for _ in range(3):
                commit.send("out", os.urandom(1 << 18))
            with pytest.raises(MessageTooLarge, match="Read fewer messages"):
                commit.send("out", os.urandom((1 << 22) - 1_000))
        assert len(commit.receipts) == 3
        with pytest.raises(InvalidArgument, match="has ended"):
            commit.send("out", b"x")
        with pytest.raises(InvalidArgument, match="has read nothing"):
            async with producer.atomic_commit(consumer) as commit:
                commit.send("out", b"x")
        async with producer.atomic_commit(consumer) as commit:
            pass
        assert commit.receipts == []


async def test_ordinary_threads_commit_likewise(tmp_path: Path) -> None:
    def work(address: str) -> None:
        settings: Any = {"auto_commit": False, "max_poll_records": 8}
        with (
            Producer(address) as producer,
            PullConsumer(GROUP, "in", address, **settings) as consumer,
        ):
            done = 0
            with pytest.raises(ZeroDivisionError), producer.atomic_commit(consumer) as commit:
                commit.send("out", b"%d" % (1 // len(consumer.poll(timeout_ms=5_000)[8:])))
            while done < COUNT:
                with producer.atomic_commit(consumer) as commit:
                    batch = consumer.poll(timeout_ms=5_000)
                    for message in batch:
                        commit.send("out", message.body)
                assert len(commit.receipts) == len(batch)
                done += len(batch)

    async with filled(tmp_path) as cluster:
        await asyncio.to_thread(work, cluster.address)
        assert await results(cluster) == list(range(COUNT))


async def test_a_broker_that_starts_again_between_commits_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as cluster:
        async with AsyncProducer(cluster.address) as producer, reader(cluster) as consumer:
            await transform(producer, consumer, 16)
            await cluster.stop_broker()
            await cluster.start_broker()
            await transform(producer, consumer, COUNT - 16)

        assert await results(cluster) == list(range(COUNT))
