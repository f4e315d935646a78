"""The choice by latency on a virtual clock: shares, being left alone, probes, and the way back."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import Message, Queue
from pocketmq.client.producing.queue_selector import LAG_MS, LEAST_SHARE, LeastLatency
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ConnectionLost, PocketMQError, TopicNotFound

ROUTE = tuple(Queue("T", broker, number) for number in range(4) for broker in ("a", "b", "c"))
MESSAGE = Message("T", b"x")


class Traffic:
    """Runs one after the other, 10 ms apart, to brokers with a latency or an error each."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.choice = LeastLatency(self.clock)
        self.latency_ms: dict[str, float] = {"a": 3, "b": 3, "c": 3}
        self.error: dict[str, PocketMQError] = {}

    async def send(self, runs: int) -> Counter[str]:
        """Send RUNS; return how many each broker was given."""
        seen: Counter[str] = Counter()
        for _ in range(runs):
            queue = self.choice.choose(MESSAGE, ROUTE)
            seen[queue.broker] += 1
            self.choice.on_result(
                queue, self.latency_ms[queue.broker], self.error.get(queue.broker)
            )
            self.clock.start_at(self.clock.now_ms() + 10)
        return seen


async def test_equal_brokers_get_equal_shares_and_their_queues_go_round() -> None:
    traffic = Traffic()

    assert await traffic.send(300) == {"a": 100, "b": 100, "c": 100}
    queues = [traffic.choice.choose(MESSAGE, ROUTE) for _ in range(12)]
    assert sorted(queues) == sorted(ROUTE)


async def test_a_slower_broker_gets_less_and_a_full_share_soon_after_it_recovered() -> None:
    traffic = Traffic()
    traffic.latency_ms["b"] = 400

    await traffic.send(100)
    slow = await traffic.send(1_000)
    traffic.latency_ms["b"] = 3
    await traffic.send(800)
    recovered = await traffic.send(300)

    assert 1_000 * LEAST_SHARE / 3 < slow["b"] < 40
    assert abs(slow["a"] - slow["c"]) <= 1
    assert recovered == {"a": 100, "b": 100, "c": 100}


async def test_a_lagging_broker_is_left_alone_but_for_probes_and_comes_back() -> None:
    traffic = Traffic()
    traffic.latency_ms["b"] = LAG_MS

    lagging = await traffic.send(2_000)
    traffic.latency_ms["b"] = 3
    await traffic.send(200)
    recovered = await traffic.send(300)

    assert 5 <= lagging["b"] <= 11
    assert recovered["b"] == 100


async def test_a_broker_that_fails_again_and_again_is_probed_more_and_more_rarely() -> None:
    traffic = Traffic()
    traffic.error["b"] = ConnectionLost("gone")

    probes = [(await traffic.send(1))["b"] for _ in range(12_000)]

    at = [index for index, count in enumerate(probes) if count]
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert [round(gap / 100) for gap in gaps] == [2, 5, 6, 10, 30, 30, 30]
    del traffic.error["b"]
    await traffic.send(3_000)
    assert (await traffic.send(300))["b"] == 100


async def test_only_one_probe_is_out_at_a_time() -> None:
    traffic = Traffic()
    traffic.choice.on_result(Queue("T", "b", 0), 1, ConnectionLost("gone"))
    await traffic.clock.advance(2_000)

    chosen = [traffic.choice.choose(MESSAGE, ROUTE).broker for _ in range(100)]

    assert chosen.count("b") == 1


async def test_failures_of_what_was_under_way_count_once() -> None:
    traffic = Traffic()
    for _ in range(10):
        traffic.choice.on_result(Queue("T", "b", 0), 1, ConnectionLost("gone"))

    await traffic.clock.advance(2_000)

    assert (await traffic.send(3))["b"] >= 1


async def test_where_all_lag_all_are_used() -> None:
    traffic = Traffic()
    traffic.latency_ms = {"a": 700, "b": 700, "c": 700}

    seen = await traffic.send(900)

    assert min(seen.values()) > 280


async def test_an_error_that_is_not_the_brokers_says_nothing_of_it() -> None:
    traffic = Traffic()
    traffic.error["b"] = TopicNotFound("not here")

    assert (await traffic.send(300))["b"] == 100


@pytest.mark.parametrize("broker", ["a", "b", "c"])
async def test_one_broker_alone_is_always_chosen(broker: str) -> None:
    traffic = Traffic()
    traffic.choice.on_result(Queue("T", broker, 0), 1, ConnectionLost("gone"))

    assert traffic.choice.choose(MESSAGE, (Queue("T", broker, 0),)).broker == broker


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.floats(0, 20_000), st.booleans(), st.integers(0, 5_000)
        ),
        max_size=60,
    )
)
async def test_no_broker_is_ever_starved(results: list[tuple[str, float, bool, int]]) -> None:
    traffic = Traffic()
    for broker, latency_ms, failed, pause_ms in results:
        error = ConnectionLost("gone") if failed else None
        traffic.choice.on_result(Queue("T", broker, 0), latency_ms, error)
        await traffic.clock.advance(pause_ms)

    await traffic.send(1)
    await traffic.clock.advance(30_000)

    assert set(await traffic.send(100)) == {"a", "b", "c"}
