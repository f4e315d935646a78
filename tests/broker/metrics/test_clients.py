"""What clients measure: kept by series, added up or replaced, bounded."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pocketmq.broker.metrics.clients import (
    BUCKETS_MAX,
    LABEL_LENGTH_MAX,
    SERIES_AGE_MS,
    ClientHistogram,
    ClientMetrics,
)
from pocketmq.proto.clock import VirtualClock

SEND = "rocketmq_send_cost_time"
HELD = "rocketmq_consumer_cached_messages"
ONE = ClientHistogram(bounds=(1.0, 5.0), counts=(3, 2, 1), total=20.5)


def metrics(**limits: int) -> tuple[ClientMetrics, VirtualClock]:
    clock = VirtualClock(0)
    return ClientMetrics(clock.now_ms, **limits), clock


def only(kept: ClientMetrics, name: str = SEND) -> ClientHistogram:
    ((_, histogram),) = kept.histograms(name)
    return histogram


def test_a_series_says_what_was_said_last() -> None:
    kept, _ = metrics()
    later = replace(ONE, counts=(4, 2, 1), total=21.0)

    assert kept.note(SEND, {"client_id": "a"}, ONE)
    assert kept.note(SEND, {"client_id": "a"}, later)

    assert only(kept) == later
    assert only(kept).count == 7


def test_what_is_said_since_the_last_time_is_added_up() -> None:
    kept, _ = metrics()
    for _ in range(3):
        kept.note(SEND, {"client_id": "a"}, ONE, is_delta=True)

    assert only(kept) == ClientHistogram(bounds=(1.0, 5.0), counts=(9, 6, 3), total=61.5)


def test_other_bounds_begin_anew() -> None:
    kept, _ = metrics()
    other = replace(ONE, bounds=(1.0, 6.0))
    kept.note(SEND, {"client_id": "a"}, ONE, is_delta=True)
    kept.note(SEND, {"client_id": "a"}, other, is_delta=True)

    assert only(kept) == other


def test_labels_are_named_by_the_client_and_in_one_order() -> None:
    kept, _ = metrics()
    labels = {
        "language": "JAVA",
        "client_id": "a@1",
        "consumer_group": "G",
        "topic": "T" * 300,
        "other": "x",
    }
    kept.note_gauge(HELD, labels, 7)

    assert list(kept.gauges(HELD)) == [(("a@1", "T" * LABEL_LENGTH_MAX, "G", "JAVA", ""), 7)]


def test_the_series_that_was_not_heard_of_for_longest_makes_room() -> None:
    kept, _ = metrics(series_max=3)
    for client in ("a", "b", "c", "a", "d"):
        kept.note(SEND, {"client_id": client}, ONE)

    assert {labels[0] for labels, _ in kept.histograms(SEND)} == {"c", "a", "d"}
    assert (len(kept), kept.dropped) == (3, 1)


def test_a_client_of_many_topics_leaves_others_their_share() -> None:
    kept, _ = metrics(series_max=100)
    few, many = ["t0", "t1"], [f"t{number}" for number in range(1_000)]
    for client, topics in (("a", few), ("large", many), ("b", few), ("large", many), ("c", few)):
        for topic in topics:
            kept.note(SEND, {"client_id": client, "topic": topic}, ONE)

    found = [labels[:2] for labels, _ in kept.histograms(SEND)]
    assert {one for one in found if one[0] != "large"} == {
        (client, topic) for client in "abc" for topic in few
    }
    assert len(kept) == len(found) == 100


def test_two_clients_of_many_topics_have_half_of_the_room_each() -> None:
    kept, _ = metrics(series_max=100)
    for client in ("a", "b", "a"):
        for number in range(1_000):
            kept.note(SEND, {"client_id": client, "topic": f"t{number}"}, ONE)

    clients = [labels[0] for labels, _ in kept.histograms(SEND)]
    assert (clients.count("a"), clients.count("b")) == (50, 50)


async def test_a_client_that_is_silent_is_forgotten() -> None:
    kept, clock = metrics()
    kept.note(SEND, {"client_id": "gone"}, ONE)
    await clock.advance(SERIES_AGE_MS)
    kept.note(SEND, {"client_id": "here"}, ONE)
    assert len(list(kept.histograms(SEND))) == 2

    await clock.advance(1)

    assert [labels[0] for labels, _ in kept.histograms(SEND)] == ["here"]
    assert kept.dropped == 0


@pytest.mark.parametrize(
    ("name", "histogram"),
    [
        ("rocketmq_other_time", ONE),
        (HELD, ONE),
        (SEND, replace(ONE, counts=(1, 2))),
        (SEND, replace(ONE, counts=(1, -2, 3))),
        (SEND, replace(ONE, counts=(1, 2, 1 << 63))),
        (SEND, replace(ONE, bounds=(5.0, 1.0))),
        (SEND, replace(ONE, bounds=(1.0, 1.0))),
        (SEND, replace(ONE, bounds=(1.0, math.inf))),
        (SEND, replace(ONE, bounds=(math.nan, 1.0))),
        (SEND, replace(ONE, total=math.nan)),
        (
            SEND,
            ClientHistogram(
                tuple(range(BUCKETS_MAX + 1)),
                (0,) * (BUCKETS_MAX + 2),
                0.0,
            ),
        ),
    ],
)
def test_what_is_no_histogram_of_a_client_is_not_kept(
    name: str, histogram: ClientHistogram
) -> None:
    kept, _ = metrics()

    assert not kept.note(name, {}, histogram)
    assert not kept.note_gauge(SEND, {}, 1.0)
    assert not kept.note_gauge(HELD, {}, math.nan)
    assert len(kept) == 0


def test_the_most_buckets_are_kept() -> None:
    kept, _ = metrics()
    most = ClientHistogram(tuple(map(float, range(BUCKETS_MAX))), (1,) * (BUCKETS_MAX + 1), 0.0)

    assert kept.note(SEND, {}, most)
