"""The console where the broker has users: who signs in, how, and that reads and actions ask what they may do."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlencode

import pytest
import yaml

from pocketmq.broker.broker import Broker, Network, SiteParts
from pocketmq.proto.access.audit import AUDIT, Audit
from pocketmq.proto.access.guard import Guard
from pocketmq.proto.access.users import Users, read_users
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import NotAuthenticated, Overloaded
from pocketmq.proto.rpc.pages import PageRequest
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.console import auth
from pocketmq.tools.console.actions import ROUTES
from pocketmq.tools.console.auth import Door, NotAllowed, NotSignedIn
from pocketmq.tools.console.site import Site, site

from ..served import broker_config
from .command import Shell
from .whole_broker import store_config

USERS: dict[str, Any] = {
    "root": {"secret": "root-secret", "type": "Super"},
    "alice": {
        "secret": "alice-secret",
        "policies": [
            {"resource": "Topic:orders*", "actions": ["Pub", "Sub"]},
            {"resource": "Group:billing", "actions": ["Sub", "Get"]},
        ],
    },
    "reader": {
        "secret": "reader-secret",
        "policies": [{"resource": "Topic:*", "actions": ["Sub", "Get"]}],
    },
    "guest": {"secret": "größe"},
    "away": {"secret": "away-secret", "status": "disable"},
}
FORM: dict[str, Any] = {"content-type": "application/x-www-form-urlencoded"}
HERE = "127.0.0.1:5"
THERE = "10.0.0.2:5"


# --- the door alone


class Log:
    """A door with users, the clock that it goes by, and its audit log."""

    def __init__(self, *, plaintext: bool = False, **users: Any) -> None:
        self.lines: list[str] = []
        self.now_s = 0.0
        self.users = users or USERS
        audit = Audit(lambda: int(self.now_s * 1000), self.lines.append)
        self.guard = Guard(self.read(self.users), audit, plaintext=plaintext)
        self.door = Door(self.guard, lambda: self.now_s)

    @staticmethod
    def read(users: dict[str, Any]) -> Users:
        return Users(read_users({"users": users}, "users.yaml").values(), lambda _, text: text)

    def sign_in(self, user: str = "alice", secret: str = "alice-secret", **more: Any) -> str:
        """Return the cookie that a form with USER and SECRET gets."""
        line, _ = self.door.sign_in(form(user=user, secret=secret, **more))
        return line.partition(";")[0]


def form(peer: str = HERE, *, secure: bool = False, path: str = "/sign-in", **fields: str) -> Any:
    headers = {"host": "broker.example:8081", **FORM}
    return PageRequest("POST", path, headers, urlencode(fields).encode(), peer, secure)


def asked(method: str = "GET", peer: str = HERE, *, secure: bool = False, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return PageRequest(
        method, "/api/x", {"host": "broker.example:8081", **named}, b"", peer, secure
    )


def basic(user: str, secret: str) -> str:
    return f"Basic {b64encode(f'{user}:{secret}'.encode()).decode()}"


def test_a_session_lasts_while_it_is_used_and_not_for_ever() -> None:
    log = Log()
    cookie = log.sign_in()
    for _ in range(int(auth.LIFE_S / (auth.IDLE_S - 1))):
        log.now_s += auth.IDLE_S - 1
        assert log.door.admit(asked(cookie=cookie)).user == "alice"
    log.now_s = auth.LIFE_S
    with pytest.raises(NotSignedIn):
        log.door.admit(asked(cookie=cookie))
    cookie = log.sign_in()
    log.now_s += auth.IDLE_S
    with pytest.raises(NotSignedIn):
        log.door.admit(asked(cookie=cookie))


def test_a_session_ends_with_its_user_or_a_new_secret() -> None:
    log = Log()
    cookies = [log.sign_in(), log.sign_in("guest", "größe")]
    visitors = [log.door.admit(asked(cookie=cookie)) for cookie in cookies]
    changed = {**USERS, "guest": {"secret": "other"}}
    del changed["alice"]
    log.guard.replace(log.read(changed))
    assert [log.door.is_in(one) for one in visitors] == [False, False]
    for cookie in cookies:
        with pytest.raises(NotSignedIn):
            log.door.admit(asked(cookie=cookie))


def test_sessions_are_bounded_and_the_one_unused_longest_goes() -> None:
    log = Log()
    cookies = []
    for _ in range(auth.SESSIONS_OF_USER + 1):
        log.now_s += 1
        cookies.append(log.sign_in())
    with pytest.raises(NotSignedIn):
        log.door.admit(asked(cookie=cookies[0]))
    assert log.door.admit(asked(cookie=cookies[1])).user == "alice"


def test_who_signs_in_anew_leaves_the_old_session_and_who_signs_out_any() -> None:
    log = Log()
    first = log.sign_in()
    again = form(user="alice", secret="alice-secret")
    again.headers["cookie"] = first
    log.door.sign_in(again)
    with pytest.raises(NotSignedIn):
        log.door.admit(asked(cookie=first))
    cookie = log.sign_in()
    visitor = log.door.admit(asked(cookie=cookie))
    out = form(path="/sign-out", token=visitor.token)
    out.headers["cookie"] = cookie
    assert "Max-Age=0" in log.door.sign_out(out, log.door.admit(out))
    with pytest.raises(NotSignedIn):
        log.door.admit(asked(cookie=cookie))


@pytest.mark.parametrize("secure", [False, True])
def test_the_cookie_is_kept_from_scripts_and_other_sites(secure: bool) -> None:
    line, _ = Log().door.sign_in(form(user="alice", secret="alice-secret", secure=secure))
    name, *flags = line.split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(flags)
    assert ("Secure" in flags) is secure
    assert name.startswith("__Host-pocketmq-8081=" if secure else "pocketmq-8081=")


def test_unknown_users_wrong_secrets_and_the_disabled_hear_the_same() -> None:
    log = Log()
    said = set()
    for user, secret in (("alice", "wrong"), ("mallory", "x"), ("away", "away-secret"), ("", "")):
        with pytest.raises(NotAuthenticated) as caught:
            log.sign_in(user, secret)
        said.add(caught.value.message)
        with pytest.raises(NotAuthenticated) as caught:
            log.door.admit(asked(authorization=basic(user, secret)))
        said.add(caught.value.message)
    assert len(said) == 1
    assert not any("secret" in line for line in log.lines if "away" in line)


def test_wrong_tries_of_a_host_are_limited_for_a_minute_right_ones_too() -> None:
    log = Log(plaintext=True)
    for _ in range(auth.WRONG_OF_HOST):
        with pytest.raises(NotAuthenticated):
            log.sign_in(secret="wrong", peer=THERE)
    with pytest.raises(Overloaded, match="Wait a minute"):
        log.sign_in(peer=THERE)
    with pytest.raises(Overloaded):
        log.door.admit(asked(peer="10.0.0.2:77", authorization=basic("alice", "alice-secret")))
    cookie = log.sign_in(peer="10.0.0.3:5")
    assert log.door.admit(asked(peer="10.0.0.3:5", cookie=cookie)).user == "alice"
    log.now_s += 60
    log.sign_in(peer=THERE)


def test_a_minute_takes_so_many_wrong_tries_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "WRONG_MAX", 3)
    log = Log(plaintext=True)
    for host in range(3):
        with pytest.raises(NotAuthenticated):
            log.sign_in(secret="wrong", peer=f"10.0.0.{host}:5")
    with pytest.raises(Overloaded):
        log.sign_in(peer="10.0.0.9:5")


def test_a_page_that_a_proxy_took_the_tls_from_may_change_what_its_user_may() -> None:
    log = Log(plaintext=True)
    cookie = log.sign_in()
    token = log.door.admit(asked(cookie=cookie)).token
    page: dict[str, Any] = {"cookie": cookie, "x_pocketmq_token": token}
    page["origin"] = "https://broker.example:8081"
    assert log.door.admit(asked("POST", x_forwarded_for="10.0.0.9", **page)).user == "alice"
    with pytest.raises(NotAllowed, match="cannot change anything here"):
        log.door.admit(asked("POST", **page))
    page["origin"] = "https://evil.example"
    with pytest.raises(NotAllowed, match="evil"):
        log.door.admit(asked("POST", x_forwarded_for="10.0.0.9", **page))


async def test_nobody_is_asked_for_a_secret_that_may_not_come_in_plaintext() -> None:
    parts = SimpleNamespace(
        guard=Log().guard, counters=None, traffic=None, every=lambda *_: None, cluster="c"
    )
    pages = Site(cast("SiteParts", parts))
    for target in ("/", "/sign-in", "/api/overview"):
        refused = await pages(asked(peer=THERE)._replace(target=target))
        assert refused.status == 401, target
        assert "www-authenticate" not in dict(refused.headers), target
        assert b"password" not in refused.body, target
        assert b"TLS" in refused.body, target
    form = await pages(asked(peer=HERE)._replace(target="/sign-in"))
    assert form.status == 200
    assert b"password" in form.body


def test_plaintext_from_another_machine_is_taken_only_where_the_setting_says_so() -> None:
    shown = basic("alice", "alice-secret")
    for request in (
        asked(peer=THERE, authorization=shown),
        asked(authorization=shown, x_forwarded_for="10.0.0.9"),
        asked(peer=THERE),
    ):
        with pytest.raises(NotAuthenticated, match="plaintext"):
            Log().door.admit(request)
    with pytest.raises(NotAuthenticated, match="plaintext"):
        Log().sign_in(peer=THERE)
    assert Log(plaintext=True).door.admit(asked(peer=THERE, authorization=shown)).user == "alice"
    assert Log().door.admit(asked(peer=THERE, secure=True, authorization=shown)).user == "alice"


def test_what_changes_something_shows_the_token_of_its_session_and_comes_by_our_page() -> None:
    log = Log()
    cookie, other = log.sign_in(), log.sign_in()
    token = log.door.admit(asked(cookie=cookie)).token
    foreign = log.door.admit(asked(cookie=other)).token
    assert log.door.admit(asked("POST", cookie=cookie, x_pocketmq_token=token)).user == "alice"
    for wrong in (
        asked("POST", cookie=cookie),
        asked("POST", cookie=cookie, x_pocketmq_token=foreign),
        asked("POST", cookie=cookie, x_pocketmq_token=token, origin="http://evil.example"),
        asked("POST", cookie=cookie, x_pocketmq_token=token, origin="null"),
        asked("POST", cookie=cookie, x_pocketmq_token=token, sec_fetch_site="same-site"),
        asked("GET", cookie=cookie, sec_fetch_site="cross-site"),
    ):
        with pytest.raises(NotAllowed):
            log.door.admit(wrong)
    page = form(user="alice", secret="alice-secret")
    page.headers["origin"] = "http://evil.example"
    with pytest.raises(NotAllowed):
        log.door.sign_in(page)


@pytest.mark.parametrize(
    "header", ["Bearer x", "Basic", "Basic !!", "Basic /w==", "MQv2-HMAC-SHA1 Credential=alice"]
)
def test_other_credentials_than_http_basic_are_refused(header: str) -> None:
    with pytest.raises(NotAuthenticated):
        Log().door.admit(asked(authorization=header))


# --- a broker with users


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


class Served:
    """A broker with users at PORT of this machine, asked in HTTP; its audit log has LINES."""

    def __init__(self, port: int, lines: list[str]) -> None:
        self.port, self.lines = port, lines

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = "",
        secure: bool = False,
        **headers: str,
    ) -> tuple[int, Any, str]:
        """Return status, headers and text of the answer to METHOD of PATH, of USER by HTTP Basic."""
        if user:
            headers["authorization"] = basic(user, USERS[user]["secret"])
        if isinstance(body, dict):
            body = json.dumps(body)
        return await asyncio.to_thread(self._ask, method, path, body, headers, secure)

    def _ask(
        self, method: str, path: str, body: Any, headers: dict[str, str], secure: bool
    ) -> tuple[int, Any, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if secure:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=60, context=context
            )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, text

    async def act(self, path: str, user: str, **body: Any) -> tuple[int, Any]:
        """Return status and document of what USER has done by a POST."""
        _, _, text = await self.ask("GET", "/api/session", user=user)
        token = json.loads(text)["token"]
        status, _, text = await self.ask("POST", path, body, user=user, x_pocketmq_token=token)
        return status, json.loads(text)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    path = tmp_path / "users.yaml"
    path.touch(0o600)
    path.write_text(yaml.safe_dump({"users": USERS}))
    lines = Lines()
    AUDIT.addHandler(lines)
    broker = Broker.build(
        broker_config(port=0, grpc="builtin", users=str(path)),
        store_config(tmp_path / "store"),
        disk=OsDisk(),
        clock=SystemClock(),
        network=Network(site=site),
    )
    await broker.start()
    yield Served(broker.port, lines.told)
    await broker.stop()
    AUDIT.removeHandler(lines)


async def test_a_person_signs_in_by_a_form_goes_on_and_signs_out(served: Served) -> None:
    status, headers, _ = await served.ask("GET", "/topics?search=o")
    assert (status, headers["location"]) == (303, "/sign-in?to=%2Ftopics%3Fsearch%3Do")
    status, headers, page = await served.ask("GET", headers["location"])
    assert (status, headers["www-authenticate"]) == (200, None)
    assert 'value="/topics?search=o"' in page
    assert (await served.ask("GET", "/console.css"))[0] == 200
    fields = urlencode({"user": "alice", "secret": "wrong", "to": "/topics"})
    status, _, page = await served.ask("POST", "/sign-in", fields, **FORM)
    assert (status, "is wrong" in page) == (401, True)
    for to, place in (("/groups/a%20b?x=1", "/groups/a%20b?x=1"), ("//evil.example", "/")):
        fields = urlencode({"user": "root", "secret": "root-secret", "to": to})
        status, headers, _ = await served.ask("POST", "/sign-in", fields, **FORM)
        assert (status, headers["location"]) == (303, place)
    cookie = headers["set-cookie"].partition(";")[0]
    status, _, page = await served.ask("GET", "/", cookie=cookie)
    assert (status, "Sign out" in page) == (200, True)
    token = json.loads((await served.ask("GET", "/api/session", cookie=cookie))[2])
    assert token["user"] == "root"
    fields = urlencode({"token": token["token"]})
    status, _, _ = await served.ask("POST", "/sign-out", fields, cookie=cookie, **FORM)
    assert (status, (await served.ask("GET", "/", cookie=cookie))[0]) == (303, 303)
    events = [json.loads(line)["event"] for line in served.lines]
    assert events.count("signed in to the console") == 2
    assert events[-1] == "signed out of the console"


async def test_over_tls_the_cookie_is_for_tls_alone(served: Served) -> None:
    fields = urlencode({"user": "root", "secret": "root-secret"})
    _, headers, _ = await served.ask("POST", "/sign-in", fields, secure=True, **FORM)
    cookie, _, flags = headers["set-cookie"].partition(";")
    assert "Secure" in flags
    assert (await served.ask("GET", "/api/overview", secure=True, cookie=cookie))[0] == 200
    assert (await served.ask("GET", "/api/overview", cookie=cookie))[0] == 401


async def test_a_program_that_says_nothing_is_asked_who_it_is_and_a_browser_is_not(
    served: Served,
) -> None:
    status, headers, text = await served.ask("GET", "/api/overview")
    assert (status, json.loads(text)["error"]) == (401, "NotSignedIn")
    assert headers["www-authenticate"].startswith("Basic ")
    _, headers, _ = await served.ask("GET", "/api/overview", sec_fetch_mode="cors")
    assert headers["www-authenticate"] is None
    assert (await served.ask("GET", "/metrics"))[0] == 200


async def test_users_do_what_their_policies_say_and_the_audit_log_tells_it(
    served: Served,
) -> None:
    for name in ("orders", "secret"):
        assert (await served.act("/api/topics", "root", name=name, queues=1))[0] == 200
    status, sent = await served.act("/api/topics/orders/messages", "alice", body="hidden text")
    assert status == 200, sent
    status, refused = await served.act("/api/topics/secret/messages", "alice", body="x")
    assert (status, refused["error"]) == (403, "NotAuthorized")
    assert (await served.act("/api/topics/orders/delete", "alice", name="orders"))[0] == 403
    for path, found in (
        ("/api/topics/orders", 200),
        ("/api/topics/orders/messages", 200),
        ("/api/messages/orders%2F0%2F0/life", 200),
        ("/topics/orders", 200),
        ("/messages?topic=orders&queue=0&offset=0", 200),
        ("/api/topics/secret", 403),
        ("/api/topics/secret/messages", 403),
        ("/api/messages/secret%2F0%2F0/life", 403),
        (f"/api/messages/{sent['message_id']}/life", 403),
        (f"/api/messages/{sent['message_id']}/life?topic=orders", 200),
        ("/topics/secret", 403),
        ("/topics", 403),
        ("/store", 403),
        ("/", 200),
    ):
        assert (await served.ask("GET", path, user="alice"))[0] == found, path
    _, _, text = await served.ask("GET", "/api/overview", user="alice")
    seen = json.loads(text)
    assert [seen[name] for name in ("rates", "figures", "official_clients", "lags")] == [None] * 4
    _, _, text = await served.ask("GET", "/api/overview", user="root")
    assert None not in json.loads(text).values()
    told = [json.loads(line) for line in served.lines]
    done = [one for one in told if one["event"] == "console"]
    assert [(one["user"], one["action"], one["status"]) for one in done] == [
        ("root", "/api/topics", 200),
        ("root", "/api/topics", 200),
        ("alice", "/api/topics/orders/messages", 200),
        ("alice", "/api/topics/secret/messages", 403),
        ("alice", "/api/topics/orders/delete", 403),
    ]
    denied = {(one["method"], one["resource"]) for one in told if one["event"] == "denied"}
    assert ("/apache.rocketmq.v2.MessagingService/SendMessage", "Topic:secret") in denied
    assert ("/store", "Cluster:DefaultCluster") in denied
    assert {one["host"] for one in told} == {"127.0.0.1"}
    for hidden in ("hidden text", "-secret", b64encode(b"root:root-secret").decode()):
        assert not any(hidden in line for line in served.lines)


async def test_users_and_decisions_are_those_of_the_command(served: Served, tmp_path: Path) -> None:
    file = ("--users", str(tmp_path / "users.yaml"), "--json")
    shell = Shell("")
    listed: list[Any] = json.loads(shell("user", "list", *file).out)
    _, _, text = await served.ask("GET", "/api/users", user="root")
    assert json.loads(text)["users"] == sorted(listed, key=lambda one: str(one["user"]))
    assert "secret" not in text.replace("root-secret", "")
    for user, action, resource in (
        ("alice", "Pub", "Topic:orders-eu"),
        ("alice", "Pub", "Topic:secret"),
        ("away", "Pub", "Topic:orders"),
        ("root", "Delete", "Topic:*"),
    ):
        told = shell("acl", "check", user, action, resource, *file).documents[0]
        path = f"/api/users/{user}/check?{urlencode({'action': action, 'resource': resource})}"
        status, _, text = await served.ask("GET", path, user="root")
        assert (status, json.loads(text)) == (200, told)
        page = await served.ask("GET", f"/users?user={user}&action={action}", user="root")
        assert page[0] == 200
    for wrong in ("action=Fly&resource=Topic:a", "action=Pub&resource=Topic:a*", "action=Pub"):
        assert (await served.ask("GET", f"/api/users/alice/check?{wrong}", user="root"))[0] == 400


#: What each action is asked for by one who may do nothing: enough to be done by one who may.
BODIES: dict[str, dict[str, Any]] = {
    "/api/topics": {"name": "other"},
    "/api/topics/{topic}": {"write_queues": 2},
    "/api/topics/{topic}/delete": {"name": "orders"},
    "/api/topics/{topic}/messages": {"body": "x"},
    "/api/topics/{topic}/recall": {"handle": "x"},
    "/api/groups/{group}": {"retry_max_times": 2},
    "/api/groups/{group}/reset": {"topic": "orders", "to_last": True},
    "/api/store/doctor": {},
    "/api/topics/{topic}/resend": {"queue": 0, "offset": 0},
    "/api/groups/{group}/dead-letters/resend": {"offsets": [0]},
    "/api/groups/{group}/dead-letters/purge": {},
    "/api/connections/{connection}/close": {"peer": "127.0.0.1:1"},
    "/api/clock/advance": {"by": "1s"},
    "/api/groups": {"name": "billing"},
}


async def test_no_read_and_no_action_is_for_one_without_policies(served: Served) -> None:
    await served.act("/api/topics", "root", name="orders", queues=1)
    await served.act("/api/topics/orders/messages", "root", body="x")
    anybody = {"/api/overview"}
    for route in ROUTES:
        path = route.path.replace("{topic}", "orders").replace("{group}", "billing")
        path = (
            path.replace("{message}", "orders%2F0%2F0")
            .replace("{user}", "root")
            .replace("{connection}", "1")
        )
        if route.method == "GET":
            status, _, text = await served.ask("GET", path, user="guest")
        else:
            status, document = await served.act(path, "guest", **BODIES[route.path])
            text = str(document)
        assert status == (200 if route.path in anybody else 403), (route.path, text)


async def test_delayed_messages_are_shown_to_whom_system_topics_are_open(served: Served) -> None:
    made = await served.act("/api/topics", "root", name="orders", queues=1, type="DELAY")
    assert made[0] == 200, made
    status, sent = await served.act(
        "/api/topics/orders/messages", "root", body="not yet", delay="2h"
    )
    assert status == 200, sent
    status, _, text = await served.ask("GET", "/api/delayed", user="root")
    assert [one["body"] for one in json.loads(text)["messages"]] == ["not yet"]
    status, _, text = await served.ask("GET", "/api/delayed", user="reader")
    found = json.loads(text)
    assert (status, found["to_an_instant"], found["messages"]) == (200, 1, None)
    status, _, page = await served.ask("GET", "/delayed", user="reader")
    assert (status, "not yet" in page, "Get on the cluster" in page) == (200, False, True)
    for path in ("messages?queue=0&offset=0", "messages?key=1", ""):
        path = f"/api/topics/rmq_sys_wheel_timer/{path}".rstrip("/")
        assert (await served.ask("GET", path, user="reader"))[0] == 403
    assert (
        await served.ask("GET", "/api/messages/rmq_sys_wheel_timer%2F0%2F0/life", user="reader")
    )[0] == 403
