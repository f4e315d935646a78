"""Plain HTTP/1.1 on a gRPC port: what is a request, what is refused, and several of them on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.rpc.http1_requests import HEAD_BYTES_MAX, HttpRefused, RequestReader
from pocketmq.proto.rpc.pages import (
    BODIES_OF_HOST,
    BODY_BYTES_MAX,
    PAGES_MAX,
    HttpResponse,
    Page,
    PageRequest,
)

POST = b"POST /api/x?a=1&b=%20c HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
GET = b"GET /y HTTP/1.1\r\nHost: h\r\n\r\n"


def read(*pieces: bytes) -> list[PageRequest]:
    reader = RequestReader("1.2.3.4:5", secure=False)
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (asked := reader.next()) is not None:
            found.append(asked)
    return found


@given(st.lists(st.integers(0, len(POST + GET + POST))))
def test_requests_are_the_same_however_their_bytes_are_cut(cuts: list[int]) -> None:
    data = POST + GET + POST
    ends = [*sorted(cuts), len(data)]
    found = read(*(data[a:b] for a, b in zip([0, *ends], ends, strict=False)))
    assert [(one.method, one.path, one.body) for one in found] == [
        ("POST", "/api/x", b"hello"),
        ("GET", "/y", b""),
        ("POST", "/api/x", b"hello"),
    ]
    assert found[0].query == {"a": "1", "b": " c"}


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://u@b/x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nName : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\nEvil: b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1), 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + bytes([65]) * HEAD_BYTES_MAX, 431),
    ],
)
def test_what_could_be_read_in_two_ways_or_is_too_large_is_refused(
    sent: bytes, status: int
) -> None:
    with pytest.raises(HttpRefused) as refused:
        read(sent)
    assert refused.value.shown.status == status


@pytest.mark.parametrize(
    ("target", "path"), [("http://b:1/x?y", "/x?y"), ("HTTPS://b:1", "/"), ("http://b:1?y", "/?y")]
)
def test_a_target_that_is_a_whole_address_tells_the_host(target: str, path: str) -> None:
    (asked,) = read(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert (asked.target, asked.headers["host"]) == (path, "b:1")


@asynccontextmanager
async def connected(
    page: Page, count: int = 1
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    carrier = Http2Carrier([], page=page)
    port = await carrier.start("127.0.0.1", 0)
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    yield pairs
    for _, writer in pairs:
        writer.close()
    await carrier.stop(0)


async def answer(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
    return head, await reader.readexactly(size)


async def says(asked: PageRequest) -> HttpResponse:
    return HttpResponse(
        200, "text/plain", f"{asked.method} {asked.path} {len(asked.body)}".encode()
    )


async def test_several_requests_are_answered_in_their_order_on_one_connection() -> None:
    large = b"POST /z HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000)
    async with connected(says) as [(reader, writer)]:
        writer.write(GET + POST)
        assert [(await answer(reader))[1] for _ in range(2)] == [b"GET /y 0", b"POST /api/x 5"]
        writer.write(large)
        assert (await answer(reader))[1] == b"POST /z 1000000"
        writer.write(b"GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (await answer(reader))[1] == b"GET /last 0"
        assert await reader.read() == b""


async def test_what_is_refused_hears_why_and_its_connection_ends() -> None:
    async with connected(says) as [(reader, writer)]:
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n")
        head, body = await answer(reader)
        assert head.startswith("HTTP/1.1 413 ")
        assert str(BODY_BYTES_MAX).encode() in body
        assert await reader.read() == b""


async def test_bodies_that_come_at_once_are_bounded_and_their_places_are_given_back() -> None:
    begun = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n12345678"
    async with connected(says, BODIES_OF_HOST + 2) as pairs:
        for _, writer in pairs[: BODIES_OF_HOST + 1]:
            writer.write(begun)
        # One of them, the first that the server reads last, has no place.
        refused = [
            asyncio.ensure_future(answer(reader)) for reader, _ in pairs[: BODIES_OF_HOST + 1]
        ]
        await asyncio.wait(refused, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result()[0][:12] for one in refused if one.done()] == ["HTTP/1.1 503"]
        for one, (_, writer) in zip(refused, pairs, strict=False):
            if not one.done():
                writer.write(b"9")
        assert [(await one)[0][9:12] for one in refused].count("200") == BODIES_OF_HOST
        pairs[-1][1].write(begun + b"9")
        assert (await answer(pairs[-1][0]))[1] == b"POST / 9"


LARGE = 1024 * 1024


async def test_who_reads_nothing_gets_no_further_answers_until_it_does() -> None:
    made: list[str] = []

    async def page(asked: PageRequest) -> HttpResponse:
        made.append(asked.path)
        return HttpResponse(200, "text/plain", bytes(LARGE if asked.path == "/large" else 1))

    async with connected(page, 2) as [(reader, writer), (other, asks)]:
        writer.write(GET.replace(b"/y", b"/large") * 60)
        for _ in range(100):  # Turns in which further ones would be answered.
            asks.write(GET)
            await answer(other)
        assert made.count("/large") < 30  # What the system's buffers hold, and one that waits.
        for _ in range(60):
            assert len((await answer(reader))[1]) == LARGE


async def test_what_comes_while_an_answer_is_made_waits_for_its_turn() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def page(asked: PageRequest) -> HttpResponse:
        if asked.path == "/slow":
            begun.set()
            await go.wait()
        return HttpResponse(
            200, "text/plain", asked.path.encode() * (LARGE if asked.path == "/l" else 1)
        )

    async with connected(page, 2) as [(reader, writer), (other, asks)]:
        writer.write(GET.replace(b"/y", b"/l") * 9 + GET.replace(b"/y", b"/slow"))
        for _ in range(9):
            await answer(reader)
        await begun.wait()
        writer.write(GET)
        for _ in range(100):  # Turns in which it would be answered.
            asks.write(GET)
            await answer(other)
        go.set()
        assert [(await answer(reader))[1] for _ in range(2)] == [b"/slow", b"/y"]


async def test_pages_that_are_made_at_once_are_bounded() -> None:
    go = asyncio.Event()

    async def page(asked: PageRequest) -> HttpResponse:
        await go.wait()
        return HttpResponse(200, "text/plain", b"late")

    async with connected(page, PAGES_MAX + 1) as pairs:
        for _, writer in pairs:
            writer.write(GET)
        answers = [asyncio.ensure_future(answer(reader)) for reader, _ in pairs]
        await asyncio.wait(answers, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        go.set()
        statuses = sorted([(await one)[0][9:12] for one in answers])
        assert statuses == ["200"] * PAGES_MAX + ["503"]


async def test_events_are_told_as_they_come_and_end_with_who_listens() -> None:
    ended = asyncio.Event()
    go: asyncio.Queue[bytes] = asyncio.Queue()

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield await go.get()
        finally:
            ended.set()

    async def page(asked: PageRequest) -> HttpResponse:
        return HttpResponse(200, "text/event-stream", b"", events=events())

    async with connected(page) as [(reader, writer)]:
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length" not in head
        for told in (b"data: 1\n\n", b"data: 2\n\n"):
            go.put_nowait(told)
            assert await reader.readexactly(len(told)) == told
        assert not ended.is_set()
        writer.close()
        await asyncio.wait_for(ended.wait(), 30)
