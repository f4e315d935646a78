"""A server's end fed with bytes: calls that their callers give up, and what was under way then."""

from __future__ import annotations

from collections.abc import Iterator

import hpack
import pytest

from pocketmq.proto.rpc import flood_budget
from pocketmq.proto.rpc.connection import ServerConnection
from pocketmq.proto.rpc.incoming import (
    CallsReset,
    ConnectionEnded,
    DataReceived,
    Event,
    RequestReceived,
    StreamReset,
)
from pocketmq.proto.rpc.limits import ConnectionLimits

from . import frames
from .calls import message, request_fields
from .frames import PREFACE, Code, Frame, Type
from .peer import Peer
from .stage import LATER, staged

FIELDS = request_fields("/test.Echo/Plain")
BODY = message(b"x" * 300)


class Client:
    """The other end of CONNECTION."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.connection = ServerConnection(limits or ConnectionLimits(), 0)
        self._encoder = hpack.Encoder()
        self._next_stream = 1
        self.say(PREFACE, frames.settings())
        self.heard()

    def say(self, *parts: bytes, at_ms: int = 0) -> list[Event]:
        """Send PARTS, which come in one read AT_MS; return what the server makes of them."""
        return self.connection.receive(b"".join(parts), at_ms)

    def heard(self) -> list[Frame]:
        """Return what the server has written."""
        written = bytearray()
        while data := self.connection.take():
            written += data
        return list(frames.cut(written))

    def fields(self, *more: tuple[str, str]) -> bytes:
        return self._encoder.encode([*FIELDS, *more])

    def head(self) -> tuple[int, bytes]:
        """Return a new stream, and the frame that begins it."""
        stream = self._next_stream
        self._next_stream += 2
        return stream, frames.headers(stream, self.fields())

    def call(self) -> tuple[int, bytes]:
        """Return a new stream, and the frames of a whole call on it."""
        stream, head = self.head()
        return stream, head + frames.data(stream, BODY, end=True)

    def cancelled(self, calls: int, behind: bytes = b"") -> Iterator[bytes]:
        """Yield CALLS calls, each with its reset and a piece of DATA with BEHIND in it, if any."""
        for _ in range(calls):
            stream, call = self.call()
            yield call + frames.reset(stream)
            if behind:
                yield frames.data(stream, behind)


def test_what_is_under_way_behind_a_reset_costs_its_stream_and_is_answered_once() -> None:
    client = Client()
    stream, head = client.head()
    client.say(head)

    told = client.say(frames.reset(stream))
    late = client.say(
        frames.data(stream, BODY),
        frames.data(stream, BODY, end=True),
        frames.headers(stream, client.fields(), end=True),
    )

    assert [type(event) for event in told] == [CallsReset, StreamReset]
    assert late == []
    assert [(found.type, found.stream, found.code) for found in client.heard()] == [
        (Type.RST_STREAM, stream, Code.STREAM_CLOSED)
    ]
    assert not client.connection.ended


def test_fields_behind_a_reset_are_decoded_for_those_that_refer_to_them() -> None:
    client = Client()
    stream, head = client.head()
    late = frames.headers(stream, client.fields(("x-late", "said behind the reset")), end=True)
    client.say(head, frames.reset(stream), late)

    another, _ = client.head()
    block = client.fields(("x-late", "said behind the reset"))
    (told,) = client.say(frames.headers(another, block, end=True))

    assert len(block) < 12, "the block refers to the table"
    assert isinstance(told, RequestReceived)
    assert told.request.headers["x-late"] == "said behind the reset"


def test_bytes_behind_a_reset_count_for_the_connections_window_and_are_given_back() -> None:
    window = 200_000
    client = Client(ConnectionLimits(connection_window=window))
    piece = bytes(16_000)
    given = 0
    for _ in range(100):
        stream, head = client.head()
        client.say(head, frames.reset(stream), frames.data(stream, piece))
        given += sum(
            int.from_bytes(found.payload)
            for found in client.heard()
            if found.type == Type.WINDOW_UPDATE and found.stream == 0
        )

    assert not client.connection.ended
    assert 100 * len(piece) - window <= given <= 100 * len(piece)


def test_resets_are_known_as_long_as_streams_may_be_open() -> None:
    client = Client()
    streams = []
    for _ in range(4_096):
        stream, head = client.head()
        client.say(head)
        streams.append(stream)

    client.say(*map(frames.reset, streams))
    client.say(*(frames.data(stream, BODY, end=True) for stream in streams))

    assert not client.connection.ended
    assert [found.stream for found in client.heard() if found.code == Code.STREAM_CLOSED] == streams


def test_data_behind_the_end_of_an_answered_stream_is_a_mistake_of_the_connection() -> None:
    client = Client()
    stream, call = client.call()
    client.say(call)
    client.connection.answer(stream, b"\x88", b"", b"\x88")
    client.heard()

    told = client.say(frames.data(stream, BODY))

    assert isinstance(told[-1], ConnectionEnded)
    assert told[-1].code == Code.STREAM_CLOSED


def test_of_a_call_that_comes_with_its_reset_nothing_is_told() -> None:
    client = Client()
    stream, call = client.call()
    kept, other = client.call()

    told = client.say(call, other, frames.reset(stream))

    assert {getattr(event, "stream_id", 0) for event in told} == {kept}
    assert client.connection.streams == 1


def test_that_a_stream_is_given_up_is_told_before_the_rest_of_its_request() -> None:
    client = Client()
    stream, head = client.head()
    client.say(head)

    told = client.say(frames.data(stream, BODY, end=True), frames.reset(stream))

    assert told == [
        CallsReset((stream,)),
        DataReceived(stream, BODY, True),
        StreamReset(stream, Code.CANCEL, True),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("behind", [b"", b"late"], ids=["", "with data behind"])
def test_what_callers_gave_up_while_this_side_was_held_up_is_no_flood(behind: bytes) -> None:
    """Ten thousand at once, and once more as many two seconds later."""
    client = Client()

    for at_ms in (0, 2_000):
        assert client.say(*client.cancelled(flood_budget.STALE_CALLS, behind), at_ms=at_ms) == []

    kept, call = client.call()
    assert [event.stream_id for event in client.say(call, at_ms=2_000)] == [kept, kept]  # type: ignore[union-attr]


@pytest.mark.slow
def test_calls_that_are_reset_at_once_are_bounded_however_they_are_cut_into_reads() -> None:
    for reads in (1, 100):
        client = Client()
        ends: list[Event] = []
        for _ in range(reads):
            ends += client.say(*client.cancelled(flood_budget.STALE_CALLS // reads))
        assert ends == []

        (end,) = client.say(*client.cancelled(1))

        assert isinstance(end, ConnectionEnded)
        assert end.code == Code.ENHANCE_YOUR_CALM


def test_resets_that_cross_the_answers_of_a_held_up_client_are_no_flood() -> None:
    """A client that was stopped wakes, and gives up every call that was answered meanwhile."""
    client = Client()
    streams = []
    for _ in range(4_096):
        stream, call = client.call()
        client.say(call)
        client.connection.answer(stream, b"\x88", b"answer", b"\x88")
        streams.append(stream)
    client.heard()

    told = client.say(
        *(frames.window_update(0, 6) + frames.reset(stream) for stream in streams),
        *(frames.window_update(stream, 6) for stream in streams),
    )

    assert told == []


async def test_no_handler_begins_for_a_call_whose_reset_is_read_with_it() -> None:
    async with staged() as stage, Peer.open(stage.port) as peer:
        half = peer.begin(request_fields("/test.Echo/Plain"))
        await peer.round_trip()

        stale = peer.call("/test.Echo/Plain", LATER)
        peer.write(frames.data(half, message(LATER), end=True))
        kept = peer.call("/test.Echo/Plain", LATER)
        peer.write(frames.reset(stale), frames.reset(half))
        await peer.round_trip()

        assert len(stage.echo.calls) == 1, "that of the call that was kept"
        peer.write(frames.reset(kept))
