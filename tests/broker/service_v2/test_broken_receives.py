"""What a stream that breaks has not carried comes again, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from tests.fake_calls import FakeStream

from .consuming import CLIENT, Consuming, bodies, handles_of, messages_of


class LeavingStream(FakeStream):
    """A stream whose queue leaves when it is told so."""

    def send(self, message: Any) -> None:
        super().send(message)
        if not self.cancelled:
            self.waiting_bytes += message.ByteSize()

    def leaves(self, count: int) -> None:
        """Let the first COUNT of what was sent leave."""
        self.waiting_bytes = sum(message.ByteSize() for message in self.sent[count:])


@pytest.mark.parametrize("left", [0, 1, 2])
async def test_what_has_not_left_comes_again_in_a_second(consuming: Consuming, left: int) -> None:
    consuming.send(b"1", b"2", b"3")
    stream = LeavingStream(metadata=CLIENT, deadline_ms=13_000)
    consuming.method("ReceiveMessage")(consuming.request(), stream)

    stream.leaves(1 + left)
    stream.cancel()

    await consuming.passes(1_100)
    assert bodies(consuming.receive(deadline_ms=None)) == [b"1", b"2", b"3"][left:]
    for handle in handles_of(stream)[:left]:
        assert consuming.ack_message(handle).status.code == v2.OK


async def test_a_stream_that_has_carried_everything_hands_nothing_back(
    consuming: Consuming,
) -> None:
    consuming.send(b"1")
    stream = LeavingStream(metadata=CLIENT, deadline_ms=13_000)
    consuming.method("ReceiveMessage")(consuming.request(), stream)
    stream.leaves(3)
    stream.cancel()

    await consuming.passes(2_000)

    assert not consuming.receive().sent


async def test_what_was_acknowledged_stays_so(consuming: Consuming) -> None:
    consuming.send(b"1")
    stream = LeavingStream(metadata=CLIENT, deadline_ms=13_000)
    consuming.method("ReceiveMessage")(consuming.request(), stream)
    consuming.ack_message(*handles_of(stream))
    stream.cancel()

    await consuming.passes(2_000)

    assert not consuming.receive().sent


async def test_a_push_consumer_asks_for_the_same_attempt_again_and_gets_it_at_once(
    consuming: Consuming,
) -> None:
    consuming.send(b"1")
    stream = LeavingStream(metadata=CLIENT, deadline_ms=13_000)
    request = consuming.request(auto_renew=True, attempt_id="attempt-1")
    consuming.method("ReceiveMessage")(request, stream)
    stream.cancel()

    (again,) = messages_of(consuming.receive(auto_renew=True, attempt_id="attempt-1"))

    assert (again.body, again.system_properties.delivery_attempt) == (b"1", 1)
