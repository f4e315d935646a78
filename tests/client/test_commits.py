"""Commits: by broker, by the right by which a queue is held."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pocketmq.client.config import ReadingConfig
from pocketmq.client.consuming.commits import CLOCK_WAIT_MS, Commits, RegularCommits
from pocketmq.client.consuming.held_queue import HeldQueue
from pocketmq.client.consuming.parts import ConsumerParts
from pocketmq.client.queue import Queue
from pocketmq.client.session import Session
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ConnectionLost,
    InvalidArgument,
    LeaseLost,
    NotAuthorized,
    NotReadable,
    PocketMQError,
    QueueNotFound,
    TopicNotFound,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_broker import FakeBroker, add_topic
from .fake_cluster import FakeCluster
from .fake_connections import FakeConnections

A0, A1, B0 = (Queue("orders", broker, n) for broker, n in (("a", 0), ("a", 1), ("b", 0)))


class Holding:
    """A source that holds what it is told to."""

    def __init__(self, *held: HeldQueue) -> None:
        self.queues = {one.queue: one for one in held}

    def start(self) -> None:
        pass

    def held(self, queue: Queue) -> HeldQueue | None:
        return self.queues.get(queue)

    def lost(self, held: HeldQueue) -> None:
        del self.queues[held.queue]

    def fetched(self, held: HeldQueue, sent_ms: int) -> None:
        pass

    def doubt(self, held: HeldQueue) -> None:
        pass

    def look_again(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Brokers:
    """Two brokers that note commits and refuse the lease tokens in `old`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[list[tuple[str, int, int, int]]] = []
        self.texts: list[str | None] = []
        self.old: set[int] = set()
        #: What is answered to a request with an offset of a queue of this number.
        self.errors: dict[int, PocketMQError] = {}
        brokers = [FakeBroker("a", "127.0.0.1:1"), FakeBroker("b", "127.0.0.1:2")]
        for broker in brokers:
            add_topic(broker, "orders", 2)
        self.cluster = FakeCluster(*brokers)

        def taken(
            broker: FakeBroker, request: pb.CommitOffsetsRequest, call: Any
        ) -> pb.CommitOffsetsReply:
            rows = [(broker.name, o.queue, o.offset, o.lease) for o in request.offsets]
            self.requests.append(rows)
            self.texts += [o.metadata if o.HasField("metadata") else None for o in request.offsets]
            if any(row[3] in self.old for row in rows):
                raise LeaseLost("it is held by another")
            for row in rows:
                if row[1] in self.errors:
                    raise self.errors[row[1]]
            return pb.CommitOffsetsReply()

        monkeypatch.setattr(FakeBroker, "commit", taken)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


async def committing(
    brokers: Brokers, source: Holding, interval_ms: int = 100
) -> tuple[Commits, ConsumerParts]:
    config = ReadingConfig(auto_commit_interval_ms=interval_ms)
    session = Session(config, FakeConnections(brokers.cluster), VirtualClock(), Random(1))
    await session.routes.brokers()
    parts = ConsumerParts("billing", config, session)
    return Commits(parts, source), parts


async def test_offsets_go_to_their_broker_with_the_token_of_their_lease(brokers: Brokers) -> None:
    source = Holding(HeldQueue(A0, 7, -1), HeldQueue(A1, 8, -1), HeldQueue(B0, 9, -1))
    commits, parts = await committing(brokers, source)

    await commits.commit({A0: 1, A1: 2, B0: 3})

    assert sorted(brokers.requests) == [[("a", 0, 1, 7), ("a", 1, 2, 8)], [("b", 0, 3, 9)]]
    assert parts.counts.commits == 3


async def test_what_is_committed_or_not_held_is_not_sent(brokers: Brokers) -> None:
    commits, _ = await committing(brokers, Holding(HeldQueue(A0, 7, 5)))
    commits.begin(HeldQueue(A0, 7, 5))

    await commits.commit({A0: 5, B0: 3})
    await commits.commit({A0: 6})
    await commits.commit({A0: 6})

    assert brokers.requests == [[("a", 0, 6, 7)]]
    assert commits.committed(A0) == 6


async def test_a_lost_queue_is_dropped_and_the_others_are_committed(brokers: Brokers) -> None:
    source = Holding(HeldQueue(A0, 7, -1), HeldQueue(A1, 8, -1))
    commits, _ = await committing(brokers, source)
    brokers.old.add(7)

    await commits.commit({A0: 1, A1: 2})

    assert brokers.requests[1:] == [[("a", 0, 1, 7)], [("a", 1, 2, 8)]]
    assert list(source.queues) == [A1]
    assert (commits.committed(A0), commits.committed(A1)) == (None, 2)


@pytest.mark.parametrize(
    "error", [TopicNotFound("no such topic"), QueueNotFound("no such queue")], ids=type
)
async def test_a_queue_that_is_gone_is_lost_and_the_others_are_committed(
    brokers: Brokers, caplog: pytest.LogCaptureFixture, error: PocketMQError
) -> None:
    queues = [Queue("orders", "a", number) for number in range(5)]
    source = Holding(*(HeldQueue(queue, 7, -1) for queue in queues))
    commits, parts = await committing(brokers, source)
    brokers.errors[3] = error

    await commits.commit(dict.fromkeys(queues, 1))

    assert [commits.committed(queue) for queue in queues] == [1, 1, 1, None, 1]
    assert queues[3] not in source.queues
    assert (parts.counts.commits, parts.counts.commits_failed) == (4, 1)
    assert "offset not committed, queue no longer exists" in caplog.text
    assert f"queue={queues[3]}" in caplog.text


async def test_a_chosen_queue_that_is_gone_stays_and_the_others_are_committed(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    source = Holding(HeldQueue(A0, 0, -1), HeldQueue(A1, 0, -1))
    commits, _ = await committing(brokers, source)
    brokers.errors[0] = TopicNotFound("no such topic")

    await commits.commit({A0: 1, A1: 2})

    assert (commits.committed(A0), commits.committed(A1)) == (None, 2)
    assert A0 in source.queues


@pytest.mark.parametrize(
    "error", [NotReadable("not 4"), NotAuthorized("denied"), InvalidArgument("ends at 0")], ids=type
)
async def test_a_refused_queue_is_an_error_after_the_others_are_committed(
    brokers: Brokers, error: PocketMQError
) -> None:
    source = Holding(HeldQueue(A0, 7, -1), HeldQueue(A1, 8, -1))
    commits, _ = await committing(brokers, source)
    brokers.errors[0] = error

    with pytest.raises(type(error)):
        await commits.commit({A0: 1, A1: 2})

    assert (commits.committed(A0), commits.committed(A1)) == (None, 2)
    assert A0 in source.queues


async def test_a_broker_that_is_lost_keeps_nothing_from_the_others(brokers: Brokers) -> None:
    source = Holding(HeldQueue(A0, 7, -1), HeldQueue(B0, 9, -1))
    commits, parts = await committing(brokers, source)
    brokers.cluster.lost.add("127.0.0.1:1")

    with pytest.raises(ConnectionLost):
        await commits.commit({A0: 1, B0: 3})

    assert (commits.committed(A0), commits.committed(B0)) == (None, 3)
    assert (parts.counts.commits, parts.counts.commits_failed) == (1, 1)


async def test_what_a_broker_may_have_forgotten_is_committed_again(brokers: Brokers) -> None:
    source = Holding(HeldQueue(A0, 7, -1), HeldQueue(B0, 9, -1))
    commits, _ = await committing(brokers, source)
    await commits.commit({A0: 1, B0: 3})
    brokers.requests.clear()

    commits.doubt("a")
    assert commits.committed(A0) == 1
    for _ in range(2):
        await commits.commit({A0: 1, B0: 3})

    assert brokers.requests == [[("a", 0, 1, 7)]]


@pytest.mark.parametrize("is_answered", [True, False])
async def test_what_a_next_master_may_have_is_forgotten_once_its_master_is_known_to_have_lived_on(
    brokers: Brokers, *, is_answered: bool
) -> None:
    """Unless the last commit was not answered: that may be there."""
    commits, parts = await committing(brokers, Holding(HeldQueue(A0, 7, -1)))
    commits.begin(HeldQueue(A0, 7, -1))
    await commits.commit({A0: 1})
    await commits.commit({A0: 2})
    if not is_answered:
        brokers.cluster.lost.add("127.0.0.1:1")
        with pytest.raises(ConnectionLost):
            await commits.commit({A0: 3})
    clock = parts.session.clock
    assert isinstance(clock, VirtualClock)
    await clock.advance(2_000)
    commits.confirm(A0, clock.now_ms(), parts.session.routes.breaks("a"))
    assert commits.kept(A0) == ({2} if is_answered else {2, 3})
    parts.session.routes.note_error("a", "", ConnectionLost("it broke"))
    assert commits.kept(A0) == ({2} if is_answered else {-1, 1, 2, 3})


async def test_a_commit_that_meets_a_broken_connection_doubts_all_of_the_broker(
    brokers: Brokers,
) -> None:
    commits, _ = await committing(brokers, Holding(HeldQueue(A0, 7, -1), HeldQueue(A1, 8, -1)))
    await commits.commit({A0: 1})
    brokers.cluster.lost.add("127.0.0.1:1")
    with pytest.raises(ConnectionLost):
        await commits.commit({A0: 1, A1: 2})
    brokers.cluster.lost.clear()
    brokers.requests.clear()

    await commits.commit({A0: 1, A1: 2})

    assert brokers.requests == [[("a", 0, 1, 7), ("a", 1, 2, 8)]]


async def test_a_text_goes_again_with_an_offset_that_a_broker_may_have_forgotten(
    brokers: Brokers,
) -> None:
    commits, _ = await committing(brokers, Holding(HeldQueue(A0, 7, -1)))
    await commits.commit({A0: 1}, {A0: "blue"})
    commits.doubt("a")
    await commits.commit({A0: 1})
    await commits.commit({A0: 2})
    commits.doubt("a")
    await commits.commit({A0: 2})
    await commits.commit({A0: 2}, {A0: ""})

    assert brokers.texts == ["blue", "blue", None, None, ""]


async def test_regular_commits_go_on_after_an_error(brokers: Brokers) -> None:
    commits, parts = await committing(brokers, Holding(HeldQueue(A0, 7, -1)))
    clock: Any = parts.session.clock
    RegularCommits(parts, commits, lambda: {A0: 4}).start()
    brokers.cluster.lost.add("127.0.0.1:1")

    await clock.advance(150)
    brokers.cluster.lost.clear()
    assert brokers.requests == []
    await clock.advance(100)

    assert brokers.requests == [[("a", 0, 4, 7)]]
    await parts.session.close()


async def test_what_a_clock_waits_for_is_committed_as_soon_as_it_is_finished(
    brokers: Brokers,
) -> None:
    commits, parts = await committing(brokers, Holding(HeldQueue(A0, 7, -1)), 60_000)
    clock: Any = parts.session.clock
    finished = {A0: 1}
    RegularCommits(parts, commits, lambda: finished).start()
    await clock.advance(100)
    assert brokers.requests == []

    (clock_waits,) = parts.on_clock_waits
    clock_waits()
    await clock.advance(10)
    finished[A0] = 2
    await clock.advance(10)
    assert brokers.requests == [[("a", 0, 1, 7)], [("a", 0, 2, 7)]]
    await clock.advance(CLOCK_WAIT_MS)
    finished[A0] = 3
    await clock.advance(10_000)

    assert len(brokers.requests) == 2
    await parts.session.close()
