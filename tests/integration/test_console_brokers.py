"""The console of several brokers: their answers together, each one's own pages below its name, and who may ask."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from pocketmq.client import Message, Producer, PullConsumer
from pocketmq.proto.rpc import serve
from pocketmq.proto.rpc.pages import HttpResponse, PageRequest
from pocketmq.proto.tls import Trust
from pocketmq.tools.broker_caller import BrokerList
from pocketmq.tools.console.auth import TOKEN
from pocketmq.tools.console.brokers_site import BrokersSite

from ..authority import Authority
from ..served import ServerProcess
from .browser import column, grave_faults, send_on, watched
from .command import COMMAND, Shell
from .console_peer import ApiPeer

pytestmark = pytest.mark.processes

HERE = {"host": "127.0.0.1:8090"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = tmp_path_factory.mktemp("console") / "store"
    with ServerProcess(store, "--grpc", "builtin", "--brokers", "2") as running:
        shell = Shell(running.nameserver)
        assert shell("topic", "create", "orders", "--queues", "2").code == 0
        with Producer(running.nameserver) as producer:
            producer.send_many([Message("orders", b"%d" % number) for number in range(20)])
        with PullConsumer("billing", "orders", nameservers=running.nameserver) as consumer:
            assert consumer.poll(3)
            consumer.commit()
        yield running


class Asked:
    """Asks SITE as a browser on its machine does."""

    def __init__(self, site: BrokersSite) -> None:
        self._site = site

    async def shown(
        self, method: str, target: str, body: Any = None, **headers: str
    ) -> HttpResponse:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = b"" if body is None else json.dumps(body).encode()
        return await self._site(
            PageRequest(method, target, {**HERE, **names}, data, peer="127.0.0.1:5")
        )

    async def document(self, method: str, target: str, body: Any = None, **headers: str) -> Any:
        shown = await self.shown(method, target, body, **headers)
        assert shown.status == 200, shown.body
        return json.loads(shown.body)


@pytest.fixture
async def asked(server: ServerProcess) -> AsyncIterator[Asked]:
    async with BrokerList(server.nameserver, 5_000, None) as brokers:
        yield Asked(BrokersSite(brokers, Trust()))


def at_each(server: ServerProcess, path: str) -> dict[str, Any]:
    """Return what each broker of SERVER answers to GET of PATH."""
    found = {}
    for one in server.ready["brokers"]:
        peer = ApiPeer(one["broker"])
        found[one["name"]] = peer.get(path)
        peer.close()
    return found


async def test_rows_of_all_brokers_are_those_of_each_together(
    server: ServerProcess, asked: Asked
) -> None:
    told = (await asked.document("GET", "/api/brokers"))["brokers"]
    assert [one["broker"] for one in told] == ["broker-1", "broker-2"]
    assert all(one["overview"]["broker"]["writable"] for one in told)
    for kind, name in (("topics", "orders"), ("groups", "billing")):
        found = await asked.document("GET", f"/api/{kind}?search={name}")
        (row,) = found[kind]
        each = at_each(server, f"/api/{kind}")
        assert (row["name"], found["partial"], found["errors"]) == (name, False, [])
        wanted = [
            {"broker": broker, **one}
            for broker, rows in each.items()
            for one in rows[kind]
            if one["name"] == name
        ]
        for one in (*wanted, *row["at"]):
            one.pop("oldest_unread_ms", None)  # It grows.
        assert row["at"] == wanted
    (topic,) = (await asked.document("GET", "/api/topics?search=orders"))["topics"]
    assert sum(one["messages"] for one in topic["at"]) == 20
    page = (await asked.shown("GET", "/topics")).body.decode()
    assert '<td class="number" data-label="messages">20</td>' in page


async def test_pages_of_a_broker_lead_below_its_name_and_its_actions_work_there(
    asked: Asked,
) -> None:
    shown = await asked.shown("GET", "/brokers/broker-2/topics/orders")
    text = shown.body.decode()
    assert shown.status == 200
    assert dict(shown.headers)["content-security-policy"].startswith("default-src 'none'")
    places = [part.split('"')[0] for part in text.split('="/')[1:]]
    assert places.count("") == 1  # The brand leads to all brokers.
    assert all(place.startswith("brokers/broker-2/") for place in places if place)
    token = text.split('name="token" content="')[1].split('"')[0]
    path = "/brokers/broker-2/api/topics/orders/messages"
    kind = {"content_type": "application/json"}
    refused = await asked.shown("POST", path, {"body": "x"}, **kind)
    assert refused.status == 403
    sent = await asked.document("POST", path, {"body": "x"}, x_pocketmq_token=token, **kind)
    found = (await asked.document("GET", f"{path}?limit=1"))["messages"]
    assert [one["message_id"] for one in found] == [sent["message_id"]]
    script = await asked.shown("GET", "/brokers/broker-2/console.mjs")
    assert (script.status, script.content_type) == (200, "text/javascript; charset=utf-8")
    to = await asked.shown("GET", "/brokers/broker-2")
    assert (to.status, dict(to.headers)["location"]) == (303, "/brokers/broker-2/")


async def test_a_topic_is_made_at_each_broker_and_told_of_each(
    server: ServerProcess, asked: Asked
) -> None:
    token = (await asked.document("GET", "/api/session"))["token"]
    wanted = {"name": "made", "queues": 3}
    assert (await asked.shown("POST", "/api/topics", wanted)).status == 403
    for error in (None, "exists"):
        made = await asked.document("POST", "/api/topics", wanted, **{TOKEN: token})
        for one, broker in zip(made["brokers"], ("broker-1", "broker-2"), strict=True):
            assert one["broker"] == broker
            assert (error is None and one["error"] is None) or error in one["error"]
    for found in at_each(server, "/api/topics/made").values():
        assert found["write_queues"] == 3


async def test_events_of_a_broker_are_passed_on_and_end_with_who_listens(asked: Asked) -> None:
    for target in ("/brokers/broker-1/api/events", "/api/events"):
        shown = await asked.shown("GET", target)
        assert shown.events is not None
        heard = b""
        async for event in shown.events:
            heard += event
            if b"event: changed" in heard:
                break
        await shown.events.aclose()


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("/", {"host": "rebound.example:8090"}, 403),
        ("/brokers/broker-1/", {"host": "rebound.example:8090"}, 403),
        ("/brokers/broker-1/", {"x_forwarded_for": "10.0.0.1"}, 403),
        ("/brokers/broker-1/api/topics", {"sec_fetch_site": "cross-site"}, 403),
        ("/brokers/nobody/", {}, 404),
        ("/brokers/nobody/api/topics", {}, 404),
        ("/nothing", {}, 404),
        ("/api/nothing", {}, 404),
    ],
)
async def test_others_and_what_is_not_there_are_refused(
    asked: Asked, target: str, headers: dict[str, str], status: int
) -> None:
    assert (await asked.shown("GET", target, **headers)).status == status


async def test_a_page_of_another_site_changes_nothing_at_a_broker(asked: Asked) -> None:
    page = (await asked.shown("GET", "/brokers/broker-1/topics")).body.decode()
    token = page.split('name="token" content="')[1].split('"')[0]
    shown = await asked.shown(
        "POST",
        "/brokers/broker-1/api/topics",
        {"name": "evil"},
        origin="http://evil.example",
        x_pocketmq_token=token,
    )
    assert shown.status == 403


# --- brokers of several kinds


class Known:
    """Brokers at ADDRESSES, by name."""

    def __init__(self, **addresses: str) -> None:
        self._addresses = addresses

    async def addresses(self) -> dict[str, str]:
        return self._addresses


def site_of(trust: Trust, **addresses: str) -> Asked:
    return Asked(BrokersSite(cast("BrokerList", Known(**addresses)), trust))


@pytest.mark.parametrize(("total", "partial"), [(2, False), (101, True)])
async def test_a_list_is_cut_off_by_its_length_and_not_by_what_is_hidden(
    total: int, partial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"topics": [{"name": "seen"}], "total": total, "left_out": 1}
    site = BrokersSite(cast("BrokerList", Known()), Trust())

    async def answers(target: str) -> dict[str, tuple[str, Any]]:
        assert target.startswith("/api/topics?")
        return {"broker-a": ("a:1", answer)}

    monkeypatch.setattr(site, "_ask_all", answers)

    found = (await Asked(site).shown("GET", "/api/topics")).body

    assert json.loads(found)["partial"] is partial
    assert json.loads(found)["left_out"] == 1


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """The address of a server that knows nothing of a console."""
    async with serve() as port:
        yield f"127.0.0.1:{port}"


def with_users_and_tls(folder: Path) -> str:
    """Write a configuration with users and a certificate into FOLDER; return the authority's file."""
    users = folder / "users.yaml"
    users.touch(0o600)
    users.write_text("users: {root: {secret: s, type: Super}, guest: {secret: g}}")
    authority = Authority()
    shown = authority.certificate(name="broker", addresses=["127.0.0.1"])
    for name, data in (("ca", authority.pem), ("cert", shown.chain), ("key", shown.key)):
        (folder / name).write_bytes(data)
    files = {"tls_cert": str(folder / "cert"), "tls_key": str(folder / "key")}
    broker = {"users": str(users), **files}
    (folder / "c.yaml").write_text(json.dumps({"broker": broker}))
    return str(folder / "ca")


async def test_a_broker_with_users_is_asked_over_tls_as_the_consoles_own(tmp_path: Path) -> None:
    ca = with_users_and_tls(tmp_path)
    config = ("--grpc", "builtin", "--config", str(tmp_path / "c.yaml"))
    with ServerProcess(tmp_path / "store", *config) as running:
        address = running.ready["broker"]
        for user, secret, tls, status in (
            ("root", "s", True, 200),
            ("root", "s", False, 200),
            ("guest", "g", True, 403),
            ("root", "wrong", True, 401),
            ("", "", True, 401),
        ):
            trust = Trust(tls=tls, ca=ca if tls else "", user=user, secret=secret)
            one = site_of(trust, a=address)
            assert (await one.shown("GET", "/brokers/a/topics")).status == status, user
            (told,) = (await one.document("GET", "/api/brokers"))["brokers"]
            assert ("overview" in told) == (status == 200 or user == "guest"), told
        assert "POCKETMQ_USER" in told["error"]


async def test_a_secret_goes_to_another_machine_over_tls_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialled: list[str] = []

    async def dial(host: str, *_: Any, **options: Any) -> Any:
        dialled.append(host)
        raise OSError("not today")

    monkeypatch.setattr(asyncio, "open_connection", dial)
    secret: dict[str, Any] = {"user": "root", "secret": "s"}
    for trust, goes in (
        (Trust(**secret), False),
        (Trust(**secret, tls=True), True),
        (Trust(), True),
    ):
        dialled.clear()
        (told,) = (await site_of(trust, far="192.0.2.1:8081").document("GET", "/api/brokers"))[
            "brokers"
        ]
        assert bool(dialled) == goes
        assert ("plaintext" in told["error"]) == (not goes), told
    for near in ("127.0.0.1:8081", "[::1]:8081", "localhost:8081"):
        await site_of(Trust(**secret), near=near).document("GET", "/api/brokers")
    assert dialled == ["192.0.2.1", "127.0.0.1", "::1", "localhost"]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}",
        b"",
    ],
)
async def test_whatever_another_kind_of_server_answers_is_told_beside_the_brokers(
    answer: bytes,
) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as other:
        host, port = other.sockets[0].getsockname()
        (told,) = (await site_of(Trust(), a=f"{host}:{port}").document("GET", "/api/brokers"))[
            "brokers"
        ]
        assert f"{host}:{port}" in told["error"]


async def test_a_broker_that_is_gone_or_is_none_is_told_beside_the_others(
    server: ServerProcess,
) -> None:
    async with silent() as none:
        one = site_of(
            Trust(), here=server.ready["brokers"][0]["broker"], gone="127.0.0.1:1", none=none
        )
        told = {
            row["broker"]: row for row in (await one.document("GET", "/api/brokers"))["brokers"]
        }
        assert "overview" in told["here"]
        assert "127.0.0.1:1" in told["gone"]["error"]
        assert none in told["none"]["error"]
        page = (await one.shown("GET", "/topics")).body.decode()
        assert "127.0.0.1:1" in page
        assert "orders" in page
        assert (await one.shown("GET", "/brokers/gone/")).status == 503


# --- as it is used


@pytest.mark.browser
@pytest.mark.long
def test_the_command_serves_pages_that_lead_to_each_broker(
    server: ServerProcess, chromium: Any
) -> None:
    arguments = ("--serve", "--port", "0", "--no-browser", "--nameserver", server.nameserver)
    with subprocess.Popen(
        [*COMMAND, "console", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        base = process.stdout.readline().strip().rstrip("/")
        with watched(chromium, base) as page:
            page.goto("/")
            page.wait_for_selector("#live:has-text('live')")
            assert column(page, "brokers", "broker") == ["broker-1", "broker-2"]
            assert grave_faults(page) == []
            page.goto("/groups")
            assert "billing" in column(page, "groups", "group")
            assert grave_faults(page) == []
            page.get_by_role("link", name="Topics").click()
            page.wait_for_selector("#topics")
            assert "orders" in column(page, "topics", "topic")
            assert grave_faults(page) == []
            page.get_by_role("link", name="broker-2").first.click()
            page.wait_for_selector("#live:has-text('live')")
            assert "/brokers/broker-2/topics/" in page.url
            send_on(page, "by the console of both")
            page.get_by_role("link", name="PocketMQ").click()
            page.wait_for_selector("#brokers")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
