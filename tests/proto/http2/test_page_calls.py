"""The page of a gRPC port, asked for in HTTP/2, as a scraper does that was offered it over TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.rpc.pages import (
    BODIES_MAX,
    BODIES_OF_HOST,
    BODY_BYTES_MAX,
    PAGES_MAX,
    QUEUED_BYTES_MAX,
    HttpResponse,
    Page,
    PageCalls,
    PageRequest,
)

from ..carriers.echo import REPLY, RUN, EchoService
from .calls import request_fields
from .frames import Code, Setting, reset
from .peer import Peer

SIZE = 1024 * 1024


async def text(asked: PageRequest) -> HttpResponse:
    return HttpResponse(200, "text/plain", f"{asked.method} {asked.path}\n".encode() * 10_000)


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
    async def fails(asked: PageRequest) -> HttpResponse:
        raise ZeroDivisionError("a bug")

    async with served(fails) as port, Peer.open(port) as peer:
        assert (await peer.answer(asks(peer, "/metrics"))).reset == Code.INTERNAL_ERROR
        call = peer.call("/test.Echo/Plain", RUN(run_id=7).SerializeToString())
        assert (await peer.answer(call)).status == "0"


async def test_more_pages_than_the_bound_are_asked_to_come_again() -> None:
    go = asyncio.Event()

    async def waits(asked: PageRequest) -> HttpResponse:
        await go.wait()
        return HttpResponse(200, "text/plain", b"late")

    async with served(waits) as port, Peer.open(port) as peer:
        waiting = [asks(peer, "/metrics") for _ in range(PAGES_MAX)]
        refused = await peer.answer(asks(peer, "/metrics"))
        go.set()
        late = [await peer.answer(stream) for stream in waiting]
        again = await peer.answer(asks(peer, "/metrics"))
    assert refused.http_status == "503"
    assert {answer.body for answer in [*late, again]} == {b"late"}


async def test_who_takes_nothing_of_its_pages_gets_no_further_ones() -> None:
    async def large(asked: PageRequest) -> HttpResponse:
        return HttpResponse(200, "text/plain", bytes(SIZE))

    size_max = QUEUED_BYTES_MAX // SIZE
    closed: dict[int, int] = {Setting.INITIAL_WINDOW_SIZE: 0}
    async with served(large) as port, Peer.open(port, settings=closed) as peer:
        statuses = []
        for _ in range(size_max + 2):
            stream = asks(peer, "/metrics")
            await peer.until_true(lambda: stream in peer.answers)  # noqa: B023 (awaited here)
            statuses.append(peer.answers[stream].http_status)
    assert statuses == ["200"] * (size_max + 1) + ["503"]


def posts(peer: Peer, *more: tuple[str, str], content_type: str = "application/json") -> int:
    return peer.begin(request_fields("/api/x", *more, te=None, content_type=content_type))


async def says(asked: PageRequest) -> HttpResponse:
    told = f"{asked.method} {asked.headers['host']} {asked.headers.get('cookie')} "
    return HttpResponse(200, "text/plain", told.encode() + asked.body)


async def test_a_body_comes_in_pieces_and_the_cookies_of_a_browser_too() -> None:
    async with served(says) as port, Peer.open(port) as peer:
        stream = posts(peer, ("cookie", "a=1"), ("cookie", "b=2"), content_type="application/json")
        await peer.send_body(stream, b"one, ", end=False)
        await peer.round_trip()
        assert stream not in peer.answers
        await peer.send_body(stream, b"two")
        shown = await peer.answer(stream)
    assert shown.body == b"POST localhost a=1; b=2 one, two"


async def test_bodies_of_other_types_are_for_calls() -> None:
    async with served(says) as port, Peer.open(port) as peer:
        shown = await peer.answer(posts(peer, content_type="text/plain"))
    assert shown.http_status == "415"


async def test_a_body_above_the_bound_is_refused_before_it_is_whole() -> None:
    async with served(says) as port, Peer.open(port) as peer:
        stream = posts(peer)
        await peer.send_body(stream, bytes(BODY_BYTES_MAX), end=False)
        await peer.round_trip()
        assert stream not in peer.answers
        await peer.send_body(stream, b"x", end=False)
        assert (await peer.answer(stream)).http_status == "413"


async def test_bodies_that_come_at_once_are_bounded_and_who_leaves_makes_room() -> None:
    async with served(says) as port, Peer.open(port) as peer:
        half = [posts(peer) for _ in range(BODIES_OF_HOST)]
        assert (await peer.answer(posts(peer))).http_status == "503"
        await peer.send(reset(half[0], Code.CANCEL))
        stream = posts(peer)
        await peer.send_body(stream, b"x")
        assert (await peer.answer(stream)).http_status == "200"


def test_a_host_that_leaves_bodies_half_sent_keeps_no_other_out_until_all_have_too_many() -> None:
    pages = PageCalls(says)
    begun = [pages.begin_body(f"10.0.0.{number // 10}:{number}") for number in range(80)]
    taken = BODIES_OF_HOST
    assert begun == [number % 10 < taken for number in range(80)]
    assert sum(begun) == BODIES_MAX
    assert not pages.begin_body("10.0.0.9:1")
    pages.end_body("10.0.0.1:10")
    assert not pages.begin_body("10.0.0.2:99")
    assert pages.begin_body("10.0.0.9:1")


def test_addresses_of_one_ipv6_network_are_one_host() -> None:
    pages = PageCalls(says)
    assert all(pages.begin_body(f"[2001:db8::{number}]:5") for number in range(BODIES_OF_HOST))
    assert not pages.begin_body("[2001:db8::ffff]:5")
    assert pages.begin_body("[2001:db8:1::1]:5")


async def test_events_are_told_one_by_one_and_end_when_nobody_hears_them() -> None:
    go, ended = asyncio.Event(), asyncio.Event()

    async def tell() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            await go.wait()
            yield b"two"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def events(_: PageRequest) -> HttpResponse:
        return HttpResponse(200, "text/event-stream", b"", events=tell())

    async with served(events) as port, Peer.open(port) as peer:
        stream = asks(peer, "/api/events")
        await peer.until_true(
            lambda: stream in peer.answers and peer.answers[stream].body == b"one"
        )
        go.set()
        await peer.until_true(lambda: peer.answers[stream].body == b"onetwo")
        assert "content-length" not in peer.answers[stream].headers
        await peer.send(reset(stream, Code.CANCEL))
        await asyncio.wait_for(ended.wait(), 60)


async def test_who_hears_no_events_is_given_up() -> None:
    async def tell() -> AsyncGenerator[bytes, None]:
        while True:
            yield bytes(SIZE // 8)
            await asyncio.sleep(0)

    async def events(_: PageRequest) -> HttpResponse:
        return HttpResponse(200, "text/event-stream", b"", events=tell())

    closed: dict[int, int] = {Setting.INITIAL_WINDOW_SIZE: 0}
    async with served(events) as port, Peer.open(port, settings=closed) as peer:
        assert await peer.until_reset(asks(peer, "/api/events")) == Code.CANCEL
