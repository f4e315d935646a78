"""What is answered to consumers is safe."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.proto.errors import DiskFailure
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import LATER
from pocketmq.store.flush import Waiter
from tests.fake_calls import FakeCall

from ..pop.popping import GROUP, TOPIC
from .consuming import CLIENT, Consuming, handles_of, resource, seconds


@pytest.fixture
def waiting(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> list[Waiter]:
    """Return who waits for the journal to be safe."""
    found: list[Waiter] = []
    monkeypatch.setattr(type(consuming.pops), "when_safe", lambda _, done: found.append(done))
    return found


def asked(consuming: Consuming, name: str, handle: str) -> FakeCall:
    """Ask NAME for HANDLE, and return the call, which is answered later."""
    names: dict[str, Any] = {"group": resource(GROUP), "topic": resource(TOPIC)}
    requests: dict[str, Any] = {
        "AckMessage": v2.AckMessageRequest(
            entries=[v2.AckMessageEntry(receipt_handle=handle)], **names
        ),
        "ChangeInvisibleDuration": v2.ChangeInvisibleDurationRequest(
            receipt_handle=handle, invisible_duration=seconds(15), **names
        ),
        "ForwardMessageToDeadLetterQueue": v2.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=handle, **names
        ),
    }
    call = FakeCall(metadata=CLIENT)
    assert consuming.method(name)(requests[name], call) is LATER
    assert call.answers == []
    return call


@pytest.mark.parametrize(
    "name", ["AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"]
)
async def test_answers_wait_until_what_they_say_is_safe(
    consuming: Consuming, waiting: list[Waiter], name: str
) -> None:
    consuming.send(b"1")
    (handle,) = handles_of(consuming.receive())
    call = asked(consuming, name, handle)

    waiting.pop()(None)

    assert call.answer.status == v2.Status(code=v2.OK, message="OK")


@pytest.mark.parametrize(
    "name", ["AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"]
)
async def test_what_cannot_be_kept_is_said(
    consuming: Consuming, waiting: list[Waiter], name: str
) -> None:
    consuming.send(b"1")
    (handle,) = handles_of(consuming.receive())
    call = asked(consuming, name, handle)

    waiting.pop()(DiskFailure("the disk is gone"))

    status = v2.Status(code=v2.INTERNAL_SERVER_ERROR, message="the disk is gone")
    assert call.answer.status == status
    if name == "AckMessage":
        assert [entry.status for entry in call.answer.entries] == [status]
    if name == "ChangeInvisibleDuration":
        assert call.answer.receipt_handle
