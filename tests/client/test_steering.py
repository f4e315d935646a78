"""What an application says to a pull consumer: where to read, and what not for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pocketmq.client import AsyncPullConsumer, OffsetAndMetadata, PullConsumer
from pocketmq.proto.errors import ConnectionLost, InvalidArgument, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_connections import FakeConnections
from .pull_world import World, numbers, q, store

# ------------------------------------------------------------ where


async def test_seek_goes_back_and_forth() -> None:
    here = World()
    store(here.broker, 20)

    async with here.consumer() as reading:
        assert numbers(await reading.poll(5)) == [0, 1, 2, 3, 4]
        await reading.seek(q(0), 12)
        assert await reading.position(q(0)) == 12
        assert numbers(await reading.poll(2)) == [12, 13]
        await reading.seek(q(0), 3)
        assert numbers(await reading.poll(1)) == [3]

    assert here.committed() == 4


async def test_what_was_handed_out_before_a_seek_does_not_count() -> None:
    here = World()
    store(here.broker, 20)

    async with here.consumer() as reading:
        await reading.poll()
        await reading.seek(q(0), 5)
        await reading.commit()
        assert here.committed() == 5
        assert numbers(await reading.poll(1)) == [5]


async def test_seeking_to_the_ends_and_to_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(queues=2)
    store(here.broker, 20)
    asked: list[int] = []

    def offsets(request: pb.QueueOffsetsRequest, _: Any) -> pb.QueueOffsetsReply:
        asked.append(request.time_ms)
        rows = [
            pb.QueueOffsets(
                topic=one.topic, queue=one.queue, max_offset=20, min_offset=2, offset_at_time=11
            )
            for one in request.queues
        ]
        return pb.QueueOffsetsReply(offsets=rows)

    async with here.consumer() as reading:
        await reading.poll(1)
        monkeypatch.setattr(here.broker, "queue_offsets", offsets)
        assert await reading.seek_to_last([q(0)]) == {q(0): 20}
        assert await reading.seek_to_first([q(0)]) == {q(0): 2}
        when = datetime(2024, 1, 2, tzinfo=UTC)
        assert await reading.seek_to_time(None, when) == {q(0): 11, q(1): 11}
        assert numbers(await reading.poll(1)) == [11]
        with pytest.raises(InvalidArgument, match="Unix seconds"):
            await reading.seek_to_time(None, 1_704_153_600)

    assert asked[2:] == [1_704_153_600_000]


async def test_only_what_is_read_can_be_steered() -> None:
    async with World().consumer() as reading:
        await reading.poll(timeout_ms=0)
        for wrong in (reading.seek(q(7), 0), reading.pause([q(7)]), reading.position(q(7))):
            with pytest.raises(InvalidArgument, match="not assigned to this consumer"):
                await wrong


async def test_without_a_group_queues_are_read_and_nothing_is_committed() -> None:
    here = World()
    store(here.broker, 3)
    fetches: list[str] = []
    asked: list[str] = []
    fetch = here.broker.fetch

    def noted(request: pb.FetchRequest) -> Any:
        fetches.append(request.group)
        return fetch(request)

    def asks(*_: Any) -> Any:
        asked.append("")

    broker: Any = here.broker
    broker.fetch = noted
    broker.commit = broker.group_offsets = asks
    async with AsyncPullConsumer(
        None, clock=here.clock, connections=FakeConnections(here.cluster), start="earliest"
    ) as reading:
        await reading.assign([q(0)])
        assert numbers(await reading.poll(2)) == [0, 1]
        for refused in (
            reading.subscribe("orders"),
            reading.commit(),
            reading.committed(q(0)),
        ):
            with pytest.raises(InvalidArgument, match="without a group"):
                await refused
        assert numbers(await reading.poll()) == [2]

    assert set(fetches) == {""}
    assert asked == []


async def test_positions_and_commits_are_told() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer() as reading:
        assert await reading.committed(q(0)) is None
        await reading.poll(3)
        assert await reading.position(q(0)) == 3
        assert await reading.committed(q(0)) is None
        await reading.commit_sync()
        assert await reading.committed(q(0)) == OffsetAndMetadata(3)
        assert await reading.assignment() == [q(0)]


async def test_own_offsets_are_committed_alone() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(auto_commit=False) as reading:
        await reading.poll()
        await reading.commit_sync({q(0): 4})
        assert here.committed() == 4
        with pytest.raises(InvalidArgument):
            await reading.commit_sync({q(9): 4})

    assert here.committed() == 4


async def test_texts_go_with_offsets_of_ones_own() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(auto_commit=False) as reading:
        await reading.poll()
        await reading.commit_sync({q(0): (4, "blue")})
        assert await reading.committed(q(0)) == OffsetAndMetadata(4, "blue")
        with pytest.raises(InvalidArgument, match="1025 bytes"):
            await reading.commit_sync({q(0): (5, "a" * 1_025)})
        assert await reading.committed(q(0)) == OffsetAndMetadata(4, "blue")
        await reading.commit_async(offsets={q(0): OffsetAndMetadata(4)})
        await here.clock.advance(1)
        assert await reading.committed(q(0)) == OffsetAndMetadata(4)


async def test_a_regular_commit_of_the_same_offset_leaves_the_text() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer() as reading:
        await reading.poll(4)
        await reading.commit()
        await reading.commit_sync({q(0): (4, "blue")})
        await here.clock.advance(20_000)
        assert await reading.committed(q(0)) == OffsetAndMetadata(4, "blue")
        await reading.poll(1)

    assert here.committed() == 5
    assert here.broker.metadata == {}


async def test_a_consumer_that_broadcasts_commits_no_text(tmp_path: Path) -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer(
        broadcasting=True, offsets_folder=str(tmp_path), start="earliest"
    ) as reading:
        await reading.poll()
        with pytest.raises(InvalidArgument, match=r"offsets\.json, which has no field"):
            await reading.commit_sync({q(0): (4, "blue")})
        assert await reading.committed(q(0)) is None
        await reading.commit_sync({q(0): (4, "")})
        assert await reading.committed(q(0)) == OffsetAndMetadata(4)


async def test_commits_that_nobody_waits_for_tell_their_outcome() -> None:
    here = World()
    store(here.broker, 10)
    heard: list[PocketMQError | None] = []

    async with here.consumer(auto_commit=False) as reading:
        await reading.poll(4)
        await reading.commit_async(heard.append)
        await here.clock.advance(1)
        here.cluster.lost.add(here.broker.address)
        await reading.poll(4)
        await reading.commit_async(heard.append)
        await here.clock.advance(1)
        here.cluster.lost.clear()

    assert heard[0] is None
    assert isinstance(heard[1], ConnectionLost)
    assert here.committed() == 4


@pytest.mark.parametrize("start", [datetime(2024, 1, 2, tzinfo=UTC), 1_704_153_600_000])
async def test_a_new_group_starts_at_a_time(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = World()
    store(here.broker, 20)

    def offsets(request: pb.QueueOffsetsRequest, _: Any) -> pb.QueueOffsetsReply:
        assert request.time_ms == 1_704_153_600_000
        (one,) = request.queues
        row = pb.QueueOffsets(topic=one.topic, queue=one.queue, max_offset=20, offset_at_time=7)
        return pb.QueueOffsetsReply(offsets=[row])

    monkeypatch.setattr(here.broker, "queue_offsets", offsets)
    async with here.consumer(start=start) as reading:
        assert numbers(await reading.poll(1)) == [7]


async def test_a_start_that_passes_over_commits_counts_once() -> None:
    here = World()
    store(here.broker, 20)
    here.broker.committed["billing", "orders", 0] = 15

    async with here.consumer(start="earliest") as first:
        assert numbers(await first.poll(2)) == [0, 1]
        async with here.consumer(start="earliest") as second:
            await first.close()
            await here.clock.advance(100)
            assert numbers(await second.poll(2)) == [2, 3]


# ------------------------------------------------------------ when not


async def test_a_paused_queue_hands_out_nothing_and_goes_on_where_it_was() -> None:
    here = World(queues=2)
    store(here.broker, 10, queue=0)

    async with here.consumer() as reading:
        assert numbers(await reading.poll(4)) == [0, 1, 2, 3]
        await reading.pause([q(0)])
        await here.clock.advance(100)
        assert await reading.poll(timeout_ms=0) == []
        store(here.broker, 1, queue=1)
        assert (await reading.poll())[0].queue == 1
        await reading.resume([q(0)])
        assert numbers(await reading.poll()) == [4, 5, 6, 7, 8, 9]


async def test_a_pause_lasts_when_the_queue_goes_and_comes_again() -> None:
    here = World()
    store(here.broker, 10)

    async with here.consumer() as reading:
        await reading.poll(4)
        await reading.pause([q(0)])
        await reading.commit()
        here.broker.sharing.leases["billing", "orders", 0].token = 99
        await here.clock.advance(15_000)
        assert await reading.assignment() == [q(0)]
        assert await reading.poll(timeout_ms=0) == []
        await reading.resume([q(0)])
        assert numbers(await reading.poll(1)) == [4]


FOR_THE_OTHER_FACE = {
    "stop_waiting",
    "take",
    "acknowledge_rebalance",
    "cursor",
    "pending_revocation",
    "disconnect",
}


def test_the_two_faces_have_the_same_methods() -> None:
    def methods(face: type) -> set[str]:
        return {name for name in vars(face) if not name.startswith("_")}

    only_async = methods(AsyncPullConsumer) - methods(PullConsumer)
    assert only_async == {"start", *FOR_THE_OTHER_FACE}
    assert methods(PullConsumer) <= methods(AsyncPullConsumer)
