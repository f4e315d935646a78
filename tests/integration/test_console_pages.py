"""The console's pages: in a real browser their rows are the API's, what is sent shows, and nothing goes elsewhere."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pocketmq.client import AsyncAdmin, PullConsumer

from ..served import ServerProcess
from .browser import column, grave_faults, send_on, watched
from .command import Shell
from .console_peer import ApiPeer

pytestmark = pytest.mark.processes

PATHS = (
    "/",
    "/topics",
    "/topics/orders",
    "/messages?topic=orders",
    "/messages?topic=orders&queue=0&offset=1",
    "/groups",
    "/groups/billing",
    "/dead-letters",
    "/dead-letters?group=mourners",
    "/delayed",
    "/transactions",
    "/connections",
    "/store",
    "/users",
)
#: Where screenshots of the run are kept.
SCREENSHOTS = Path(__file__).parents[2] / ".dev" / "screenshots"
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = tmp_path_factory.mktemp("console") / "store"
    with ServerProcess(store, "--grpc", "builtin") as running:
        api = ApiPeer(running.ready["broker"])
        for name in ("orders", "payments"):
            api.post("/api/topics", name=name, queues=2)
        api.post("/api/topics", name="later", queues=1, type="DELAY")
        for number in range(8):
            api.post("/api/topics/orders/messages", body=f"{EVIL} {number}", keys=[f"A-{number}"])
        for number in range(3):
            api.post("/api/topics/later/messages", body=f"later {number}", delay=f"{number + 1}h")
        api.close()
        shell = Shell(running.nameserver)
        assert shell("consume", "orders", "--group", "billing", "--limit", "3").code == 0
        assert shell("group", "create", "mourners", "--retries", "0").code == 0
        with PullConsumer("mourners", "orders", nameservers=running.nameserver) as consumer:
            died = 0
            while died < 3:
                for message in consumer.poll(1_000)[: 3 - died]:
                    died += consumer.send_back(message, reason="no such customer").dead
        yield running


@pytest.fixture
def api(server: ServerProcess) -> Iterator[ApiPeer]:
    peer = ApiPeer(server.ready["broker"])
    yield peer
    peer.close()


def test_pages_need_no_script_and_show_text_as_text(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection(server.ready["broker"], timeout=60)
    for path in (*PATHS, "/console.css", "/console.mjs", "/icon.svg"):
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, path
        assert EVIL not in text
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "style=" not in text.replace('rel="style', "")
        if path == "/topics/orders":
            assert "&lt;script&gt;" in text
    for path, status in (("/nothing", 404), ("/topics/nothing", 404), ("/groups/nothing", 404)):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert (answer.status, b"<!doctype html>" in answer.read()) == (status, True)
    connection.close()


@pytest.fixture
def opened(chromium: Any, server: ServerProcess) -> Iterator[Any]:
    with watched(chromium, f"http://{server.ready['broker']}") as page:
        yield page


@pytest.mark.browser
@pytest.mark.long
def test_rows_of_pages_are_those_of_the_api(opened: Any, api: ApiPeer) -> None:
    opened.goto("/topics")
    rows = api.get("/api/topics")["topics"]
    assert column(opened, "topics", "topic") == [row["name"] for row in rows]
    assert column(opened, "topics", "messages") == [str(row["messages"]) for row in rows]
    opened.goto("/groups")
    rows = api.get("/api/groups")["groups"]
    assert column(opened, "groups", "group") == [row["name"] for row in rows]
    lags = dict(
        zip(column(opened, "groups", "group"), column(opened, "groups", "lag"), strict=True)
    )
    assert lags == {row["name"]: str(row["lag"]) for row in rows}
    assert lags["billing"] == "5"
    opened.goto("/groups/billing")
    rows = api.get("/api/groups/billing")["queues"]
    assert column(opened, "offsets", "lag") == [str(row["lag"]) for row in rows]
    opened.goto("/messages?topic=orders")
    rows = api.get("/api/topics/orders/messages")["messages"]
    assert column(opened, "messages", "message") == [row["message_id"] for row in rows]
    assert column(opened, "messages", "body") == [row["body"] for row in rows]
    for path in PATHS:
        opened.goto(path)
        opened.wait_for_selector("#live:not(:empty)")


@pytest.mark.browser
@pytest.mark.long
def test_what_is_sent_on_a_page_shows_on_it(opened: Any, api: ApiPeer) -> None:
    opened.goto("/topics/payments")
    opened.wait_for_selector("#live:not(:empty)")
    send_on(opened, "paid")
    api.post("/api/topics/payments/messages", body="from elsewhere")
    opened.wait_for_selector('#newest td:has-text("from elsewhere")')
    assert column(opened, "newest", "body") == ["from elsewhere", "paid"]


@pytest.mark.browser
@pytest.mark.long
def test_a_message_and_all_dead_letters_are_sent_again_on_their_pages(
    opened: Any, api: ApiPeer
) -> None:
    opened.on("dialog", lambda dialog: dialog.accept())

    def held() -> int:
        found = api.get("/api/topics/orders")["queues"]
        return sum(one["max_offset"] - one["min_offset"] for one in found)

    before = held()
    opened.goto("/messages?topic=orders&queue=0&offset=0")
    opened.get_by_role("button", name="Send again", exact=True).click()
    opened.wait_for_selector("output:has-text('message id')")
    assert held() == before + 1
    opened.goto("/dead-letters?group=mourners")
    assert column(opened, "letters", "reason") == ["no such customer"] * 3
    opened.get_by_text("Resend all").first.click()
    opened.get_by_role("button", name="Resend all", exact=True).click()
    opened.wait_for_selector("output:has-text('offset 2')")
    assert held() == before + 4


@pytest.mark.browser
@pytest.mark.long
def test_a_phone_needs_no_scrolling_sideways(opened: Any) -> None:
    opened.set_viewport_size({"width": 360, "height": 740})
    for path in PATHS:
        opened.goto(path)
        assert opened.evaluate("document.documentElement.scrollWidth") <= 360, path


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_no_grave_fault_on_any_page(
    chromium: Any, server: ServerProcess, colours: str
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    faults = []
    with watched(chromium, f"http://{server.ready['broker']}", color_scheme=colours) as page:
        for path in PATHS:
            page.goto(path)
            page.wait_for_selector("#live:has-text('live')")
            page.screenshot(path=SCREENSHOTS / f"{colours}-{_file_name(path)}.png", full_page=True)
            # In the dark it is colours alone that differ.
            rules = () if colours == "light" else ("color-contrast",)
            faults += [(path, *one) for one in grave_faults(page, *rules)]
    assert faults == []


def _file_name(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path).strip("-") or "overview"


@pytest.mark.browser
@pytest.mark.long
def test_over_tls_somebody_signs_in_by_keys_sends_and_sees_it(
    chromium: Any, tmp_path: Path
) -> None:
    users = tmp_path / "users.yaml"
    users.touch(0o600)
    users.write_text("users: {root: {secret: s, type: Super}}")
    (tmp_path / "c.yaml").write_text(f"broker: {{users: {users}}}")
    settings = ("--grpc", "builtin", "--config", str(tmp_path / "c.yaml"))
    with ServerProcess(tmp_path / "store", *settings) as server:
        address = server.ready["broker"]
        done = Shell(server.nameserver)("console", "--broker", address, "--no-browser")
        assert (done.code, done.out) == (0, f"http://{address}/\n")
        with watched(chromium, f"https://{address}", ignore_https_errors=True) as page:
            page.goto("/topics?search=paid")
            page.wait_for_selector(
                "input:focus"
            )  # A page gives it when it is drawn, after it was loaded.
            for key in ("root", "Tab", "s", "Enter"):
                page.keyboard.press(key) if key in ("Tab", "Enter") else page.keyboard.type(key)
            page.wait_for_selector("#live:has-text('live')")
            assert page.url.endswith("/topics?search=paid")
            page.get_by_text("Create a topic").click()
            page.fill("input[name=name]", "paid")
            page.get_by_role("button", name="Create", exact=True).click()
            page.wait_for_selector("output:has-text('paid')")
            page.keyboard.press("Escape")
            page.get_by_role("link", name="paid", exact=True).click()
            send_on(page, "in HTTP/2")
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_selector("input[name=secret]")


@pytest.mark.browser
@pytest.mark.long
def test_as_many_topics_as_a_broker_may_have_are_pages_that_are_searched(
    chromium: Any, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "store", "--grpc", "builtin") as server:
        with ThreadPoolExecutor(1) as pool:  # The browser's driver has a loop on this thread.
            pool.submit(asyncio.run, _make_topics(server.nameserver, 9_900)).result()
        shown: dict[str, int] = {}
        with watched(chromium, f"http://{server.ready['broker']}") as page:
            for path in ("/", "/topics", "/groups"):
                page.goto(path)
                page.wait_for_selector("#live:has-text('live')")
                shown_ms = page.evaluate(
                    "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
                )
                shown[path] = round(shown_ms)
            page.goto("/topics")
            assert "9,900" in page.inner_text("main .title")
            page.fill('[role="search"] input', "t-0777")
            page.keyboard.press("Enter")
            page.wait_for_url("**search=t-0777*")
            assert column(page, "topics", "topic") == [f"t-0777{last}" for last in range(10)]
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / "ms-with-9900-topics.json").write_text(json.dumps(shown))


async def _make_topics(nameserver: str, count: int) -> None:
    async with AsyncAdmin(nameserver) as admin:
        for begin in range(0, count, 100):
            names = [f"t-{number:05}" for number in range(begin, begin + 100)]
            await asyncio.gather(*(admin.create_topic(name, queues=1) for name in names))


def test_the_command_tells_the_address_of_a_console_that_answers(server: ServerProcess) -> None:
    shell = Shell(server.nameserver)
    address = server.ready["broker"]
    done = shell("console", "--broker", address, "--no-browser")
    assert (done.code, done.out) == (0, f"http://{address}/\n")
    gone = shell("console", "--broker", "127.0.0.1:1", "--no-browser")
    assert gone.code == 4
    assert "pocketmq serve" in gone.err
