"""Senders, accumulator and sender together, on the virtual clock, against brokers that go wrong in every way.

The laws: no byte of the buffer is lost or taken twice; each message is settled once; each that was acknowledged is
stored once, each that failed at most once, in the order of sending within a queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from pocketmq.proto.errors import InvalidArgument, NotWritable, QueueNotFound, SendFailed

from .faulty_network import FAULTS, FaultyNetwork

ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["any", "any", "named", "named", "delayed", "bad"]),
            st.integers(1, 9),
            st.integers(0, 600),
        ),
        st.tuples(st.just("wait"), st.integers(0, 1_500), st.just(0)),
    ),
    min_size=1,
    max_size=25,
)


async def act(sea: FaultyNetwork, actions: list[tuple[str, int, int]]) -> None:
    async with asyncio.timeout(30):
        await sea.producer.start()
        for kind, count, size in actions:
            if kind == "wait":
                await sea.clock.advance(count)
            else:
                for _ in range(count):
                    sea.send(kind, size)
            await asyncio.sleep(0)
            sea.check()
        await sea.end()
    assert sea.counters.messages_sent + sea.counters.messages_failed == len(sea.sent)


def check_order(sea: FaultyNetwork) -> None:
    """Assert that what named its queue lies there in the order in which it was sent."""
    named = {message.body for message, _ in sea.sent if message.queue is not None}
    row = [body for queue, body in sea.stored() if queue is not None and body in named]
    assert row == sorted(row)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Retries are logged, and there are thousands."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def check_laws(sea: FaultyNetwork) -> None:
    """Assert what holds for a numbered producer, whatever happened."""
    times = Counter(body for _, body in sea.stored())
    assert sea.acknowledged() <= set(times)
    # A run that may have been stored and is cut leaves two of which each may be given up alone.
    assert sea.counters.possible_repeats == 0 or sea.counters.splits
    if not sea.counters.possible_repeats:
        assert set(times.values()) <= {1}
        check_order(sea)
    kinds = InvalidArgument | SendFailed | QueueNotFound | NotWritable
    assert all(isinstance(error, kinds) for error in sea.failed())


FAULT_LISTS = st.lists(st.sampled_from([*FAULTS, *["fine"] * 6]), max_size=40)


@pytest.mark.long
@settings(max_examples=60)
@given(
    actions=ACTIONS,
    faults=FAULT_LISTS,
    linger_ms=st.sampled_from([0, 0, 20]),
    retries=st.sampled_from([0, 2, 1_000_000, 1_000_000]),
)
async def test_a_numbered_message_is_stored_once_in_order_whatever_happens(
    actions: list[tuple[str, int, int]], faults: list[str], linger_ms: int, retries: int
) -> None:
    sea = FaultyNetwork(faults, {"linger_ms": linger_ms, "retries": retries})

    await act(sea, actions)

    check_laws(sea)


@pytest.mark.parametrize("seed", range(40))
async def test_in_bad_weather_as_well(seed: int) -> None:
    """Denser than what Hypothesis makes: every remedy is taken many times."""
    random = Random(seed)
    faults = random.choices([*FAULTS, *["fine"] * 6], k=40)
    kinds = ["any", "any", "named", "named", "delayed", "bad"] if seed % 2 else ["any", "named"]
    actions = [
        ("wait", random.randint(0, 1_500), 0)
        if random.random() < 0.4
        else (random.choice(kinds), random.randint(1, 9), random.choice([0, 5, 100, 600]))
        for _ in range(25)
    ]
    sea = FaultyNetwork(faults, {"linger_ms": random.choice([0, 0, 20])})

    await act(sea, actions)

    check_laws(sea)
    assert sea.counters.retries


@settings(max_examples=25)
@given(actions=ACTIONS, faults=FAULT_LISTS, ordered=st.booleans())
async def test_without_numbers_what_is_acknowledged_is_stored_at_least_once(
    actions: list[tuple[str, int, int]], faults: list[str], ordered: bool
) -> None:
    sea = FaultyNetwork(faults, {"idempotence": False, "ordered": ordered})

    await act(sea, actions)

    assert sea.acknowledged() <= {body for _, body in sea.stored()}
