"""What leaves a broker that is master no more: its refusal, whatever a call found on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pocketmq.broker.replication.answering import MasterChecks, as_master
from pocketmq.broker.replication.mastership import Told
from pocketmq.proto.errors import (
    MasterFenced,
    OffsetOutOfRange,
    Overloaded,
    PocketMQError,
    StoreClosed,
    TopicNotFound,
)
from pocketmq.proto.errors_wire import to_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import LATER, Method, MethodTable
from pocketmq.proto.rpc.methods import MethodKind

PATH = "/pocketmq.v1.Broker/Fetch"


class Asked:
    """A stream of fetches, and what was said on it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.failed: list[PocketMQError] = []
        #: How much was said before each end.
        self.ends: list[int] = []

    def reply(self, message: Any) -> None:
        self.sent.append(message)

    def finish(self) -> None:
        self.ends.append(len(self.sent))

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def fail(self, error: PocketMQError) -> None:
        self.failed.append(error)


def checks_of(check: Callable[[], None]) -> MasterChecks:
    """Return checks that raise as CHECK does, and for which the metadata store answers at once."""
    return MasterChecks(check, check, lambda told: told(None))


class Store:
    """The metadata store, which answers when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Told] = []
        self.checks = MasterChecks(lambda: None, lambda: None, self.waiting.append)

    def answer(self, error: PocketMQError | None) -> None:
        """Say that the session lasts, or ERROR."""
        self.waiting.pop(0)(error)


def streams(*fenced: MasterFenced) -> tuple[Asked, Any]:
    """Return a stream, and what a handler of a broker that is FENCED has of it."""
    handed: list[Any] = []
    method = Method(PATH, MethodKind.BIDI, pb.FetchRequest, pb.FetchReply, handed.append)

    def check() -> None:
        for error in fenced:
            raise error

    asked = Asked()
    as_master(MethodTable({PATH: method}), checks_of(check))[PATH].handler(asked)
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
    asked = as_master(MethodTable({PATH: method}), checks_of(check))[PATH].handler

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
    checks = MasterChecks(check_open, lambda: None, lambda told: told(None))
    asked = as_master(MethodTable({PATH: method}), checks)[PATH].handler
    under_way = asyncio.ensure_future(asked(pb.FetchRequest(fetch_id=7), Asked()))
    await asyncio.sleep(0)
    is_handing_over = True
    finish.set()

    assert (await under_way).fetch_id == 7
    with pytest.raises(MasterFenced, match="hands over"):
        await asked(pb.FetchRequest(fetch_id=8), Asked())


#: What the metadata store may say, and what leaves then.
SAID: list[tuple[PocketMQError | None, type[PocketMQError]]] = [
    (None, TopicNotFound),
    (MasterFenced("another is master"), MasterFenced),
]


@pytest.mark.parametrize(("said", "told"), SAID)
def test_a_stream_says_that_something_is_missing_only_when_the_metadata_store_has_answered(
    said: PocketMQError | None, told: type[PocketMQError]
) -> None:
    store, asked = Store(), Asked()
    handed: list[Any] = []
    method = Method(PATH, MethodKind.BIDI, pb.FetchRequest, pb.FetchReply, handed.append)
    as_master(MethodTable({PATH: method}), store.checks)[PATH].handler(asked)
    stream = handed[0]
    missing = pb.FetchReply(fetch_id=7, error=to_wire(TopicNotFound("nowhere")))

    stream.send(missing)
    missing.Clear()  # The handler may use it again.
    stream.send(pb.FetchReply(fetch_id=8))
    stream.send(pb.FetchReply(fetch_id=9, error=to_wire(Overloaded("too much"))))
    stream.finish()

    assert [sent.fetch_id for sent in asked.sent] == [8, 9]
    assert asked.ends == []
    store.answer(said)
    assert (asked.sent[-1].fetch_id, asked.sent[-1].error.name) == (7, told.__name__)
    assert asked.ends == [3]


@pytest.mark.parametrize(("said", "told"), SAID)
async def test_so_does_a_unary_call(said: PocketMQError | None, told: type[PocketMQError]) -> None:
    def fail_at_once(request: pb.FetchRequest, _: Any) -> Any:
        raise TopicNotFound("nowhere")

    async def fail_later(request: pb.FetchRequest, _: Any) -> Any:
        await asyncio.sleep(0)
        raise TopicNotFound("nowhere")

    def fail_call(request: pb.FetchRequest, call: Any) -> Any:
        call.fail(TopicNotFound("nowhere"))
        return LATER

    for handler in (fail_at_once, fail_call):
        store, asked = Store(), Asked()
        method = Method(PATH, MethodKind.UNARY, pb.FetchRequest, pb.FetchReply, handler)
        answer = as_master(MethodTable({PATH: method}), store.checks)[PATH].handler
        assert answer(pb.FetchRequest(), asked) is LATER
        assert not asked.failed
        store.answer(said)
        assert [type(error) for error in asked.failed] == [told]

    store = Store()
    method = Method(PATH, MethodKind.UNARY, pb.FetchRequest, pb.FetchReply, fail_later)
    answer = as_master(MethodTable({PATH: method}), store.checks)[PATH].handler
    under_way = asyncio.ensure_future(answer(pb.FetchRequest(), Asked()))
    while not store.waiting:  # noqa: ASYNC110 (the handler has no event)
        await asyncio.sleep(0)
    assert not under_way.done()
    store.answer(said)
    with pytest.raises(told):
        await under_way


#: Replies that say that something is missing, and replies of the same methods that do not.
REPLIES = [
    (pb.GroupOffsetsReply(offsets=[pb.GroupOffset(offset=-1)]), True),
    (pb.GroupOffsetsReply(offsets=[pb.GroupOffset(offset=0)]), False),
    (pb.LeaseReply(queues=[pb.QueueLease(token=7, committed=-1)]), True),
    (pb.LeaseReply(queues=[pb.QueueLease(token=7, committed=0)]), False),
    (pb.LeaseReply(queues=[pb.QueueLease(holder="another", committed=-1)]), False),
    (pb.LookupReply(), True),
    (pb.LookupReply(records=b"found"), False),
    (v2.GetOffsetResponse(status=v2.Status(code=v2.OFFSET_NOT_FOUND)), True),
    (v2.GetOffsetResponse(status=v2.Status(code=v2.OK)), False),
    (v2.SendMessageResponse(status=v2.Status(code=v2.TOPIC_NOT_FOUND)), True),
]


@pytest.mark.parametrize("said", [None, MasterFenced("another is master")])
@pytest.mark.parametrize(("reply", "is_missing"), REPLIES)
async def test_replies_that_say_so_wait_as_well(
    reply: Any, is_missing: bool, said: PocketMQError | None
) -> None:
    def answer_at_once(request: pb.FetchRequest, _: Any) -> Any:
        return reply

    async def answer_later(request: pb.FetchRequest, _: Any) -> Any:
        return reply

    def answer_call(request: pb.FetchRequest, call: Any) -> Any:
        call.reply(reply)
        return LATER

    for handler in (answer_at_once, answer_later, answer_call):
        store, asked = Store(), Asked()
        method = Method(PATH, MethodKind.UNARY, pb.FetchRequest, pb.FetchReply, handler)
        answer = as_master(MethodTable({PATH: method}), store.checks)[PATH].handler
        outcome = answer(pb.FetchRequest(), asked)
        if handler is answer_later:
            outcome = asyncio.ensure_future(outcome)
            await asyncio.sleep(0)
        assert len(store.waiting) == is_missing
        if is_missing:
            assert not asked.sent
            store.answer(said)
        try:
            if handler is answer_later:
                asked.sent.append(await outcome)
        except MasterFenced as error:
            asked.failed.append(error)
        if outcome is reply:
            asked.sent.append(outcome)
        is_fenced = is_missing and said is not None
        assert asked.sent == ([] if is_fenced else [reply])
        assert asked.failed == ([said] if is_fenced else [])
