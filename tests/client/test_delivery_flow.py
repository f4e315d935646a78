"""Which runs travel together, what is waited for, and what is counted of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from pocketmq.client import Message, Queue, Receipt
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ClientClosed, ConnectFailed, Overloaded, PocketMQError

from .fake_cluster import FakeCluster
from .faulty_network import FaultyNetwork, sail
from .producing import producer


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Retries are logged."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


async def test_unordered_runs_of_one_queue_travel_together() -> None:
    sea = FaultyNetwork(["slow", "slow"], {"ordered": False, "max_in_flight": 5})
    await sea.producer.start()
    for _ in range(2):
        sea.send("named", 1_400)
    await sea.clock.advance(60)

    assert all(outcome.done() for _, outcome in sea.sent)
    await sea.end()


async def test_ordered_runs_of_one_queue_travel_one_after_the_other() -> None:
    sea = FaultyNetwork(["slow", "slow"], {"max_in_flight": 5})
    await sea.producer.start()
    for _ in range(2):
        sea.send("named", 1_400)
    await sea.clock.advance(60)

    assert [outcome.done() for _, outcome in sea.sent] == [True, False]
    await sea.end()


async def test_who_waits_for_memory_ends_a_linger() -> None:
    sea = FaultyNetwork([], {"linger_ms": 2_000, "batch_size": 100_000})
    await sea.producer.start()
    while not sea.refused:
        sea.send("named", 500)
    assert not sea.brokers[0].runs

    more = asyncio.ensure_future(sea.producer.send(Message("orders", b"y" * 500)))
    await sea.clock.advance(1)

    assert sea.brokers[0].runs
    await sea.clock.advance(2_000)
    await more
    await sea.end()


async def test_without_acknowledgements_a_message_is_done_when_it_has_left() -> None:
    sea = FaultyNetwork([], {"acks": "none"})

    receipt, delayed = await sail(sea, "named", "delayed")
    sea.brokers[0].faults.append(Overloaded("busy"))

    assert isinstance(receipt, Receipt)
    assert isinstance(delayed, Receipt)
    assert (receipt.queue, receipt.queue_offset, receipt.durability) == (1, -1, "none")
    assert sum(len(broker.runs) for broker in sea.brokers) == 2


async def test_a_refusal_that_nobody_waits_for_is_counted() -> None:
    sea = FaultyNetwork([], {"acks": "none"})
    sea.brokers[0].faults.append(Overloaded("busy"))

    (receipt,) = await sail(sea, "named")

    assert isinstance(receipt, Receipt)
    assert sea.counters.refused_unheard == 1


async def test_the_queue_selector_hears_how_requests_end() -> None:
    heard: list[tuple[str, float, str]] = []

    class Learning:
        for_a_run = True

        def choose(self, message: Message, queues: Any) -> Queue:
            return Queue("orders", "a", 0)

        def on_result(self, queue: Queue, latency_ms: float, error: PocketMQError | None) -> None:
            heard.append((queue.broker, latency_ms, type(error).__name__))
            raise ZeroDivisionError

    sea = FaultyNetwork(["slow", "unreachable"], {"queue_selector": Learning()})
    await sail(sea, "any", "any")

    assert heard == [("a", 60, "NoneType"), ("a", 0, "ConnectFailed"), ("b", 0, "NoneType")]


async def test_a_closed_producer_lets_go_of_what_travels() -> None:
    sea = FaultyNetwork(["slow"])
    await sea.producer.start()
    sea.send("named", 10)
    await asyncio.sleep(0)

    await sea.producer.close(timeout_ms=1)

    assert [type(error) for error in sea.failed()] == [ClientClosed]
    assert sea.producer._sender.budget.taken_bytes == 0


async def test_counters_tell_what_was_done() -> None:
    sea = FaultyNetwork(["overloaded", "stored, lost"])
    await sail(sea, "named")
    counters = sea.counters

    assert (counters.requests, counters.retries, counters.repeats_dropped) == (3, 2, 1)
    assert counters.batch_messages.counts[0] == 1
    assert counters.queue_time_ms.count == 1
    assert counters.request_latency_ms.count == 3
    assert counters.batch_bytes.total == counters.bytes_sent


@pytest.mark.parametrize("seed", range(12))
async def test_what_pauses_is_sent_when_its_pause_ends_however_long_its_route_was_asked_for(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, clock, cluster = Random(seed), VirtualClock(), FakeCluster.of_one("orders", queues=4)
    made = producer(cluster, clock, queue_selector="sticky", retry_backoff_ms=100)
    routes = made._sender._session.routes
    find = routes.find

    async def slowly(topic: str, **more: Any) -> Any:
        await clock.sleep_until(clock.now_ms() + rng.randrange(120))
        return await find(topic, **more)

    answer = cluster.broker.produce
    refusals = {number: rng.randrange(1, 4) for number in range(4)}

    def refuse_at_first(run: Any) -> Any:
        if refusals[run.queue]:
            refusals[run.queue] -= 1
            raise ConnectFailed("away")
        return answer(run)

    monkeypatch.setattr(cluster.broker, "produce", refuse_at_first)
    async with made:
        sent = []
        for number in range(4):
            sent.append(made.send_nowait("orders", b"%d" % number, queue=number))
            monkeypatch.setattr(routes, "find", slowly)
            await clock.advance(rng.randrange(40))
        await clock.advance(5_000)
        assert [one.done() for one in sent] == [True] * 4
