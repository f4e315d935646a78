"""Groups that keep order, as their consumers see it: recorded from Apache's, and where ours is better."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from tests.fake_calls import FakeStream
from tests.recorded_v2 import recorded_group

from .consuming import Consuming, bodies, handles_of, messages_of, parts_of

GROUPS = [{"__SHARDINGKEY": f"g{number % 2}"} for number in range(4)]


@pytest.fixture
def ordered(consuming: Consuming) -> Consuming:
    """Return a broker whose group keeps order, with the four messages of the recording."""
    consuming.group(consume_message_orderly=True)
    consuming.send(b"o0", b"o1", b"o2", b"o3", properties=GROUPS)
    return consuming


def two(ordered: Consuming, attempt_id: str) -> FakeStream:
    return ordered.receive(batch_size=2, auto_renew=True, attempt_id=attempt_id)


def seen(stream: FakeStream) -> list[tuple[int, int, str]]:
    """Return offset, attempt and message group of each message."""
    found = (message.system_properties for message in messages_of(stream))
    return [(one.queue_offset, one.delivery_attempt, one.message_group) for one in found]


def recorded(name: str) -> list[tuple[int, int, str]]:
    """Return the same of what Apache's answered in the case NAME."""
    return list(_recorded(name))


def _recorded(name: str) -> Iterator[tuple[int, int, str]]:
    (case,) = (one for one in recorded_group("receive")["cases"] if one["id"] == name)
    for reply in case["responses"]:
        if "message" in reply["body"]:
            system: dict[str, Any] = reply["body"]["message"]["system_properties"]
            offset = int(system.get("queue_offset", 0))
            yield offset, system["delivery_attempt"], system["message_group"]


async def test_an_attempt_that_is_repeated_gets_the_same_without_waiting_or_counting(
    ordered: Consuming,
) -> None:
    first = two(ordered, "attempt-1")
    again = two(ordered, "attempt-1")

    assert seen(first) == recorded("receive-64")
    assert seen(again) == recorded("receive-66") == seen(first)
    assert handles_of(again) == handles_of(first)


async def test_what_is_behind_a_message_of_its_group_waits_until_that_is_acknowledged(
    ordered: Consuming,
) -> None:
    first, second = handles_of(two(ordered, "attempt-1"))
    others = [two(ordered, "attempt-2"), two(ordered, "attempt-3")]
    assert [other.sent for other in others] == [[], []]

    ordered.ack_message(first)
    ordered.ack_message(second)

    assert [*seen(others[0]), *seen(others[1])] == recorded("receive-70")


async def test_one_group_goes_on_while_another_is_not_finished(ordered: Consuming) -> None:
    """Apache holds back the whole queue (receive-68)."""
    first, _ = handles_of(two(ordered, "attempt-1"))
    ordered.ack_message(first)

    assert bodies(two(ordered, "attempt-3")) == [b"o2"]


async def test_a_message_that_is_handed_back_comes_alone(ordered: Consuming) -> None:
    """Apache brings the acknowledged one of the other group once more (receive-73)."""
    ordered.ack_message(*handles_of(two(ordered, "attempt-1")))
    first, second = handles_of(two(ordered, "attempt-4"))
    ordered.change(first, 1)
    ordered.ack_message(second)
    stream = two(ordered, "attempt-5")
    assert not stream.sent

    await ordered.passes(1_100)

    assert seen(stream) == recorded("receive-73")[:1]
    assert parts_of(stream)[-1] == "delivery_timestamp"


async def test_a_dead_letter_lets_its_group_go_on(ordered: Consuming) -> None:
    first, second = handles_of(two(ordered, "attempt-1"))

    assert ordered.forward(first).status.code == v2.OK
    ordered.ack_message(second)

    assert bodies(two(ordered, "attempt-2")) == [b"o2", b"o3"]
    assert [body for body, _ in ordered.dead()] == [b"o0"]
