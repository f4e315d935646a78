"""The guard of a remoting port: which users are known, what each request needs, and what a change of users ends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from pocketmq.proto.access.audit import Audit
from pocketmq.proto.access.guard import Guard, any_user
from pocketmq.proto.access.policies import Need, of_topic, parse_actions
from pocketmq.proto.access.users import Users, read_users
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.remoting.codes import RequestCode, ResponseCode
from pocketmq.proto.remoting.command import RemotingCommand, decode, encode
from pocketmq.proto.remoting.connection import RemotingConnection
from pocketmq.proto.remoting.guard import RemotingGuard, noticing
from pocketmq.proto.remoting.requests import RemotingRequest
from pocketmq.proto.remoting.server import RemotingProtocol

from ...broker.remoting.classic import signed

SEND, PULL, ANY, UNKNOWN = RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE, 28, 9_999
ALICE: dict[str, Any] = {
    "secret": "alice-secret",
    "certificates": ["alice.example"],
    "policies": [{"resource": "Topic:orders", "actions": "Pub", "sources": "127.0.0.1"}],
}


def users(**changes: Any) -> Users:
    document = {
        "alice": ALICE,
        "root": {"secret": "root-secret", "type": "Super"},
        "gone": {"secret": "gone-secret", "status": "disable"},
    } | changes
    named = {name: values for name, values in document.items() if values is not None}
    return Users(read_users({"users": named}, "users.yaml").values(), lambda _, text: text)


class Link:
    """A connection that keeps what is written."""

    local_address = "127.0.0.1", 2
    unsent = 0

    def __init__(
        self,
        peer: str = "127.0.0.1:1",
        *,
        is_secure: bool = False,
        certificate_names: Sequence[str] = (),
    ) -> None:
        self.peer = peer
        self.is_secure = is_secure
        self.certificate_names = certificate_names
        self.answers: list[RemotingCommand] = []
        self.finished = ""

    def write(self, data: bytes) -> None:
        while data:
            end = 4 + int.from_bytes(data[:4])
            self.answers.append(decode(data[4:end]))
            data = data[end:]

    def finish(self, reason: str) -> None:
        self.finished = reason

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


def needs_topic(request: RemotingRequest) -> Iterable[Need]:
    yield of_topic(request.text("topic"), parse_actions(["Pub"]))


class Port:
    """A server with users, whose handlers note which requests reach them."""

    def __init__(self, *, plaintext: bool = False) -> None:
        self.lines: list[dict[str, Any]] = []
        self.audit = Audit(lambda: 0, lambda line: self.lines.append(json.loads(line)))
        self.guard = Guard(users(), self.audit, plaintext=plaintext)
        handlers = {SEND: self._take, ANY: self._take, PULL: self._wait}
        rules = {SEND: needs_topic, PULL: needs_topic, ANY: any_user}
        self.protocol = RemotingProtocol(
            handlers,
            bytes_max=1 << 20,
            now_ms=SystemClock().now_ms,
            check=RemotingGuard(self.guard, handlers, rules).check,
        )
        self.taken: list[RemotingRequest] = []
        self.cancelled = 0

    def _take(self, request: RemotingRequest) -> None:
        self.taken.append(request)
        request.answer()

    def _wait(self, request: RemotingRequest) -> None:
        request.on_cancel(self._cancel)

    def _cancel(self) -> None:
        self.cancelled += 1

    def open(self, link: Link) -> RemotingConnection:
        return self.protocol.open(link)


def signed_request(
    code: int = SEND, user: str = "alice", secret: str = "", topic: str = "orders", flag: int = 0
) -> bytes:
    fields = signed(user, secret or f"{user}-secret", {"topic": topic}, b"body")
    return encode(RemotingCommand(code=code, fields=fields, body=b"body", flag=flag))


def asked(port: Port, data: bytes, link: Link | None = None) -> tuple[int, str]:
    """Return code and remark of the answer to the request in DATA."""
    link = link or Link()
    port.open(link).receive(data)
    (answer,) = link.answers
    return answer.code, answer.remark


def refused(remark: str) -> tuple[int, str]:
    return ResponseCode.NO_PERMISSION, remark


def plain(fields: Mapping[str, str], code: int = SEND, body: bytes = b"body") -> bytes:
    return encode(RemotingCommand(code=code, fields=fields, body=body))


async def test_a_signed_request_is_served_for_its_user() -> None:
    port = Port()
    assert asked(port, signed_request())[0] == 0
    assert asked(port, signed_request(user="root", topic="secret"))[0] == 0
    assert [one.user.name for one in port.taken] == ["alice", "root"]
    assert port.lines == []


GOOD = signed("alice", "alice-secret", {"topic": "orders"}, b"body")
BAD_SIGNATURE = "check signature failed."


@pytest.mark.parametrize(
    ("data", "remark"),
    [
        (signed_request(secret="wrong"), BAD_SIGNATURE),
        (signed_request(user="mallory"), BAD_SIGNATURE),
        (signed_request(user="gone"), "User:gone is disabled."),
        (signed_request(user="gone", secret="wrong"), BAD_SIGNATURE),
        (plain({"topic": "orders", "AccessKey": "alice"}), BAD_SIGNATURE),
        (plain(GOOD | {"topic": "other"}), BAD_SIGNATURE),
        (plain(GOOD | {"more": "x"}), BAD_SIGNATURE),
        (plain(GOOD, body=b"another"), BAD_SIGNATURE),
        (plain(GOOD | {"Signature": "not base64!"}), BAD_SIGNATURE),
        (plain(GOOD | {"AccessKey": "root"}), BAD_SIGNATURE),
        (
            signed_request(topic="secret"),
            "User:alice has no permission to access Topic:secret from 127.0.0.1, no matched policies.",
        ),
    ],
)
@pytest.mark.parametrize("flag", [0, 2])
async def test_a_refused_request_does_nothing_and_is_logged(
    data: bytes, remark: str, flag: int
) -> None:
    port, link = Port(), Link()
    command = decode(data[4:])
    one = RemotingCommand(code=command.code, fields=command.fields, body=command.body, flag=flag)
    port.open(link).receive(encode(one))

    assert [(one.code, one.remark) for one in link.answers] == [refused(remark)] * (not flag)
    assert port.taken == []
    (line,) = port.lines
    assert (line["event"], line["method"]) == ("denied", "remoting/SEND_MESSAGE")
    assert (line["host"], line["reason"]) == ("127.0.0.1", remark)
    assert line["user"] == command.fields.get("AccessKey")
    assert sum(port.audit.denials.values()) == 1


@pytest.mark.parametrize("fields", [{}, {"topic": "orders"}, {"AccessKey": "", "Signature": ""}])
@pytest.mark.parametrize("code", [SEND, ANY, UNKNOWN])
async def test_a_request_without_a_user_is_told_how_to_sign(
    code: int, fields: dict[str, str]
) -> None:
    port = Port()
    found, remark = asked(port, plain(fields, code))

    assert found == ResponseCode.NO_PERMISSION
    assert remark.startswith("username cannot be null: this server has users. Sign requests")
    assert port.lines[0]["reason"] == "username cannot be null."


async def test_an_unknown_code_needs_a_user_only() -> None:
    port = Port()
    assert asked(port, signed_request(UNKNOWN))[0] == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert asked(port, signed_request(UNKNOWN, secret="x")) == refused(BAD_SIGNATURE)
    assert port.lines[0]["method"] == "remoting/9999"


async def test_a_handler_without_a_rule_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match=r"without a rule: .*SEND_MESSAGE: 10"):
        RemotingGuard(Port().guard, [SEND, ANY], {ANY: any_user})


@pytest.mark.parametrize(
    ("link", "plaintext", "remark"),
    [
        (Link("10.1.2.3:1"), False, "credentials came in plaintext from 10.1.2.3"),
        (Link("10.1.2.3:1"), True, "User:alice has no permission"),
        (Link("10.1.2.3:1", is_secure=True), False, "User:alice has no permission"),
        (Link("[::1]:1"), False, "User:alice has no permission"),
    ],
)
async def test_plaintext_from_elsewhere_and_addresses_of_policies(
    link: Link, plaintext: bool, remark: str
) -> None:
    """The policy is for 127.0.0.1 alone."""
    code, found = asked(Port(plaintext=plaintext), signed_request(), link)

    assert code == ResponseCode.NO_PERMISSION
    assert found.startswith(remark)


async def test_a_client_certificate_proves_a_user_if_nothing_is_signed() -> None:
    port, named = Port(), ["alice.example"]
    good = Link(is_secure=True, certificate_names=named)
    assert asked(port, plain({"topic": "orders"}), good)[0] == 0
    wrong = Link(is_secure=True, certificate_names=named)
    assert asked(port, signed_request(secret="x"), wrong) == refused(BAD_SIGNATURE)
    other = Link(is_secure=True, certificate_names=["bob.example"])
    assert asked(port, plain({"topic": "orders"}), other)[0] == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "alice",
    [
        None,
        ALICE | {"secret": "another"},
        ALICE | {"status": "disable"},
        ALICE | {"policies": []},
        ALICE | {"policies": [{"resource": "Topic:orders", "actions": "Pub", "decision": "Deny"}]},
    ],
)
async def test_a_change_of_users_applies_to_open_connections(alice: dict[str, Any] | None) -> None:
    port, link = Port(), Link()
    connection = port.open(link)
    connection.receive(signed_request(SEND))
    port.guard.replace(users(alice=alice))
    assert not link.finished  # Nothing lasts from a send: the next one is refused.
    connection.receive(signed_request(SEND))
    assert [one.code for one in link.answers] == [0, ResponseCode.NO_PERMISSION]
    assert len(port.taken) == 1


@pytest.mark.parametrize("alice", [None, ALICE | {"secret": "another"}, ALICE | {"policies": []}])
async def test_a_wait_that_is_no_longer_allowed_ends_with_its_connection(
    alice: dict[str, Any] | None,
) -> None:
    port, link = Port(), Link()
    connection = port.open(link)
    connection.receive(signed_request(PULL))
    port.guard.replace(users())
    assert connection.is_open
    assert not port.cancelled

    port.guard.replace(users(alice=alice))
    assert link.finished == "users changed"
    assert not connection.is_open
    assert port.cancelled == 1
    assert port.lines[-1]["method"] == "remoting"
    assert port.guard._open == {}


async def test_a_super_user_that_becomes_a_normal_one_loses_its_wait() -> None:
    port, link = Port(), Link()
    connection = port.open(link)
    connection.receive(signed_request(PULL, user="root", topic="any"))
    port.guard.replace(users(root={"secret": "root-secret"}))
    assert not connection.is_open


async def test_a_wait_ends_with_the_reason_that_its_user_is_disabled() -> None:
    port = Port()
    connection = port.open(Link())
    connection.receive(signed_request(PULL))
    port.guard.replace(users(alice=ALICE | {"status": "disable"}))
    assert not connection.is_open
    assert port.lines[-1]["reason"] == "User:alice is disabled."


async def test_a_certificate_that_is_no_longer_a_users_loses_its_wait() -> None:
    port = Port()
    link = Link(is_secure=True, certificate_names=["alice.example"])
    connection = port.open(link)
    connection.receive(plain({"topic": "orders"}, PULL))
    port.guard.replace(users())
    assert connection.is_open
    bob = ALICE | {"secret": "b"}
    port.guard.replace(users(alice=ALICE | {"certificates": []}, bob=bob))
    assert not connection.is_open


async def test_what_is_remembered_of_a_connection_is_bounded() -> None:
    """With more, any change of users closes it."""
    port, link = Port(), Link()
    connection = port.open(link)
    for number in range(1_010):
        connection.receive(signed_request(PULL, user="root", topic=f"t{number}"))
    (known,) = port.guard._open
    assert isinstance(known._needs, dict)  # type: ignore[attr-defined]
    assert len(known._needs) <= 1_001  # type: ignore[attr-defined]
    port.guard.replace(users())
    assert not connection.is_open


async def test_changes_of_users_do_not_add_up_on_a_connection() -> None:
    port, link = Port(), Link()
    connection = port.open(link)
    for _ in range(1_010):
        connection.receive(signed_request(PULL))
        port.guard.replace(users())
    assert connection.is_open
    (known,) = port.guard._open
    assert len(known._needs) == 2  # type: ignore[attr-defined]


async def test_a_closed_connection_is_forgotten() -> None:
    port = Port()
    connection = port.open(Link())
    connection.receive(signed_request())
    assert len(port.guard._open) == 1
    connection.lost()
    assert port.guard._open == {}


async def test_a_malformed_request_is_told_to_known_users_only() -> None:
    port = Port()
    fields = signed("alice", "alice-secret", {}, b"body")
    code, remark = asked(port, plain(fields))
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark == "the field topic is missing"
    assert port.lines == []


async def test_a_user_is_asked_again_at_the_moment_of_a_command() -> None:
    port = Port()
    port.open(Link()).receive(signed_request())
    user, need = port.taken[0].user, of_topic("orders", parse_actions(["Pub"]))
    assert user.may(need)
    assert not user.may(need._replace(name="other"))
    for alice in (None, ALICE | {"secret": "x"}, ALICE | {"status": "disable"}):
        port.guard.replace(users(alice=alice))
        assert not user.may(need)
    port.guard.replace(users())
    assert user.may(need)


async def test_what_a_rule_finds_wrong_is_no_denial() -> None:
    port = Port()

    def wrong(request: RemotingRequest) -> Iterable[Need]:
        raise InvalidArgument("wrong")

    guard = RemotingGuard(port.guard, [SEND], {SEND: wrong})
    port.protocol = RemotingProtocol(
        {SEND: port._take}, bytes_max=1, now_ms=SystemClock().now_ms, check=guard.check
    )
    assert asked(port, signed_request()) == (ResponseCode.SYSTEM_ERROR, "wrong")
    assert asked(port, signed_request(user="root"))[0] == 0


async def test_long_names_are_not_kept() -> None:
    """They would be copied into caches and counts of denials."""
    port, link = Port(), Link()
    port.guard.replace(users(alice=ALICE | {"policies": [{"resource": "*", "actions": "All"}]}))
    connection = port.open(link)
    connection.receive(signed_request(PULL, topic="t" * 100_000))
    (known,) = port.guard._open
    assert [need for _, need in known._needs] == [None]  # type: ignore[attr-defined]
    alice = port.guard.users.find("alice")
    assert alice is not None
    assert not alice.policies._decided
    port.guard.replace(users())
    port.open(Link()).receive(signed_request(user="u" * 100_000, secret="x"))
    port.open(Link()).receive(signed_request(topic="t" * 100_000))
    assert len(port.lines) == 2
    assert max(len(text) for key in port.audit._counts for text in key) <= 500


async def test_ignored_credentials_are_logged_once_per_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    protocol = RemotingProtocol(
        {ANY: lambda request: request.answer()},
        bytes_max=1,
        now_ms=SystemClock().now_ms,
        check=noticing(),
    )
    link = Link("10.1.2.3:1")
    connection = protocol.open(link)
    for user in ("alice", "alice", "bob", "a\nb"):
        connection.receive(signed_request(ANY, user))
    connection.receive(plain({}, ANY))
    assert [one.code for one in link.answers] == [0] * 5
    assert [one.getMessage() for one in caplog.records] == [
        f"credentials count for nothing, this server has no users host=10.1.2.3 user={user}"
        for user in ("alice", "bob")
    ]
