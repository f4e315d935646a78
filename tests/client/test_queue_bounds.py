"""The bounds of queues: asked for many at once, answered for each."""

from __future__ import annotations

import asyncio
from itertools import chain
from random import Random
from typing import Any

import pytest

from pocketmq.client.config import ReadingConfig
from pocketmq.client.consuming.parts import BoundsRequests
from pocketmq.client.queue import QUEUES_AT_ONCE
from pocketmq.client.session import Session
from pocketmq.proto.errors import ClientClosed, PocketMQError, QueueNotFound, StoreClosed
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .fake_connections import FakeConnections
from .pull_world import World, numbers, q, store


class Asked:
    """What a world's broker was asked, by the queues of each request; it refuses those that it is told to."""

    def __init__(self, here: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[list[int]] = []
        self.refused: dict[int, PocketMQError] = {}
        self._answer = here.broker.queue_offsets
        monkeypatch.setattr(here.broker, "queue_offsets", self._queue_offsets)

    def _queue_offsets(self, request: pb.QueueOffsetsRequest, call: Any) -> pb.QueueOffsetsReply:
        self.requests.append([item.queue for item in request.queues])
        for item in request.queues:
            if item.queue in self.refused:
                raise self.refused[item.queue]
        return self._answer(request, call)


async def _bounds(here: World) -> tuple[BoundsRequests, Session]:
    session = Session(ReadingConfig(), FakeConnections(here.cluster), here.clock, Random(3))
    await session.routes.find("orders")
    return BoundsRequests(session, 3_000), session


@pytest.mark.slow
async def test_a_consumer_of_very_many_queues_asks_for_their_bounds_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 2 * QUEUES_AT_ONCE + 500
    here = World(queues=count)
    asked = Asked(here, monkeypatch)
    store(here.broker, 1, queue=count - 1)

    async with here.consumer() as reading:
        assert numbers(await reading.poll(timeout_ms=5_000)) == [0]

    assert sorted(chain.from_iterable(asked.requests)) == list(range(count))
    assert len(asked.requests) <= 6
    assert max(map(len, asked.requests)) == QUEUES_AT_ONCE


async def test_who_asks_as_soon_as_it_has_an_answer_gets_the_next() -> None:
    here = World(queues=2)
    store(here.broker, 3, queue=1)
    bounds, session = await _bounds(here)

    assert [(await bounds.of(q(n))).max_offset for n in (0, 1, 0)] == [0, 3, 0]

    await session.close()


async def test_a_queue_that_is_refused_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(queues=8)
    store(here.broker, 3, queue=4)
    asked = Asked(here, monkeypatch)
    asked.refused[5] = QueueNotFound("there is no such queue")
    bounds, session = await _bounds(here)

    answers = await asyncio.gather(*(bounds.of(q(n)) for n in range(8)), return_exceptions=True)

    assert answers[5] is asked.refused[5]
    ends = {n: one.max_offset for n, one in enumerate(answers) if isinstance(one, pb.QueueOffsets)}
    assert ends == {0: 0, 1: 0, 2: 0, 3: 0, 4: 3, 6: 0, 7: 0}
    assert asked.requests == [
        [*range(8)], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7],
    ]  # fmt: skip
    await session.close()


async def test_an_error_that_passes_is_the_brokers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(queues=8)
    asked = Asked(here, monkeypatch)
    asked.refused[5] = StoreClosed("the broker stops")
    bounds, session = await _bounds(here)

    answers = await asyncio.gather(*(bounds.of(q(n)) for n in range(8)), return_exceptions=True)

    assert answers == [asked.refused[5]] * 8
    assert len(asked.requests) == 1
    await session.close()


async def test_each_instant_is_asked_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    here = World(queues=2)
    asked = Asked(here, monkeypatch)
    bounds, session = await _bounds(here)

    await asyncio.gather(bounds.of(q(0)), bounds.of(q(1), 77), bounds.of(q(1)))

    assert sorted(asked.requests) == [[0, 1], [1]]
    await session.close()


async def test_nobody_waits_for_bounds_when_the_client_ends() -> None:
    here = World()
    bounds, session = await _bounds(here)

    # Before anything was asked, and while a broker is.
    for turns in (1, 2):
        waiting = asyncio.ensure_future(bounds.of(q(0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await session.tasks.close()
        with pytest.raises(ClientClosed):
            await waiting
    await session.close()
