"""A broker with users: official clients hear what they heard of Apache RocketMQ 5.5.0, but for what is listed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest
import yaml

from pocketmq.broker.broker import Broker
from pocketmq.proto.errors import NotAuthenticated, NotAuthorized
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2

from .whole_broker import EOF, Peer, broker, store_config

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
RECORDED: Final = Path(__file__).parents[1] / "fixtures/auth-apache-5.5.0.txt"
DATE: Final = "20261122T131258Z"
USERS: Final[dict[str, Any]] = {
    "alice": {
        "secret": "alice-secret",
        "policies": [
            {"resource": "Topic:orders", "actions": "Pub,Sub", "sources": "127.0.0.0/8"},
            {"resource": "Topic:orders*", "actions": "Pub", "decision": "Deny"},
            {"resource": "Group:billing", "actions": "Sub"},
        ],
    },
    "bob": {"secret": "bob-secret", "policies": [{"resource": "Topic:*", "actions": "Sub"}]},
    "root": {"secret": "root-secret", "type": "Super"},
    "gone": {"secret": "gone-secret", "status": "disable"},
}

#: What we answer otherwise: whoever may not do something hears the same but for the first line.
DIFFERENCES: Final[dict[str, int | str]] = {
    # Nobody is told which users there are.
    "unknown user": "check signature failed.",
    # Apache's proxy has failures of its own inside where it has no settings of a client, or a handle or an id is none.
    "alice receive billing orders": v2.OK,
    "alice ack billing orders": v2.INVALID_RECEIPT_HANDLE,
    "root ack billing orders": v2.INVALID_RECEIPT_HANDLE,
    "root ack other orders": v2.INVALID_RECEIPT_HANDLE,
    "alice change billing secret": v2.INVALID_RECEIPT_HANDLE,
    "root change billing secret": v2.INVALID_RECEIPT_HANDLE,
    "root change other": v2.INVALID_RECEIPT_HANDLE,
    "root dead letter other": v2.INVALID_RECEIPT_HANDLE,
    "root end tx secret": v2.INVALID_TRANSACTION_ID,
    "settings without pub/sub, root": v2.BAD_REQUEST,
    # A client's heartbeat and end are taken before its settings too.
    "alice heartbeat simple consumer billing": v2.OK,
    "alice heartbeat producer, group other": v2.OK,
    "alice termination, no group": v2.OK,
    "bob termination, no group": v2.OK,
    "root termination other": v2.OK,
}


def write_users(folder: Path, users: Mapping[str, Any] = USERS) -> str:
    path = folder / "users.yaml"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump({"users": dict(users)}), "utf-8")
    return str(path)


def signature(secret: str, date: str = DATE) -> str:
    return hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()


def header(user: str, secret: str = "", date: str = DATE) -> str:
    made = signature(secret or f"{user}-secret", date)
    return f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={made}"


def metadata(
    authorization: str | None, date: str | None = DATE, client: str | None = "c@1"
) -> tuple[tuple[str, str], ...]:
    entries = {
        "x-mq-language": "PYTHON",
        "x-mq-client-version": "5.1.2",
        "x-mq-client-id": client,
        "x-mq-date-time": date,
        "authorization": authorization,
    }
    return tuple((key, value) for key, value in entries.items() if value is not None)


GOOD: Final = header("alice")
SIGNATURE: Final = signature("alice-secret")
#: The metadata of each call of the first part.
AUTHENTICATION: Final = {
    "no authorization": metadata(None),
    "good": metadata(GOOD),
    "wrong secret": metadata(header("alice", "wrong")),
    "unknown user": metadata(header("mallory", "alice-secret")),
    "disabled user": metadata(header("gone")),
    "empty credential": metadata(f"MQv2-HMAC-SHA1 Credential=, Signature={signature('x')}"),
    "no date": metadata(GOOD, date=None),
    "date not a date": metadata(header("alice", date="whatever"), date="whatever"),
    "date of 1999": metadata(header("alice", date="19990101T000000Z"), date="19990101T000000Z"),
    "signature upper-case hex": metadata(GOOD.replace(SIGNATURE, SIGNATURE.upper())),
    "credential with /region": metadata(GOOD.replace("alice", "alice/cn-hangzhou/RocketMQ")),
    "other algorithm name": metadata(GOOD.replace("MQv2-HMAC-SHA1", "FOO")),
    "no spaces after commas, no SignedHeaders": metadata(
        f"MQv2-HMAC-SHA1 Credential=alice,Signature={SIGNATURE}"
    ),
    "no space": metadata("MQv2-HMAC-SHA1"),
    "item without =": metadata("MQv2-HMAC-SHA1 Credential=alice, Signature"),
    "signature not hex": metadata(GOOD.replace(SIGNATURE, "xyz")),
    "no signature": metadata("MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time"),
    "Basic": metadata("Basic YWxpY2U6YWxpY2Utc2VjcmV0="),
    "no client id": metadata(GOOD, client=None),
    "no client id, no authorization": metadata(None, client=None),
}


def named(name: str) -> v2.Resource:
    return v2.Resource(name=name)


def queue(topic: str) -> v2.MessageQueue:
    return v2.MessageQueue(topic=named(topic), id=0)


def message(topic: str) -> v2.Message:
    system = v2.SystemProperties(message_id="01", message_type=v2.NORMAL)
    return v2.Message(topic=named(topic), body=b"x", system_properties=system)


def publishing(*topics: str) -> v2.Settings:
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.SetInParent()
    settings.publishing.topics.extend(map(named, topics))
    return settings


def subscribing(group: str, topic: str) -> v2.Settings:
    settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.add().topic.name = topic
    return settings


def heartbeat(kind: str, group: str) -> v2.HeartbeatRequest:
    types = {"simple consumer": v2.SIMPLE_CONSUMER, "producer": v2.PRODUCER}
    return v2.HeartbeatRequest(client_type=types[kind], group=named(group))


#: How the calls of the second part are written down, and what they are.
CALLS: Final[list[tuple[str, Callable[..., Any]]]] = [
    (r"route (\S+)", lambda topic: v2.QueryRouteRequest(topic=named(topic))),
    (r"send (\S+)", lambda topic: v2.SendMessageRequest(messages=[message(topic)])),
    (
        r"receive (\S+) (\S+)",
        lambda group, topic: v2.ReceiveMessageRequest(
            group=named(group),
            message_queue=queue(topic),
            batch_size=1,
            invisible_duration=timedelta(seconds=10),
        ),
    ),
    (r"heartbeat (simple consumer) (\S+)", heartbeat),
    (r"heartbeat (producer), group (\S+)", heartbeat),
    (r"termination, no group", v2.NotifyClientTerminationRequest),
    (r"termination (\S+)", lambda group: v2.NotifyClientTerminationRequest(group=named(group))),
    (
        r"ack (\S+) (\S+)",
        lambda group, topic: v2.AckMessageRequest(
            group=named(group),
            topic=named(topic),
            entries=[v2.AckMessageEntry(message_id="1", receipt_handle="x")],
        ),
    ),
    (
        r"change (\S+)(?: (\S+))?",
        lambda group, topic: v2.ChangeInvisibleDurationRequest(
            group=named(group), topic=named(topic or "orders"), receipt_handle="x"
        ),
    ),
    (
        r"assignment (\S+) (\S+)",
        lambda group, topic: v2.QueryAssignmentRequest(group=named(group), topic=named(topic)),
    ),
    (
        r"dead letter (\S+)",
        lambda group: v2.ForwardMessageToDeadLetterQueueRequest(
            group=named(group), topic=named("orders"), receipt_handle="x", message_id="1"
        ),
    ),
    (
        r"end tx (\S+)",
        lambda topic: v2.EndTransactionRequest(
            topic=named(topic), message_id="1", transaction_id="1", resolution=v2.COMMIT
        ),
    ),
    (
        r"recall (\S+)",
        lambda topic: v2.RecallMessageRequest(topic=named(topic), recall_handle="x"),
    ),
    (r"telemetry pub none", publishing),
    (r"telemetry pub (\S+)", lambda topics: publishing(*topics.split(","))),
    (r"telemetry sub (\S+) (\S+)", subscribing),
]
METHODS: Final = {
    v2.QueryRouteRequest: "QueryRoute",
    v2.NotifyClientTerminationRequest: "NotifyClientTermination",
}


def request_of(what: str) -> Any:
    for pattern, make in CALLS:
        if found := re.fullmatch(pattern, what):
            return make(*found.groups())
    raise AssertionError(f"no call is known as {what!r}")


class Official:
    """An official client, by bare calls."""

    def __init__(self, peer: Peer) -> None:
        self._channel = peer.channel

    async def status(self, request: Any, entries: tuple[tuple[str, str], ...]) -> v2.Status:
        """Return the status that REQUEST with metadata ENTRIES is answered with."""
        if isinstance(request, v2.Settings):
            return await self._settle(request, entries)
        name = type(request).__name__.removesuffix("Request")
        reply_type: Any = getattr(v2, f"{name}Response")
        path = SERVICE + name
        if name in ("ReceiveMessage", "PullMessage"):
            call = self._channel.unary_stream(
                path, type(request).SerializeToString, reply_type.FromString
            )(request, metadata=entries, timeout=20)
            first: Any = await call.read()
            if first.status.code == v2.UNAUTHORIZED:
                assert await call.read() is EOF
            call.cancel()
            return first.status  # type: ignore[no-any-return]
        call = self._channel.unary_unary(
            path, type(request).SerializeToString, reply_type.FromString
        )
        return (await call(request, metadata=entries, timeout=20)).status  # type: ignore[no-any-return]

    async def _settle(
        self, settings: v2.Settings, entries: tuple[tuple[str, str], ...]
    ) -> v2.Status:
        stream = self._channel.stream_stream(
            f"{SERVICE}Telemetry",
            v2.TelemetryCommand.SerializeToString,
            v2.TelemetryCommand.FromString,
        )(metadata=entries, timeout=20)
        await stream.write(v2.TelemetryCommand(settings=settings))
        try:
            answer: Any = await stream.read()
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            return v2.Status(code=v2.BAD_REQUEST, message=error.details())
        if answer.status.code == v2.UNAUTHORIZED:
            assert answer.WhichOneof("command") is None
            assert await stream.read() is EOF
            assert await stream.code() is grpc.StatusCode.OK
        stream.cancel()
        return answer.status  # type: ignore[no-any-return]


@asynccontextmanager
async def guarded_broker(folder: Path, **settings: Any) -> AsyncIterator[tuple[Broker, Peer]]:
    users = write_users(folder)
    async with broker(store_config(folder), users=users, **settings) as (server, peer):
        root = metadata(header("root"))
        for name in ("orders", "orders-eu", "secret"):
            topic = pb.TopicConfig(name=name, read_queues=1, write_queues=1, permission=6)
            create = peer.channel.unary_unary(
                "/pocketmq.v1.Broker/CreateTopic",
                pb.CreateTopicRequest.SerializeToString,
                pb.TopicReply.FromString,
            )
            await create(pb.CreateTopicRequest(topic=topic), metadata=root)
        yield server, peer


def recorded_calls() -> list[tuple[str, int, str]]:
    """Return name, code and text of all that was answered."""
    line_of = re.compile(r"(\S.*?)\s{2,}(?:settings -> |None -> )?[A-Z_]+ (\d{5}) (['\"])(.*)\3.*")
    found = [line_of.fullmatch(line) for line in RECORDED.read_text("utf-8").splitlines()]
    return [(one[1].strip(), int(one[2]), one[4]) for one in found if one is not None]


LAST: Final = {
    "unauthenticated telemetry": publishing("orders"),
    "unauthenticated send": v2.SendMessageRequest(messages=[message("orders")]),
    "unauthenticated receive": v2.ReceiveMessageRequest(
        group=named("billing"), message_queue=queue("orders"), batch_size=1
    ),
    "settings without pub/sub, root": v2.Settings(client_type=v2.PRODUCER),
}


async def test_the_recorded_calls_are_answered_as_by_apache(tmp_path: Path) -> None:
    calls = recorded_calls()
    assert len(calls) == 111
    answered: dict[str, tuple[int, str]] = {}
    async with guarded_broker(tmp_path) as (_, peer):
        client = Official(peer)
        for name, _, _ in calls:
            if name in AUTHENTICATION:
                request: Any = request_of("route orders")
                entries = AUTHENTICATION[name]
            elif name in LAST:
                request = LAST[name]
                entries = metadata(header("root") if "root" in name else None)
            else:
                user, _, what = name.partition(" ")
                request, entries = request_of(what), metadata(header(user))
            status = await client.status(request, entries)
            answered[name] = status.code, status.message
    others = {
        name: answered[name][1] if answered[name][0] == code else answered[name][0]
        for name, code, text in calls
        if answered[name][0] != code or (code == v2.UNAUTHORIZED and answered[name][1] != text)
    }
    assert others == DIFFERENCES


async def test_what_apache_does_not_look_at_is_asked_for(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as (_, peer):
        client, alice = Official(peer), metadata(GOOD)
        requests: list[Any] = [
            v2.SendMessageRequest(messages=[message("orders"), message("secret")]),
            v2.PullMessageRequest(group=named("billing"), message_queue=queue("secret")),
            v2.UpdateOffsetRequest(group=named("billing"), message_queue=queue("secret")),
            v2.GetOffsetRequest(group=named("billing"), message_queue=queue("secret")),
            v2.QueryOffsetRequest(message_queue=queue("secret")),
        ]
        told = [await client.status(request, alice) for request in requests]
    assert [one.code for one in told] == [v2.UNAUTHORIZED] * len(requests)
    assert {one.message for one in told} == {
        "User:alice has no permission to access Topic:secret from 127.0.0.1, no matched policies."
    }


async def test_our_own_streams_go_on_with_what_is_allowed(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as (_, peer):
        stream = peer.channel.stream_stream(
            "/pocketmq.v1.Broker/Fetch",
            pb.FetchRequest.SerializeToString,
            pb.FetchReply.FromString,
        )(metadata=metadata(GOOD))
        for number, topic in enumerate(("orders", "secret", "orders")):
            await stream.write(pb.FetchRequest(fetch_id=number, topic=topic))
        replies = [await stream.read() for _ in range(3)]
        stream.cancel()
    errors = {reply.fetch_id: reply.error.name for reply in replies}
    assert errors == {0: "", 1: NotAuthorized.__name__, 2: ""}


async def test_a_call_without_credentials_is_told_so_before_all_else(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as (_, peer):
        with pytest.raises(NotAuthenticated, match="username cannot be null"):
            await peer.ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)


async def test_a_change_of_the_file_holds_without_a_restart(tmp_path: Path) -> None:
    route, alice = request_of("route orders"), metadata(GOOD)
    async with guarded_broker(tmp_path) as (_, peer):
        client = Official(peer)
        assert (await client.status(route, alice)).code == v2.OK
        write_users(tmp_path, {"root": USERS["root"]})
        async with asyncio.timeout(20):
            while (  # noqa: ASYNC110  (the file is looked at once a second)
                await client.status(route, alice)
            ).code != v2.UNAUTHORIZED:
                await asyncio.sleep(0.02)
