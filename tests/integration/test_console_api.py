"""The administration API: what it tells is what the command tells, what it does shows, and who may ask it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from pocketmq.broker.broker import SiteParts
from pocketmq.broker.replication.in_sync import ReplicaSettings
from pocketmq.broker.replication.replica_metrics import (
    Behind,
    CellChanges,
    ReplicaStatus,
    replica_figures,
)
from pocketmq.client import Message, Producer, PullConsumer
from pocketmq.proto.errors import MessageNotFound
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import MethodTable
from pocketmq.proto.rpc.pages import PageRequest
from pocketmq.tools.console import api as console_api
from pocketmq.tools.console.actions import ROUTES
from pocketmq.tools.console.answers import LISTENERS_MAX
from pocketmq.tools.console.api import Api
from pocketmq.tools.console.auth import TOKEN, Door, NotAllowed
from pocketmq.tools.console.local import CALLER, HttpCaller
from pocketmq.tools.console.message_pages import hex_dump
from pocketmq.tools.console.rates import Rates

from ..served import ServerProcess
from .command import Shell
from .console_peer import ApiPeer, part
from .v2_caller import Caller

pytestmark = pytest.mark.processes

#: The door of a broker without users.
OPEN = Door(None, lambda: 0.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = tmp_path_factory.mktemp("console") / "store"
    with ServerProcess(store, "--grpc", "builtin", "--clock", "virtual") as running:
        yield running


@pytest.fixture
def api(server: ServerProcess) -> Iterator[ApiPeer]:
    peer = ApiPeer(server.ready["broker"])
    yield peer
    peer.close()


@pytest.fixture
def shell(server: ServerProcess) -> Shell:
    return Shell(server.nameserver)


def test_topics_are_those_of_the_command_in_pages_at_the_server(api: ApiPeer, shell: Shell) -> None:
    for number in range(5):
        api.post("/api/topics", name=f"page-{number}", queues=2, type="NORMAL")
    found = [
        row
        for skip in (0, 2, 4)
        for row in api.get("/api/topics", search="PAGE-", skip=skip, limit=2)["topics"]
    ]
    told = [one for one in shell("topic", "list", "--json").documents if "page-" in one["name"]]
    assert [{key: row[key] for key in told[0]} for row in found] == told
    assert api.get("/api/topics", search="page-", limit=2)["total"] == 5


def test_a_topic_is_altered_and_deleted_by_its_name(api: ApiPeer, shell: Shell) -> None:
    api.post("/api/topics", name="altered", queues=2)
    api.post("/api/topics/altered", read_queues=4, write_queues=3)
    (described,) = shell("topic", "describe", "altered", "--json").documents
    shown = api.get("/api/topics/altered")
    for queue in shown["queues"]:
        del queue["last_stored_ms"], queue["messages_per_s"]  # The API alone tells these.
    assert {key: shown[key] for key in described} == described
    assert (described["read_queues"], described["write_queues"]) == (4, 3)
    headers = {TOKEN: api.get("/api/session")["token"]}
    refused = api.ask("POST", "/api/topics/altered/delete", {"name": "other"}, headers)
    assert (refused[0], refused[1]["error"]) == (400, "InvalidArgument")
    api.post("/api/topics/altered/delete", name="altered")
    assert api.ask("GET", "/api/topics/altered") == (
        404,
        {
            "error": "TopicNotFound",
            "message": "topic 'altered' does not exist: create it, or check the name",
        },
    )


def test_messages_are_found_as_the_command_finds_them(api: ApiPeer, shell: Shell) -> None:
    api.post("/api/topics", name="found", queues=1)
    sent = [
        api.post(
            "/api/topics/found/messages",
            body=f"größe {number}",
            keys=["k", f"k{number}"],
            tag="t",
            properties={"colour": "red"},
        )
        for number in range(4)
    ]
    newest = api.get("/api/topics/found/messages", limit=2)["messages"]
    assert [one["message_id"] for one in newest] == [one["message_id"] for one in sent[:1:-1]]
    assert newest[0]["properties"]["colour"] == "red"
    by_key = shell("find", "--topic", "found", "--key", "k1", "--json").documents
    assert [one["body"] for one in by_key] == ["größe 1"]
    assert api.get("/api/topics/found/messages", key="k1")["messages"] == by_key
    by_id = api.get("/api/topics/found/messages", id=sent[2]["message_id"])["messages"]
    assert [one["body"] for one in by_id] == ["größe 2"]
    stored_ms = by_key[0]["stored_ms"]
    for way in ({"key": "k1"}, {"from_ms": 0, "limit": 9}):
        for to_ms, is_there in ((stored_ms, False), (stored_ms + 1, True)):
            before = api.get("/api/topics/found/messages", to_ms=to_ms, **way)["messages"]
            assert (by_key[0] in before) == is_there
    by_offset = api.get("/api/topics/found/messages", queue=0, offset=1, limit=2)["messages"]
    assert [one["queue_offset"] for one in by_offset] == [1, 2]
    by_time = api.get("/api/topics/found/messages", from_ms=by_key[0]["stored_ms"], limit=9)
    assert [one["queue_offset"] for one in by_time["messages"]] == [0, 1, 2, 3]


def test_the_life_of_a_message_is_what_why_tells(
    api: ApiPeer, shell: Shell, server: ServerProcess
) -> None:
    api.post("/api/topics", name="lived", queues=1)
    message = api.post("/api/topics/lived/messages", body="x")["message_id"]
    told = shell("trace", message, str(server.ready["store"]), "--json").documents
    shown = api.get(f"/api/messages/{message}/life")["stories"]
    assert [story["broker"] for story in shown] == ["broker-a"]
    for story in (*told, *shown):
        del story["broker"]  # Files alone do not tell it.
        del story["notes"]  # They say when tables were written, which goes on.
    assert shown == told
    place = api.get(f"/api/messages/{part('lived/0/0')}/life")["stories"]
    assert [one["message_id"] for one in place] == [message]
    assert api.ask("GET", "/api/messages/unknown/life")[0] == 404


def test_a_delayed_message_waits_is_recalled_and_another_comes_with_the_clock(
    api: ApiPeer,
) -> None:
    api.post("/api/topics", name="later", queues=1, type="DELAY")
    kept = api.post("/api/topics/later/messages", body="kept", delay="2h")
    taken = api.post("/api/topics/later/messages", body="taken", delay="2h")
    before = api.get("/api/overview")["broker"]
    assert before["virtual_clock"] is True
    assert before["delayed_waiting"] == 2
    waiting = api.get("/api/delayed")
    handles = {one["message_id"]: one["recall_handle"] for one in waiting["messages"]}
    assert handles.keys() == {one["message_id"] for one in (kept, taken)}
    (due,) = api.get("/api/overview")["next_due"]
    assert due["messages"] == 2
    assert abs(due["due_ms"] - before["now_ms"] - 7_200_000) <= 1_000
    assert (waiting["waiting"], sum(one["messages"] for one in waiting["due"])) == (2, 2)
    assert waiting["topics"] == [{"topic": "later", "messages": 2}]
    api.post("/api/topics/later/recall", handle=handles[taken["message_id"]])
    left = api.get("/api/delayed")
    assert [one["body"] for one in left["messages"]] == ["kept"]
    assert sum(one["messages"] for one in left["due"]) == left["waiting"] == 1
    moved = api.post("/api/clock/advance", by="2h1s")
    assert moved["now_ms"] == before["now_ms"] + 7_201_000
    found = api.get("/api/topics/later/messages")["messages"]
    assert [(one["body"], one["message_id"]) for one in found] == [("kept", kept["message_id"])]


def test_a_queue_tells_its_rate_between_looks_and_when_its_last_message_was_stored(
    api: ApiPeer,
) -> None:
    api.post("/api/topics", name="rated", queues=1)
    (first,) = api.get("/api/topics/rated")["queues"]
    assert (first["messages_per_s"], first["last_stored_ms"]) == (None, None)
    for _ in range(10):
        api.post("/api/topics/rated/messages", body="x")
    began = time.monotonic()
    (after,) = api.get("/api/topics/rated")["queues"]
    (stored,) = api.get("/api/topics/rated/messages", limit=1)["messages"]
    assert after["last_stored_ms"] == stored["stored_ms"]
    assert after["messages_per_s"] >= 10 / (time.monotonic() - began + 60)


def test_the_store_tells_its_files_and_what_the_doctor_says(api: ApiPeer, shell: Shell) -> None:
    api.post("/api/topics", name="filed", queues=1)
    api.post("/api/topics/filed/messages", body="x")
    store = api.get("/api/store")
    assert store["files"]["log"]["files"] >= 1
    assert store["files"]["queues"]["queues"] >= 1
    assert store["retention"]["retention_ms"] == 72 * 3_600_000
    while True:  # The broker writes to its store meanwhile: compare two reports of one state.
        told = api.post("/api/store/doctor")
        said = shell("doctor", store["path"])
        if api.post("/api/store/doctor") == told:
            break
    assert (told["healthy"], told["doctor"]) == (said.code == 0, said.out)


def test_a_message_is_sent_again_as_it_was(api: ApiPeer, server: ServerProcess) -> None:
    api.post("/api/topics", name="again", queues=1)
    made = {"body": "größe", "keys": ["a", "b"], "tag": "t", "properties": {"colour": "red"}}
    first = api.post("/api/topics/again/messages", **made)
    copy = api.post("/api/topics/again/resend", queue=0, offset=first["offset"])
    newest, old = api.get("/api/topics/again/messages")["messages"]
    assert newest["message_id"] == copy["message_id"] != old["message_id"]
    same = ("body", "keys", "tag")
    assert {name: newest[name] for name in same} == {name: old[name] for name in same}
    assert newest["properties"]["colour"] == "red"
    status, told = api.ask(
        "POST",
        "/api/topics/again/resend",
        {"queue": 0, "offset": 9},
        {TOKEN: api.get("/api/session")["token"]},
    )
    assert (status, told["error"]) == (404, "MessageNotFound")

    api.post("/api/topics", name="again-PRIORITY", queues=3, type="PRIORITY")
    urgent = v2.Message(topic=v2.Resource(name="again-PRIORITY"), body=b"x")
    urgent.system_properties.message_id = f"01{0:032X}"
    urgent.system_properties.priority = 2
    urgent.system_properties.message_type = v2.PRIORITY
    request = v2.SendMessageRequest(messages=[urgent])
    Caller(server.ready["broker"]).ask("SendMessage", request, v2.SendMessageResponse)
    (sent,) = api.get("/api/topics/again-PRIORITY/messages")["messages"]
    api.post("/api/topics/again-PRIORITY/resend", queue=sent["queue"], offset=0)
    found = api.get("/api/topics/again-PRIORITY/messages")["messages"]
    assert [one["properties"]["_SYS_MSG_PRIORITY_"] for one in found] == ["2", "2"]

    for kind in ("FIFO", "DELAY"):
        api.post("/api/topics", name=f"again-{kind}", queues=1, type=kind)
    api.post("/api/topics/again-FIFO/messages", body="x", message_group="g")
    api.post("/api/topics/again-DELAY/messages", body="x", delay="1s")
    api.post("/api/clock/advance", by="2s")
    for kind in ("FIFO", "DELAY"):
        api.post(f"/api/topics/again-{kind}/resend", queue=0, offset=0)
        api.post("/api/clock/advance", by="1s")
        found = api.get(f"/api/topics/again-{kind}/messages")["messages"]
        assert [one["body"] for one in found] == ["x", "x"]
    groups = [one["properties"].get("__SHARDINGKEY") for one in found]
    assert groups == [None, None]
    found = api.get("/api/topics/again-FIFO/messages")["messages"]
    assert [one["properties"]["__SHARDINGKEY"] for one in found] == ["g", "g"]


def test_all_dead_letters_are_sent_again_in_parts_and_none_that_dies_meanwhile(
    api: ApiPeer, shell: Shell, server: ServerProcess
) -> None:
    api.post("/api/topics", name="mourned", queues=1)
    count = 502
    with Producer(server.nameserver) as producer:
        producer.send_many([Message("mourned", b"%d" % number) for number in range(count)])
    assert shell("group", "create", "mourners", "--retries", "0").code == 0
    with PullConsumer("mourners", "mourned", nameservers=server.nameserver) as consumer:
        died = 0
        while died < count:
            for message in consumer.poll(10_000):
                died += consumer.send_back(message, reason="none").dead
    path = "/api/groups/mourners/dead-letters/resend"
    parts = [api.post(path, **{"from": 0})]
    while parts[-1]["next_from"] is not None:
        where = {"from": parts[-1]["next_from"], "below": parts[-1]["below"]}
        parts.append(api.post(path, **where))
    assert [len(one["dead_letters"]) for one in parts] == [500, 2]
    assert {one["below"] for one in parts} == {count}
    assert all(one["error"] is None for part in parts for one in part["dead_letters"])
    (topic,) = api.get("/api/topics", search="mourned")["topics"]
    assert topic["messages"] == 2 * count
    assert api.post(path, **{"from": count}) == {
        "dead_letters": [],
        "next_from": None,
        "below": count,
    }


def test_messages_are_found_by_tag_and_by_sql(api: ApiPeer) -> None:
    api.post("/api/topics", name="sought", queues=1)
    for number, tag in enumerate("aab"):
        api.post(
            "/api/topics/sought/messages",
            body=str(number),
            tag=tag,
            properties={"price": str(number)},
        )

    def bodies(**query: object) -> list[str]:
        found = api.get("/api/topics/sought/messages", **query)["messages"]
        return [one["body"] for one in found]

    assert bodies(sql="price > 0") == ["2", "1"]
    assert bodies(sql="price > 0 AND TAGS = 'a'") == ["1"]
    assert bodies(sql="price >= 0", from_ms=0, limit=2) == ["0", "1"]
    assert bodies(sql="missing IS NOT NULL") == []
    status, told = api.ask("GET", "/api/topics/sought/messages?sql=price+%3E")
    assert (status, told["error"]) == (400, "InvalidFilter")


def test_a_half_message_is_told_with_its_age(api: ApiPeer, server: ServerProcess) -> None:
    api.post("/api/topics", name="halved", queues=1, type="TRANSACTION")
    with (
        Producer(server.nameserver, group="sellers") as producer,
        producer.transaction(Message("halved", b"half")),
    ):
        found = api.get("/api/transactions", search="halved")
        (row,) = found["transactions"]
        assert (found["total"], row["topic"], row["group"]) == (1, "halved", "sellers")
        api.post("/api/clock/advance", by="5s")
        (row,) = api.get("/api/transactions", search="halved")["transactions"]
        assert row["age_ms"] >= 5_000
    assert api.get("/api/transactions", search="halved")["total"] == 0


def test_bodies_are_shown_in_hexadecimal() -> None:
    assert hex_dump(b"") == "The body is empty."
    assert hex_dump(b"abc\n" + bytes(13)).splitlines() == [
        "000000  61 62 63 0a 00 00 00 00 00 00 00 00 00 00 00 00  abc.............",
        f"000010  {'00':47}  .",
    ]
    assert hex_dump(bytes(2_000)).endswith("… 2,000 bytes")


def test_a_group_its_lag_and_its_reset_are_what_the_command_tells(
    api: ApiPeer, shell: Shell, server: ServerProcess
) -> None:
    api.post("/api/topics", name="read", queues=1)
    for number in range(6):
        api.post("/api/topics/read/messages", body=str(number))
    done = shell("consume", "read", "--group", "readers", "--limit", "2")
    assert done.code == 0, done.err
    told = shell("group", "describe", "readers", "--interval", "0s", "--json").documents[0]
    shown = api.get("/api/groups/readers")
    assert {key: shown[key] for key in told} == told
    lags = [one for one in shell("lag", "--group", "readers", "--json").documents]
    assert [one["lag"] for one in shown["lags"]] == [one["lag"] for one in lags] != []
    row = next(one for one in api.get("/api/groups")["groups"] if one["name"] == "readers")
    assert row["lag"] == told["lag"] == 4
    worst = [one["group"] for one in api.get("/api/overview")["lags"]]
    assert "readers" in worst
    preview = api.post("/api/groups/readers/reset", topic="read", to_last=True, preview=True)
    assert [(one["from"], one["to"], one["skipped"]) for one in preview["moves"]] == [(2, 6, 4)]
    assert api.get("/api/groups/readers")["lag"] == 4
    api.post("/api/groups/readers/reset", topic="read", to_last=True)
    assert api.get("/api/groups/readers")["lag"] == 0
    changed = api.post("/api/groups/readers", retry_max_times=3, retry_intervals_ms=[1000])
    assert (changed["retry_max_times"], changed["retry_intervals_ms"]) == (3, [1000])


GROUP_SETTINGS: dict[str, tuple[Any, Any]] = {
    "retry_max_times": (3, 4),
    "retry_queues": (2, 3),
    "retry_intervals_ms": ([5_000], [7_000]),
    "order": (True, False),
    "consume_enable": (False, True),
    "subscription_check": ("warn", "refuse"),
}


@pytest.mark.parametrize("name", GROUP_SETTINGS)
def test_a_change_of_a_group_leaves_its_other_settings(api: ApiPeer, name: str) -> None:
    first = {key: values[0] for key, values in GROUP_SETTINGS.items()}
    made = api.post("/api/groups", name=f"set-{name}", **first)
    assert made == {"name": f"set-{name}", **first, "lite_topic": "", "lite_exclusive": False}

    changed = api.post(f"/api/groups/set-{name}", **{name: GROUP_SETTINGS[name][1]})

    assert changed == made | {name: GROUP_SETTINGS[name][1]}


def test_what_exists_is_a_conflict(api: ApiPeer) -> None:
    token = {TOKEN: api.get("/api/session")["token"]}
    api.post("/api/groups", name="once")
    api.post("/api/topics", name="once")
    for path, error in (("/api/groups", "GroupExists"), ("/api/topics", "TopicExists")):
        status, document = api.ask("POST", path, {"name": "once"}, token)
        assert (status, document["error"]) == (409, error)
    status, _ = api.ask("POST", "/api/groups/missing", {"order": True}, token)
    assert status == 404


def test_what_is_not_allowed_not_there_or_malformed_is_told_in_a_sentence(api: ApiPeer) -> None:
    token = {TOKEN: api.get("/api/session")["token"]}
    for method, path, body, headers, status in (
        ("GET", "/api/nothing", None, {}, 404),
        ("GET", "/api/topics?limit=501", None, {}, 400),
        ("GET", "/api/topics?skip=-1", None, {}, 400),
        ("GET", "/api/topics/%00", None, {}, 400),
        ("POST", "/api/topics", {"name": "x"}, {}, 403),
        ("POST", "/api/topics", {"name": "x"}, {TOKEN: "wrong"}, 403),
        ("POST", "/api/topics", {"name": "x"}, token | {"Origin": "http://evil.example"}, 403),
        ("POST", "/api/topics", {"name": "x"}, token | {"Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/api/topics", ["x"], token, 400),
        ("POST", "/api/topics", {"name": "x", "wrong": 1}, token, 400),
        ("POST", "/api/topics", {"name": 7}, token, 400),
        ("POST", "/api/topics", {"name": "bad name"}, token, 400),
        ("POST", "/api/topics", {"name": "half \ud800"}, token, 400),
        ("POST", "/api/groups/numbers", {"retry_max_times": "x"}, token, 400),
        ("POST", "/api/groups/numbers", {"retry_intervals_ms": 7}, token, 400),
        ("POST", "/api/groups/numbers", {"retry_intervals_ms": ["x"]}, token, 400),
        ("GET", f"/api/topics?{'a=1&' * 65}", None, {}, 400),
        ("GET", "/api/topics/numbers/messages?from_ms=1764331200", None, {}, 400),
        ("GET", "/api/topics/numbers/messages?from_ms=0&to_ms=1764331200", None, {}, 400),
        ("POST", "/api/groups/none/reset", {"topic": "T", "to_time_ms": 1764331200}, token, 400),
        ("POST", "/api/groups/none/reset", {"topic": "T", "to_last": True}, token, 404),
        ("POST", "/api/overview", {}, token, 404),
        ("GET", "/api/overview", None, {"Host": "rebound.example:8081"}, 403),
        ("GET", "/api/overview", None, {"X-Forwarded-For": "10.0.0.1"}, 403),
        ("GET", "/api/overview", None, {"Sec-Fetch-Site": "same-site"}, 403),
    ):
        found, document = api.ask(method, path, body, headers)
        assert found == status, (method, path, document)
        assert document["message"], path


@pytest.mark.parametrize(
    ("peer", "host", "allowed"),
    [
        ("127.0.0.1:5", "127.0.0.1:8081", True),
        ("[::1]:5", "[::1]:8081", True),
        ("127.0.0.1:5", "localhost:8081", True),
        ("10.0.0.2:5", "127.0.0.1:8081", False),
        ("", "127.0.0.1:8081", False),
        ("127.0.0.1:5", "localhost.evil.example:8081", False),
        ("127.0.0.1:5", "127.0.0.1.evil.example", False),
        ("127.0.0.1:5", "0.0.0.0:8081", False),
        ("127.0.0.1:5", "", False),
    ],
)
def test_only_loopback_under_its_own_names_is_answered(peer: str, host: str, allowed: bool) -> None:
    asked = PageRequest("GET", "/", {"host": host}, peer=peer)
    if allowed:
        OPEN.admit(asked)
    else:
        with pytest.raises(NotAllowed):
            OPEN.admit(asked)


@pytest.mark.parametrize(("mode", "allowed"), [("navigate", True), ("no-cors", False), ("", False)])
def test_a_page_of_another_site_is_answered_links_alone(mode: str, allowed: bool) -> None:
    headers = {"host": "localhost", "sec-fetch-site": "cross-site", "sec-fetch-mode": mode}
    asked = PageRequest("GET", "/api/topics", headers, peer="127.0.0.1:5")
    if allowed:
        OPEN.admit(asked)
    else:
        with pytest.raises(NotAllowed, match="other sites"):
            OPEN.admit(asked)


def test_the_description_has_the_routes_that_there_are(api: ApiPeer) -> None:
    text = files("pocketmq.tools.console").joinpath("static", "openapi.yaml").read_text()
    described = {
        (method.upper(), path)
        for path, item in yaml.safe_load(text)["paths"].items()
        for method in item
        if method != "parameters"
    }
    served = {(route.method, route.path) for route in ROUTES}
    beside = {("GET", f"/api/{name}") for name in ("events", "openapi.yaml", "session")}
    assert described == served | beside


async def test_who_leaves_gives_its_place_back_once_its_look_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def look(*_: object) -> list[object]:
        begun.release()
        go.wait(60)
        return []

    async def status(_: Api) -> pb.BrokerStatusReply:
        return pb.BrokerStatusReply()

    monkeypatch.setattr(console_api, "_histories", look)
    monkeypatch.setattr(Api, "status", status)
    parts = SimpleNamespace(methods=MethodTable(), figures=None, counters=None, cluster="c")
    asked = PageRequest("GET", "/", {})
    api = Api(cast("SiteParts", parts), cast("Rates", None), OPEN)
    CALLER.set(HttpCaller("127.0.0.1:5"))
    asking = [asyncio.ensure_future(api.history(asked, "x")) for _ in range(2)]
    for _ in asking:
        assert await asyncio.to_thread(begun.acquire, timeout=60)
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)
    third = asyncio.ensure_future(api.history(asked, "x"))
    assert not await asyncio.to_thread(begun.acquire, timeout=0.2)
    go.set()
    with pytest.raises(MessageNotFound):
        await third


async def test_who_listens_hears_of_a_message_and_listeners_are_bounded(
    server: ServerProcess, api: ApiPeer
) -> None:
    host, _, port = server.ready["broker"].rpartition(":")
    request = f"GET /api/events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(LISTENERS_MAX + 1)]
    heard = []
    for reader, writer in opened[:-1]:
        writer.write(request)
        assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
        heard.append(int((await reader.readuntil(b"data: ")) and (await reader.readline())))
    opened[-1][1].write(request)
    assert b" 429 " in await opened[-1][0].readuntil(b"\r\n\r\n")
    await asyncio.to_thread(api.post, "/api/topics", name="heard", queues=1)
    await asyncio.to_thread(api.post, "/api/topics/heard/messages", body="x")
    reader = opened[0][0]
    async with asyncio.timeout(60):
        while True:
            await reader.readuntil(b"data: ")
            if int(await reader.readline()) > heard[0]:
                break
    for _, writer in opened:
        writer.close()
    # Their places are given back.
    async with asyncio.timeout(60):
        while True:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            if b" 200 OK" in head:
                return


def test_a_connection_is_closed_by_its_number_and_its_peer_and_not_the_one_that_asks(
    api: ApiPeer, server: ServerProcess
) -> None:
    host, _, port = server.ready["broker"].rpartition(":")
    token = api.get("/api/session")["token"]
    with socket.create_connection((host, int(port)), timeout=60) as stranger:
        name, at = stranger.getsockname()
        peer = f"{name}:{at}"
        while not (rows := _of_peer(api, peer)):
            pass
        path = f"/api/connections/{rows[0]['id']}/close"
        status, refused = api.ask("POST", path, {"peer": "127.0.0.1:1"}, {TOKEN: token})
        assert (status, peer in refused["message"]) == (400, True)
        assert api.post(path, peer=peer) == {"closed": True, "peer": peer}
        assert stranger.recv(1) == b"" or _of_peer(api, peer) == []
    status, _ = api.ask("POST", path, {"peer": peer}, {TOKEN: token})
    assert status == 400
    assert "closed by an administrator" in api.get("/api/connections")["totals"]["closed"]
    own = max(api.get("/api/connections")["connections"], key=lambda one: one["id"])
    status, refused = api.ask(
        "POST", f"/api/connections/{own['id']}/close", {"peer": own["peer"]}, {TOKEN: token}
    )
    assert (status, refused["error"]) == (400, "InvalidArgument")


def _of_peer(api: ApiPeer, peer: str) -> list[dict[str, Any]]:
    return [one for one in api.get("/api/connections")["connections"] if one["peer"] == peer]


def test_a_replica_is_told_by_its_figures_with_the_distance_of_the_others(api: ApiPeer) -> None:
    assert api.get("/api/overview")["replica"] == {}
    look = ReplicaStatus(
        settings=ReplicaSettings(
            replica_id=2, cluster="c", set_name="orders", address="a:1", file_size=1
        ),
        changes=CellChanges(),
        is_master=True,
        is_live=True,
        epoch=7,
        in_sync=(2, 3),
        end=1000,
        synced=900,
        confirm=800,
        behind={1: Behind(200, 40), 3: Behind(0, 0)},
    )

    found = console_api._replica(replica_figures(look))

    assert (found["set"], found["replica"], found["epoch"]) == ("orders", 2, 7)
    assert found["others"] == [
        {"replica": 1, "in_sync": 0, "behind_bytes": 200, "behind_seconds": 0.04},
        {"replica": 3, "in_sync": 1, "behind_bytes": 0, "behind_seconds": 0},
    ]
