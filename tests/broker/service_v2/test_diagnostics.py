"""Questions to one client: which command it gets, and whose answer counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.service_v2.diagnostics import Diagnostics
from pocketmq.proto.access.policies import SUB, of_topic
from pocketmq.proto.errors import (
    InvalidArgument,
    MessageNotFound,
    NotAuthorized,
    Overloaded,
    PocketMQError,
    QueueNotFound,
    RequestTimeout,
)
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import LATER

from ...fake_calls import FakeCall, FakeUser
from ...runs import make_run, open_store
from .connected import PRODUCER, Connected, Peer, consumer

STACKS = pb.AskClientRequest(client_id="c", thread_stacks=pb.ThreadStacks())


class Asking(Connected):
    """Clients, and an administrator who asks them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.store = open_store(folder / "store")
        self.diagnostics = Diagnostics(self.sessions, self.topics, self.store, self.timers)
        self.events.client_answered.append(self.diagnostics.take)

    def question(self, request: pb.AskClientRequest) -> FakeCall:
        """Ask; return the call, which waits."""
        call = FakeCall()
        assert self.diagnostics.ask(request, call) is LATER
        return call


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Asking]:
    asking = Asking(tmp_path)
    asking.timers.start()
    yield asking
    await asking.timers.stop()
    asking.store.close()


def connect(asking: Asking, who: str = "c") -> Peer:
    peer = asking.open(who)
    peer.say(consumer())
    return peer


def say(peer: Peer, **fields: Any) -> None:
    peer.receiver.on_message(v2.TelemetryCommand(**fields))


async def test_stacks_come_from_the_client_that_was_asked(asking: Asking) -> None:
    peer, other = connect(asking), connect(asking, "other")
    call = asking.question(STACKS)
    nonce = peer.stream.sent[-1].print_thread_stack_trace_command.nonce

    for who in (other, peer, peer):
        trace = v2.ThreadStackTrace(nonce=nonce, thread_stack_trace="main at …")
        say(who, status=v2.Status(code=v2.OK), thread_stack_trace=trace)
        if who is other:
            assert call.answer is None

    assert call.answer == pb.AskClientReply(code=v2.OK, text="main at …")


async def test_a_message_is_tried_by_the_listener_of_a_client(asking: Asking) -> None:
    asking.store.append(make_run("R-normal", 1, [b"verify me"], {"TAGS": "T"}))
    peer = connect(asking)
    place = pb.TryMessage(topic="R-normal", queue=1, offset=0)
    call = asking.question(pb.AskClientRequest(client_id="c", try_message=place))
    command = peer.stream.sent[-1].verify_message_command

    failed = v2.Status(code=v2.FAILED_TO_CONSUME_MESSAGE, message="no")
    say(peer, status=failed, verify_message_result=v2.VerifyMessageResult(nonce=command.nonce))

    system = command.message.system_properties
    assert (command.message.body, system.tag, system.delivery_attempt) == (b"verify me", "T", 1)
    assert not system.HasField("receipt_handle")
    assert call.answer == pb.AskClientReply(code=v2.FAILED_TO_CONSUME_MESSAGE, message="no")


async def test_a_client_whose_user_may_not_read_the_topic_is_given_no_message_of_it(
    asking: Asking,
) -> None:
    asking.store.append(make_run("R-normal", 1, [b"top secret"]))
    peer = asking.open(user=FakeUser("alice", of_topic("R-normal", SUB)))
    peer.say(consumer())
    place = pb.TryMessage(topic="R-normal", queue=1, offset=0)
    with pytest.raises(NotAuthorized, match="its user may not read topic 'R-normal'"):
        asking.question(pb.AskClientRequest(client_id="alice/c", try_message=place))
    assert not any(one.HasField("verify_message_command") for one in peer.stream.sent)


async def test_reconnecting_is_answered_when_it_is_sent(asking: Asking) -> None:
    peer = connect(asking)

    reply = asking.diagnostics.ask(
        pb.AskClientRequest(client_id="c", reconnect=pb.Reconnect()), FakeCall()
    )

    assert reply == pb.AskClientReply(code=v2.OK)
    assert peer.stream.sent[-1].HasField("reconnect_endpoints_command")


async def test_who_does_not_answer_is_given_up_in_time(asking: Asking) -> None:
    connect(asking)
    calls = [
        asking.question(STACKS),
        asking.question(
            pb.AskClientRequest(client_id="c", thread_stacks=pb.ThreadStacks(), timeout_ms=10**9)
        ),
    ]

    await asking.clock.advance(3_000)
    assert [type(call.answer) for call in calls] == [RequestTimeout, type(None)]
    await asking.clock.advance(57_000)

    assert isinstance(calls[1].error, RequestTimeout)


async def test_an_answer_to_an_administrator_who_has_gone_is_dropped(asking: Asking) -> None:
    peer = connect(asking)
    call = asking.question(STACKS)
    call.cancel()

    nonce = peer.stream.sent[-1].print_thread_stack_trace_command.nonce
    say(peer, thread_stack_trace=v2.ThreadStackTrace(nonce=nonce))
    await asking.clock.advance(60_000)

    assert call.answer is None


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (pb.AskClientRequest(client_id="c"), InvalidArgument),
        (
            pb.AskClientRequest(client_id="nobody", thread_stacks=pb.ThreadStacks()),
            InvalidArgument,
        ),
        (
            pb.AskClientRequest(client_id="c", try_message=pb.TryMessage(topic="R-normal")),
            MessageNotFound,
        ),
        (
            pb.AskClientRequest(
                client_id="c", try_message=pb.TryMessage(topic="R-normal", queue=9)
            ),
            QueueNotFound,
        ),
    ],
    ids=["nothing", "nobody", "no message", "no queue"],
)
async def test_questions_that_cannot_be_asked_are_refused(
    asking: Asking, request_: pb.AskClientRequest, error: type[PocketMQError]
) -> None:
    connect(asking)

    with pytest.raises(error):
        asking.question(request_)


async def test_a_client_that_does_not_read_is_not_asked(asking: Asking) -> None:
    connect(asking).stream.waiting_bytes = 256 * 1024

    with pytest.raises(InvalidArgument, match="does not read it"):
        asking.question(STACKS)


async def test_questions_have_a_bound(asking: Asking) -> None:
    connect(asking)
    for _ in range(1_000):
        asking.question(STACKS)

    with pytest.raises(Overloaded, match="the limit is 1000"):
        asking.question(STACKS)


async def test_clients_are_listed_by_name_with_what_is_known_of_them(asking: Asking) -> None:
    asking.sessions.record_activity("silent", "rust")
    settings = consumer()
    settings.user_agent.language = v2.NODE_JS
    settings.user_agent.version = "1.0.8"
    asking.open("push").say(settings)
    asking.open("make").say(PRODUCER)

    listed = asking.diagnostics.list(pb.ClientListRequest(), FakeCall()).clients

    now_ms = asking.clock.now_ms()
    assert list(listed) == [
        pb.OfficialClient(
            client_id="make",
            type="PRODUCER",
            topics=["R-normal"],
            streams=1,
            heard_ms=now_ms,
        ),
        pb.OfficialClient(
            client_id="push",
            type="PUSH_CONSUMER",
            language="NODE_JS",
            version="1.0.8",
            group="R-g",
            topics=["R-normal"],
            streams=1,
            heard_ms=now_ms,
        ),
        pb.OfficialClient(client_id="silent", language="RUST", heard_ms=now_ms),
    ]
