"""The page of a gRPC port, asked for in HTTP/2, as a scraper does that was offered it over TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pocketmq.proto.carrier_http2 import Http2Carrier
from pocketmq.proto.rpc.pages import PAGES_MAX, QUEUED_BYTES_MAX, Page, PageRequest, Shown

from ..carriers.echo import REPLY, RUN, EchoService
from .calls import request_fields
from .frames import Code, Setting
from .peer import Peer

SIZE = 1024 * 1024


async def text(asked: PageRequest) -> Shown:
    return Shown(200, "text/plain", f"{asked.method} {asked.path}\n".encode() * 10_000)


@asynccontextmanager
async def served(page: Page | None) -> AsyncIterator[int]:
    carrier = Http2Carrier([EchoService().methods()], page=page)
    port = await carrier.start("127.0.0.1", 0)
    yield port
    await carrier.stop(0)


def asks(peer: Peer, path: str, method: str = "GET") -> int:
    fields = request_fields(path, method=method, te=None, content_type=None)
    return peer.begin(fields, end=True)


async def test_a_page_that_is_larger_than_a_frame_is_shown_beside_calls() -> None:
    async with served(text) as port, Peer.open(port) as peer:
        page = asks(peer, "/metrics?name=x")
        call = peer.call("/test.Echo/Plain", RUN(run_id=7).SerializeToString())
        shown, called = await peer.answer(page), await peer.answer(call)
    assert shown.http_status == "200"
    assert shown.headers["content-type"] == "text/plain"
    assert shown.headers["content-length"] == str(len(shown.body))
    assert shown.body == b"GET /metrics\n" * 10_000
    assert (shown.trailers, shown.reset) == ({}, None)
    assert REPLY.FromString(called.messages[0]).run_id == 7


async def test_who_asks_for_the_head_gets_the_head() -> None:
    async with served(text) as port, Peer.open(port) as peer:
        shown = await peer.answer(asks(peer, "/metrics", "HEAD"))
    assert (shown.http_status, shown.body) == ("200", b"")
    assert shown.headers["content-length"] == str(len("HEAD /metrics\n") * 10_000)


async def test_other_methods_and_ports_without_a_page_are_refused() -> None:
    async with served(text) as port, Peer.open(port) as peer:
        assert (await peer.answer(asks(peer, "/metrics", "PUT"))).http_status == "405"
    async with served(None) as port, Peer.open(port) as peer:
        assert (await peer.answer(asks(peer, "/metrics"))).http_status == "405"


async def test_a_path_without_a_slash_is_refused() -> None:
    async with served(text) as port, Peer.open(port) as peer:
        assert (await peer.answer(asks(peer, "metrics"))).http_status == "400"


async def test_a_page_that_fails_costs_its_request_alone() -> None:
    async def fails(asked: PageRequest) -> Shown:
        raise ZeroDivisionError("a bug")

    async with served(fails) as port, Peer.open(port) as peer:
        assert (await peer.answer(asks(peer, "/metrics"))).reset == Code.INTERNAL_ERROR
        call = peer.call("/test.Echo/Plain", RUN(run_id=7).SerializeToString())
        assert (await peer.answer(call)).status == "0"


async def test_more_pages_than_the_bound_are_asked_to_come_again() -> None:
    go = asyncio.Event()

    async def waits(asked: PageRequest) -> Shown:
        await go.wait()
        return Shown(200, "text/plain", b"late")

    async with served(waits) as port, Peer.open(port) as peer:
        waiting = [asks(peer, "/metrics") for _ in range(PAGES_MAX)]
        refused = await peer.answer(asks(peer, "/metrics"))
        go.set()
        late = [await peer.answer(stream) for stream in waiting]
        again = await peer.answer(asks(peer, "/metrics"))
    assert refused.http_status == "503"
    assert {answer.body for answer in [*late, again]} == {b"late"}


async def test_who_takes_nothing_of_its_pages_gets_no_further_ones() -> None:
    async def large(asked: PageRequest) -> Shown:
        return Shown(200, "text/plain", bytes(SIZE))

    size_max = QUEUED_BYTES_MAX // SIZE
    closed: dict[int, int] = {Setting.INITIAL_WINDOW_SIZE: 0}
    async with served(large) as port, Peer.open(port, settings=closed) as peer:
        statuses = []
        for _ in range(size_max + 2):
            stream = asks(peer, "/metrics")
            await peer.until_true(lambda: stream in peer.answers)  # noqa: B023 (awaited here)
            statuses.append(peer.answers[stream].http_status)
    assert statuses == ["200"] * (size_max + 1) + ["503"]
