"""Queues by hash: stable, the same as Apache's, and few keys move when queues are added."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import Message, Queue
from pocketmq.client.producing.queue_selector import JavaHash, KeyHash, in_order, sharded_queue
from pocketmq.proto.java_hash import consistent_bucket, java_hash


def queues(count: int, *brokers: str) -> tuple[Queue, ...]:
    """Return COUNT queues on each of BROKERS, ordered as routes have them."""
    return tuple(Queue("T", b, n) for n in range(count) for b in brokers or ("a",))


def message(key: str | None) -> Message:
    return Message("T", b"x", key=key)


@pytest.mark.parametrize("kind", [KeyHash, JavaHash])
def test_a_key_has_one_queue_whatever_the_order_of_the_route(kind: type[KeyHash]) -> None:
    route = queues(4, "a", "b")
    shuffled = list(route)
    Random(1).shuffle(shuffled)

    chosen = {kind(Random(n)).choose(message("order-7"), route) for n in range(5)}

    assert chosen == {kind().choose(message("order-7"), shuffled)}


def test_keys_spread_evenly() -> None:
    choice = KeyHash()
    counts = dict.fromkeys(queues(8), 0)

    for number in range(8_000):
        counts[choice.choose(message(f"key-{number}"), queues(8))] += 1

    assert 850 < min(counts.values()) <= max(counts.values()) < 1_150


def test_messages_without_a_key_go_round() -> None:
    choice = KeyHash(Random(3))

    chosen = [choice.choose(message(None), queues(4)) for _ in range(8)]

    assert all(chosen.count(queue) == 2 for queue in queues(4))


def test_the_java_hash_takes_apaches_queue() -> None:
    # Java: "polygenelubricants".hashCode() is Integer.MIN_VALUE; -2147483648 % 3 is -2, its absolute value 2.
    assert java_hash("polygenelubricants") == -(1 << 31)
    route = queues(3)

    assert JavaHash().choose(message("polygenelubricants"), route).number == 2
    # Java: "order-1".hashCode() is -1207111310; % 3 is -2.
    assert java_hash("order-1") == -1207111310
    assert JavaHash().choose(message("order-1"), route).number == 2


@given(st.text(min_size=1).filter(lambda text: " " not in text), st.integers(1, 40))
def test_the_java_hash_is_javas_remainder_without_its_sign(key: str, count: int) -> None:
    number = java_hash(key)
    remainder = number % count if number >= 0 else -(-number % count)

    assert JavaHash().hash(key) % count == abs(remainder)


def test_queues_count_by_broker_then_number() -> None:
    assert [str(queue) for queue in in_order(queues(2, "b", "a"))] == [
        "T[a:0]",
        "T[a:1]",
        "T[b:0]",
        "T[b:1]",
    ]


def test_the_consistent_hash_is_guavas() -> None:
    golden = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]

    assert [consistent_bucket(number, 100) for number in range(20)] == golden
    assert consistent_bucket(10863919174838991, 11) == 6
    assert consistent_bucket(2201, 100001) == 22152
    assert consistent_bucket(2202, 100001) == 15018


def test_a_ninth_queue_takes_a_ninth_of_the_sharding_keys_and_moves_no_other() -> None:
    keys = [f"customer-{number}" for number in range(2_000)]

    before = [sharded_queue(key, queues(8)) for key in keys]
    after = [sharded_queue(key, queues(9)) for key in keys]

    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert {queue.number for queue in moved} == {8}
    assert 150 < len(moved) < 300
