"""What leaves a broker that is master no more: its refusal, whatever a call found on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.broker.replication.mastership import as_master
from pocketmq.proto.errors import (
    MasterFenced,
    OffsetOutOfRange,
    PocketMQError,
    StoreClosed,
    TopicNotFound,
)
from pocketmq.proto.errors_wire import to_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Method, MethodTable
from pocketmq.proto.rpc.methods import MethodKind

PATH = "/pocketmq.v1.Broker/Fetch"


class Asked:
    """A stream of fetches, and what was said on it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.failed: list[PocketMQError] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def fail(self, error: PocketMQError) -> None:
        self.failed.append(error)


def streams(*fenced: MasterFenced) -> tuple[Asked, Any]:
    """Return a stream, and what a handler of a broker that is FENCED has of it."""
    handed: list[Any] = []
    method = Method(PATH, MethodKind.BIDI, pb.FetchRequest, pb.FetchReply, handed.append)

    def check() -> None:
        for error in fenced:
            raise error

    asked = Asked()
    as_master(MethodTable({PATH: method}), check, check)[PATH].handler(asked)
    return asked, handed[0]


#: What a call may find at a broker that is master no more: its store is closed, or lacks what the next master has.
FOUND = [StoreClosed("closed"), OffsetOutOfRange("too far"), TopicNotFound("nowhere")]


@pytest.mark.parametrize("is_master", [True, False])
@pytest.mark.parametrize("found", FOUND)
def test_whatever_a_call_found_is_told_as_the_end_of_the_office(
    found: PocketMQError, is_master: bool
) -> None:
    asked, stream = streams(*([] if is_master else [MasterFenced("another is master")]))
    reply = pb.FetchReply(fetch_id=7)
    reply.error.CopyFrom(to_wire(found))

    stream.send(reply)
    stream.fail(found)

    told = type(found) if is_master else MasterFenced
    assert [(sent.fetch_id, sent.error.name) for sent in asked.sent] == [(7, told.__name__)]
    assert [type(error) for error in asked.failed] == [told]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("found", FOUND)
async def test_so_is_what_a_unary_call_failed_with(found: PocketMQError, waits: bool) -> None:
    fenced: list[MasterFenced] = []

    def check() -> None:
        for error in fenced:
            raise error

    def fail_at_once(request: pb.FetchRequest, _: Any) -> pb.FetchReply:
        fenced.append(MasterFenced("another is master"))
        raise found

    async def fail_later(request: pb.FetchRequest, _: Any) -> pb.FetchReply:
        await asyncio.sleep(0)
        return fail_at_once(request, _)

    handler = fail_later if waits else fail_at_once
    method = Method(PATH, MethodKind.UNARY, pb.FetchRequest, pb.FetchReply, handler)
    asked = as_master(MethodTable({PATH: method}), check, check)[PATH].handler

    with pytest.raises(MasterFenced, match="another is master"):
        await asked(pb.FetchRequest(), Asked())


async def test_what_was_taken_before_a_hand_over_is_answered_and_nothing_new_is_taken() -> None:
    is_handing_over = False
    finish = asyncio.Event()

    def check_open() -> None:
        if is_handing_over:
            raise MasterFenced("hands over")

    async def handler(request: pb.FetchRequest, _: Any) -> pb.FetchReply:
        await finish.wait()
        return pb.FetchReply(fetch_id=request.fetch_id)

    method = Method(PATH, MethodKind.UNARY, pb.FetchRequest, pb.FetchReply, handler)
    asked = as_master(MethodTable({PATH: method}), check_open, lambda: None)[PATH].handler
    under_way = asyncio.ensure_future(asked(pb.FetchRequest(fetch_id=7), Asked()))
    await asyncio.sleep(0)
    is_handing_over = True
    finish.set()

    assert (await under_way).fetch_id == 7
    with pytest.raises(MasterFenced, match="hands over"):
        await asked(pb.FetchRequest(fetch_id=8), Asked())
