"""The guard at a server's methods."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.wrappers_pb2 import StringValue

from pocketmq.proto.access.audit import UNSIGNED_MS, Audit
from pocketmq.proto.access.guard import Guard, any_user, anybody
from pocketmq.proto.access.policies import PUB, Need, of_topic
from pocketmq.proto.access.signing import NO_USER, signed
from pocketmq.proto.access.users import Users, read_users
from pocketmq.proto.errors import ConnectionLost, NotAuthenticated, NotAuthorized
from pocketmq.proto.rpc import MethodTable, Stream, bidi, server_stream, service, unary
from tests.fake_calls import FakeCall, FakeStream

DATE = "20260101T000000Z"
PATH = "/t.T/Do"


def users(alice: str = "Topic:a", secret: str = "s", kind: str = "Normal") -> Users:
    policies = [{"resource": alice, "actions": "Pub"}]
    document = {
        "alice": {
            "secret": secret,
            "type": kind,
            "policies": policies,
            "certificates": ["alice.example"],
        },
        "root": {"secret": "r", "type": "Super"},
    }
    return Users(read_users({"users": document}, "users.yaml").values(), lambda _, text: text)


class Lines:
    """An audit log, by a clock that stands until it is set."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.now_ms = 0
        self.audit = Audit(lambda: self.now_ms, lambda line: self.lines.append(json.loads(line)))


def needs_topic(request: StringValue) -> Iterable[Need]:
    yield of_topic(request.value, PUB)


class Echo:
    """Answers what comes."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.is_closed = False

    def on_message(self, message: StringValue) -> None:
        self.stream.send(message)

    def on_end(self) -> None:
        self.stream.finish()

    def on_close(self) -> None:
        self.is_closed = True


async def _later(request: StringValue, call: Any) -> StringValue:
    return request


def _stream(request: StringValue, stream: Stream) -> None:
    stream.send(request)
    stream.finish()


def table() -> MethodTable:
    return service(
        "t.T",
        {
            "Do": unary(StringValue, StringValue, lambda request, call: request),
            "DoLater": unary(StringValue, StringValue, _later),
            "Stream": server_stream(StringValue, StringValue, _stream),
            "Talk": bidi(StringValue, StringValue, Echo),
            "Open": unary(Empty, Empty, lambda request, call: request),
            "Any": unary(Empty, Empty, lambda request, call: request),
        },
    )


RULES = {f"/t.T/{name}": needs_topic for name in ("Do", "DoLater", "Stream", "Talk")} | {
    "/t.T/Open": anybody,
    "/t.T/Any": any_user,
}


def guarded(guard: Guard, path: str = PATH) -> Any:
    return guard.guarded(table(), RULES)[path].handler


def call(user: str = "alice", secret: str = "s", peer: str = "127.0.0.1:1") -> FakeCall:
    return FakeCall(peer, metadata=dict(signed(user, secret, DATE)))


def stream(user: str = "alice", secret: str = "s") -> FakeStream:
    return FakeStream(metadata=dict(signed(user, secret, DATE)))


A, B = StringValue(value="a"), StringValue(value="b")


async def test_calls_of_each_kind_are_done_or_refused() -> None:
    guard = Guard(users(), Lines().audit)
    assert guarded(guard)(A, call()) == A
    assert guarded(guard)(B, call("root", "r")) == B
    with pytest.raises(NotAuthorized) as caught:
        guarded(guard)(B, call())
    assert caught.value.message == (
        "User:alice has no permission to access Topic:b from 127.0.0.1, no matched policies."
    )
    later = guarded(guard, "/t.T/DoLater")
    assert await later(A, call()) == A
    with pytest.raises(NotAuthorized):
        await later(B, call())
    served, refused = stream(), stream()
    guarded(guard, "/t.T/Stream")(A, served)
    guarded(guard, "/t.T/Stream")(B, refused)
    assert served.sent == [A]
    assert isinstance(refused.error, NotAuthorized)
    assert guarded(guard, "/t.T/Open")(Empty(), FakeCall()) == Empty()
    assert guarded(guard, "/t.T/Any")(Empty(), call()) == Empty()
    with pytest.raises(NotAuthenticated, match="username cannot be null"):
        guarded(guard, "/t.T/Any")(Empty(), FakeCall())


def test_a_method_without_a_rule_is_no_servers() -> None:
    rules = {path: rule for path, rule in RULES.items() if path != PATH}
    with pytest.raises(AssertionError, match=PATH):
        Guard(users(), Lines().audit).guarded(table(), rules)


def test_nothing_but_signature_and_socket_says_who_calls_and_from_where() -> None:
    lines = Lines()
    guard = Guard(users(), lines.audit)
    invented = [
        *("x-mq-client-id", "x-mq-channel-id", "x-mq-remote-address", "x-mq-local-address"),
        *("x-mq-user", "x-mq-account", "x-forwarded-for", "rpc-user", "rpc-remote-address"),
        *("rpc-channel-id", "rpc-client-ip", "x-mq-namespace", "x-mq-session-token", "user"),
    ]
    claimed = dict.fromkeys(invented, "root") | {"x-mq-remote-address": "10.0.0.1"}
    with pytest.raises(NotAuthorized, match=r"User:alice .* from 127\.0\.0\.1,"):
        guarded(guard)(B, FakeCall(metadata=claimed | dict(signed("alice", "s", DATE))))
    with pytest.raises(NotAuthenticated):
        guarded(guard)(B, FakeCall(metadata=claimed))
    assert {line["host"] for line in lines.lines} == {"127.0.0.1"}


def test_credentials_in_plaintext_from_another_machine_are_refused_unless_allowed() -> None:
    far = "10.0.0.5:4711"
    with pytest.raises(NotAuthenticated, match=r"in plaintext from 10\.0\.0\.5"):
        guarded(Guard(users(), Lines().audit))(A, call(peer=far))
    assert guarded(Guard(users(), Lines().audit, plaintext=True))(A, call(peer=far)) == A
    assert guarded(Guard(users(), Lines().audit))(A, call(peer="[::1]:1")) == A

    class Secure(FakeCall):
        @property
        def is_secure(self) -> bool:
            return True

    secure = Secure(far, metadata=dict(signed("alice", "s", DATE)))
    assert guarded(Guard(users(), Lines().audit))(A, secure) == A


def test_a_certificate_names_the_caller_who_does_not_sign() -> None:
    class Certified(FakeCall):
        @property
        def certificate_names(self) -> Sequence[str]:
            return ("alice.example",)

    guard = Guard(users(), Lines().audit)
    assert guarded(guard)(A, Certified()) == A
    with pytest.raises(NotAuthorized):
        guarded(guard)(B, Certified())
    assert guarded(guard)(B, Certified(metadata=dict(signed("root", "r", DATE)))) == B


def test_a_change_of_users_holds_from_the_next_call_on_and_for_open_streams() -> None:
    guard = Guard(users(), Lines().audit)
    do, talk = guarded(guard), guarded(guard, "/t.T/Talk")
    untouched, ended, silent = stream("root", "r"), stream(), stream()
    for one in (untouched, ended):
        talk(one).on_message(A)
    talk(silent)
    assert (ended.sent, ended.error) == ([A], None)
    guard.replace(users(alice="Topic:b"))
    with pytest.raises(NotAuthorized):
        do(A, call())
    assert do(B, call()) == B
    assert isinstance(ended.error, ConnectionLost)
    assert (untouched.error, silent.error) == (None, None)
    guard.replace(users(alice="Topic:b", secret="another"))
    with pytest.raises(NotAuthenticated):
        do(B, call())
    assert isinstance(silent.error, ConnectionLost)
    assert untouched.error is None


def test_a_stream_of_a_user_who_was_super_for_a_while_ends_with_it() -> None:
    guard = Guard(users(), Lines().audit)
    talk = guarded(guard, "/t.T/Talk")
    promoted = stream()
    receiver = talk(promoted)
    guard.replace(users(kind="Super"))
    receiver.on_message(B)
    assert (promoted.sent, promoted.error) == ([B], None)
    guard.replace(users())
    assert isinstance(promoted.error, ConnectionLost)


def test_a_stream_that_needed_more_than_is_remembered_ends_with_any_change() -> None:
    guard = Guard(users(alice="Topic:*"), Lines().audit)
    talk = guarded(guard, "/t.T/Talk")
    few, many = stream(), stream()
    for one, count in ((few, 10), (many, 1_002)):
        receiver = talk(one)
        for number in range(count):
            receiver.on_message(StringValue(value=str(number)))
    guard.replace(users(alice="Topic:*"))
    assert few.error is None
    assert isinstance(many.error, ConnectionLost)


def test_a_stream_of_which_nothing_can_be_asked_ends_and_the_others_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard = Guard(users(), Lines().audit)
    talk = guarded(guard, "/t.T/Talk")
    broken, unended, denied = stream(), stream(), stream()
    for one in (broken, unended, denied):
        talk(one).on_message(A)
    monkeypatch.setattr(broken, "_metadata", None)
    monkeypatch.setattr(unended, "fail", None)
    guard.replace(users(alice="Topic:b"))
    assert isinstance(broken.error, ConnectionLost)
    assert isinstance(denied.error, ConnectionLost)


def test_a_stream_is_refused_at_its_beginning_or_at_a_message() -> None:
    guard = Guard(users(), Lines().audit)
    talk = guarded(guard, "/t.T/Talk")
    nobody, alice = FakeStream(), stream()
    receiver = talk(nobody)
    receiver.on_message(A)
    receiver.on_end()
    receiver.on_close()
    assert isinstance(nobody.error, NotAuthenticated)
    receiver = talk(alice)
    receiver.on_message(A)
    receiver.on_message(B)
    assert alice.sent == [A]
    assert isinstance(alice.error, NotAuthorized)


def test_denials_are_told_once_a_minute_and_bounded() -> None:
    lines = Lines()
    do = guarded(Guard(users(), lines.audit))

    def deny(topic: str, host: int = 1) -> None:
        with pytest.raises(NotAuthorized):
            do(StringValue(value=topic), call(peer=f"127.0.0.{host}:1"))

    for _ in range(5):
        deny("b")
    assert [line["event"] for line in lines.lines] == ["denied"]
    assert lines.lines[0] == {
        "at_ms": 0,
        "event": "denied",
        "user": "alice",
        "method": PATH,
        "host": "127.0.0.1",
        "reason": "User:alice has no permission to access Topic:b from 127.0.0.1, no matched policies.",
        "resource": "Topic:b",
        "actions": "Pub",
    }
    lines.now_ms = 60_000
    for host in range(1, 11):
        for number in range(150):
            deny(f"topic-{number}", host)
            deny(f"topic-{number}", host)
    assert [(line["event"], line.get("count")) for line in lines.lines[1:3]] == [
        ("denied again", 4),
        ("denied", None),
    ]
    told = Counter(line["host"] for line in lines.lines[2:])
    assert told == {f"127.0.0.{host}": 100 for host in range(1, 7)}
    lines.lines.clear()
    lines.now_ms = 120_000
    for host in range(1, 11):
        for number in range(150):
            deny(f"topic-{number}", host)
    events = Counter(line["event"] for line in lines.lines)
    assert events == {"denied again": 600, "denied, not logged one by one": 1, "denied": 600}
    assert lines.lines[600]["count"] == 2 * (6 * 50 + 4 * 150)


def test_unsigned_measurements_of_go_clients_are_counted_in_one_line_an_hour() -> None:
    lines = Lines()
    path = "/opencensus.proto.agent.metrics.v1.MetricsService/Export"

    def export(peer: str = "10.0.0.5:1", reason: str = NO_USER) -> None:
        lines.audit.denied(path, peer, NotAuthenticated(reason))

    for minute in range(UNSIGNED_MS // 60_000):
        lines.now_ms = minute * 60_000
        export()
        export("10.0.0.6:1")
    assert [(one["event"], one["count"]) for one in lines.lines] == [
        ("denied, unsigned measurements", 1)
    ]
    lines.now_ms = UNSIGNED_MS
    lines.audit.changed("user created", user="u")  # Whatever is told next.
    counted = lines.lines[1]
    assert (counted["count"], counted["hosts"]) == (119, "10.0.0.5, 10.0.0.6")
    export(reason="check signature failed.")
    lines.audit.denied("/t.T/Do", "10.0.0.5:1", NotAuthenticated(NO_USER))
    assert [one["event"] for one in lines.lines[3:]] == ["denied", "denied"]
