"""A client's end of a connection, fed with bytes: what a server says, rightly and wrongly."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable

import hpack
import pytest

from pocketmq.proto.rpc.connection import ClientConnection
from pocketmq.proto.rpc.frames import ErrorCode
from pocketmq.proto.rpc.incoming import (
    ClientEvent,
    ConnectionEnded,
    DataReceived,
    Drained,
    GoAwayReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)
from pocketmq.proto.rpc.limits import ConnectionLimits

from . import frames
from .calls import request_fields
from .frames import ACK, END_STREAM, PADDED, PREFACE, Code, Frame, Setting, Type

HEAD = [(":status", "200"), ("content-type", "application/grpc")]
GOOD = [("grpc-status", "0")]
FIELDS = request_fields("/test.Echo/Plain")


class Server:
    """The other end of CONNECTION: it says what it is told to, and cuts what it is told into frames."""

    def __init__(
        self, limits: ConnectionLimits | None = None, settings: dict[int, int] | None = None
    ) -> None:
        self.connection = ClientConnection(limits or ConnectionLimits(), 0)
        self._encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        first = self.connection.take()
        assert first.startswith(PREFACE)
        self.greeting = list(frames.cut(bytearray(first[len(PREFACE) :])))
        assert self.say(frames.settings(settings)) == []
        self.heard()

    def say(self, *parts: bytes) -> list[ClientEvent]:
        """Send PARTS and return what the client makes of them."""
        return self.connection.receive(b"".join(parts), 0)

    def heard(self) -> list[Frame]:
        """Return what the client has written."""
        written = bytearray()
        while data := self.connection.take():
            written += data
        return list(frames.cut(written))

    def block(self, fields: Iterable[tuple[str, str]]) -> bytes:
        return self._encoder.encode(list(fields))

    def decoded(self, found: Frame) -> list[tuple[str, str]]:
        """Return the fields of a HEADERS frame that the client has written."""
        return [(str(name), str(value)) for name, value in self.decoder.decode(found.payload)]

    def head(self, stream: int, *, end: bool = False) -> bytes:
        return frames.headers(stream, self.block(HEAD), end=end)

    def trailers(self, stream: int) -> bytes:
        return frames.headers(stream, self.block(GOOD), end=True)


def test_a_call_leaves_in_one_write_and_its_answer_is_told_in_order() -> None:
    server = Server()

    stream = server.connection.open(FIELDS, b"question")

    head, body = server.heard()
    assert server.decoded(head) == FIELDS
    assert (body.payload, body.ends_stream, body.stream) == (b"question", True, stream)
    told = server.say(server.head(stream), frames.data(stream, b"ans"), server.trailers(stream))
    assert told == [
        ResponseReceived(stream, 200, HEAD[1:], False),
        DataReceived(stream, b"ans", False),
        TrailersReceived(stream, GOOD),
    ]
    assert server.connection.streams == 0
    assert server.heard() == []


def test_streams_have_odd_numbers_that_grow() -> None:
    server = Server()

    assert [server.connection.open(FIELDS, b"x") for _ in range(3)] == [1, 3, 5]


def test_heads_that_repeat_are_short() -> None:
    server = Server()

    for _ in range(2):
        server.connection.open(FIELDS, b"x")

    first, _, second, _ = server.heard()
    assert server.decoded(first) == server.decoded(second)
    assert len(second.payload) < 10 < len(first.payload)


def test_a_server_without_a_table_is_told_fields_without_one() -> None:
    server = Server(settings={Setting.HEADER_TABLE_SIZE: 0})
    server.decoder.max_allowed_table_size = 0

    for _ in range(2):
        server.connection.open(FIELDS, b"x")

    for found in server.heard():
        if found.type == Type.HEADERS:
            assert server.decoded(found) == FIELDS
    assert server.decoder.header_table_size == 0


def test_an_answer_may_be_trailers_alone() -> None:
    server = Server()
    stream = server.connection.open(FIELDS, b"x")

    fields = [(":status", "200"), ("grpc-status", "5")]
    told = server.say(frames.headers(stream, server.block(fields), end=True))

    assert told == [ResponseReceived(stream, 200, fields[1:], True)]
    assert server.connection.streams == 0


def test_what_precedes_the_answer_is_passed_over() -> None:
    server = Server()
    stream = server.connection.open(FIELDS, b"x")

    early = frames.headers(stream, server.block([(":status", "103"), ("link", "x")]))
    told = server.say(early, server.head(stream))

    assert told == [ResponseReceived(stream, 200, HEAD[1:], False)]


def test_padding_is_taken_off_and_counts_for_the_window() -> None:
    server = Server()
    stream = server.connection.open(FIELDS, b"x")

    padded = frames.frame(Type.DATA, PADDED, stream, bytes([3]) + b"abc" + bytes(3))

    assert server.say(server.head(stream), padded)[1:] == [DataReceived(stream, b"abc", False)]


def test_an_answer_that_ends_first_breaks_the_request_off() -> None:
    server = Server()
    stream = server.connection.open(FIELDS)
    server.connection.send_data(stream, bytes(100_000))
    server.heard()

    server.say(server.head(stream), server.trailers(stream), frames.window_update(stream, 50_000))

    assert server.connection.queued == 0
    assert [(found.type, found.code) for found in server.heard()] == [
        (Type.RST_STREAM, Code.NO_ERROR)
    ]


def test_what_a_window_does_not_take_waits_for_it_and_the_end_follows() -> None:
    server = Server(settings={Setting.INITIAL_WINDOW_SIZE: 10, Setting.MAX_FRAME_SIZE: 20_000})
    stream = server.connection.open(FIELDS)

    server.connection.send_data(stream, b"0123456789abcdef")
    server.connection.tell_below(stream, 1)
    server.connection.send_end(stream)

    assert [found.payload for found in server.heard()[1:]] == [b"0123456789"]
    assert server.connection.queued_of(stream) == 6
    assert server.say(frames.window_update(stream, 4)) == []
    assert [found.payload for found in server.heard()] == [b"abcd"]
    server.say(frames.window_update(stream, 4))
    (last,) = server.heard()
    assert (last.payload, last.ends_stream) == (b"ef", True)


def test_pieces_of_a_body_that_follow_each_other_share_a_frame() -> None:
    server = Server(settings={Setting.INITIAL_WINDOW_SIZE: 60_000})
    stream = server.connection.open(FIELDS)
    for piece in (b"a", b"b" * 10_000, b"c" * 6_383, b"d", b"e"):
        server.connection.send_data(stream, piece)
    server.connection.send_end(stream)
    _, full, rest, end = server.heard()
    assert full.payload == b"a" + b"b" * 10_000 + b"c" * 6_383, (
        "as much as the server takes: 16,384 B"
    )
    assert (rest.type, rest.payload) == (Type.DATA, b"de")
    assert (end.type, end.payload, end.flags & END_STREAM) == (Type.DATA, b"", END_STREAM)
    assert not (full.flags | rest.flags) & END_STREAM


def test_a_frame_is_not_gone_on_with_behind_another_one_or_once_it_was_taken() -> None:
    server = Server()
    one, other = server.connection.open(FIELDS), server.connection.open(FIELDS)
    server.heard()
    for stream, piece in ((one, b"a"), (other, b"b"), (one, b"c")):
        server.connection.send_data(stream, piece)
    server.connection.ping(b"between ")
    server.connection.send_data(one, b"d")
    told = [(found.stream, found.payload) for found in server.heard()]
    assert told == [(one, b"a"), (other, b"b"), (one, b"c"), (0, b"between "), (one, b"d")]
    server.connection.send_data(one, b"e")
    assert [(found.stream, found.payload) for found in server.heard()] == [(one, b"e")]


def test_a_shared_frame_takes_no_more_than_the_windows_allow() -> None:
    server = Server(settings={Setting.INITIAL_WINDOW_SIZE: 5})
    stream = server.connection.open(FIELDS)
    for piece in (b"abc", b"def", b"ghi"):
        server.connection.send_data(stream, piece)
    assert b"".join(found.payload for found in server.heard()[1:]) == b"abcde"
    assert server.connection.queued == 4
    server.say(frames.window_update(stream, 3))
    assert b"".join(found.payload for found in server.heard()) == b"fgh"
    server.connection.reset(stream, ErrorCode.CANCEL)
    assert [found.type for found in server.heard()] == [Type.RST_STREAM], "what waited is dropped"


def test_who_writes_hears_when_what_waited_has_left() -> None:
    server = Server(settings={Setting.INITIAL_WINDOW_SIZE: 10})
    stream = server.connection.open(FIELDS)
    server.connection.send_data(stream, bytes(15))
    server.connection.tell_below(stream, 1)
    server.heard()
    assert server.connection.events() == []

    server.say(frames.window_update(stream, 5))
    server.heard()

    assert server.connection.events() == [Drained(stream)]


def test_the_window_of_the_connection_is_shared() -> None:
    server = Server(settings={Setting.INITIAL_WINDOW_SIZE: 1_000_000})
    one, two = server.connection.open(FIELDS, bytes(60_000)), server.connection.open(FIELDS)
    server.connection.send_data(two, bytes(60_000))

    first = sum(len(found.payload) for found in server.heard() if found.type == Type.DATA)
    server.say(frames.window_update(0, 100_000))
    rest = sum(len(found.payload) for found in server.heard() if found.type == Type.DATA)

    assert (first, rest) == (65_535, 120_000 - 65_535)
    assert server.connection.queued_of(one) == server.connection.queued_of(two) == 0


def test_what_came_is_given_back_unless_its_stream_is_held() -> None:
    limits = ConnectionLimits(stream_window=100_000, connection_window=1_000_000)
    server = Server(limits)
    stream = server.connection.open(FIELDS, b"x")
    piece = frames.data(stream, bytes(16_000))
    server.heard()

    server.connection.hold(stream)
    server.say(server.head(stream), piece * 5)
    assert server.heard() == []
    server.connection.release(stream)

    (given,) = server.heard()
    assert (given.type, given.stream) == (Type.WINDOW_UPDATE, stream)
    assert int.from_bytes(given.payload, "big") == 80_000


def test_a_server_that_sends_more_than_its_window_loses_the_stream() -> None:
    server = Server(ConnectionLimits(stream_window=20_000))
    stream = server.connection.open(FIELDS, b"x")
    server.connection.hold(stream)
    server.heard()

    told = server.say(server.head(stream), frames.data(stream, bytes(16_000)) * 2)

    assert told[-1] == StreamReset(stream, ErrorCode.FLOW_CONTROL_ERROR, False)
    assert server.heard()[0].code == Code.FLOW_CONTROL_ERROR


def test_no_more_streams_are_opened_than_the_server_takes() -> None:
    server = Server(settings={Setting.MAX_CONCURRENT_STREAMS: 1})
    assert server.connection.can_open
    stream = server.connection.open(FIELDS, b"x")
    assert not server.connection.can_open
    assert not server.connection.is_going_away

    server.say(server.head(stream), server.trailers(stream))

    assert server.connection.can_open


def test_nothing_is_opened_before_the_servers_settings() -> None:
    connection = ClientConnection(ConnectionLimits(), 0)
    assert not connection.can_open

    connection.receive(frames.settings(), 0)

    assert connection.can_open


def test_a_farewell_keeps_what_the_server_still_answers() -> None:
    server = Server()
    one, two = (server.connection.open(FIELDS, b"x") for _ in range(2))
    farewell = struct.pack(">II", one, Code.NO_ERROR) + b"old"

    told = server.say(frames.frame(Type.GOAWAY, payload=farewell))

    assert told == [
        GoAwayReceived(one, 0, "old"),
        StreamReset(two, ErrorCode.REFUSED_STREAM, True),
    ]
    assert server.connection.is_going_away
    assert server.say(server.head(one), server.trailers(one))[-1] == TrailersReceived(one, GOOD)


def test_a_reset_ends_its_stream_alone() -> None:
    server = Server()
    one, two = (server.connection.open(FIELDS, b"x") for _ in range(2))

    assert server.say(frames.reset(one)) == [StreamReset(one, ErrorCode.CANCEL, True)]
    assert server.say(server.head(two))[0] == ResponseReceived(two, 200, HEAD[1:], False)


def test_what_was_under_way_to_a_stream_that_was_broken_off_is_passed_over() -> None:
    server = Server(ConnectionLimits(connection_window=40_000))
    broken = [server.connection.open(FIELDS, b"x") for _ in range(5_000)]
    for stream in broken:
        server.connection.reset(stream, ErrorCode.CANCEL)
    server.heard()

    for stream in broken:
        late = (server.head(stream), frames.data(stream, b"late"), server.trailers(stream))
        assert server.say(*late) == []
    assert server.say(frames.window_update(broken[0], 1), frames.reset(broken[0])) == []

    given = [found for found in server.heard() if found.type == Type.WINDOW_UPDATE]
    assert given
    assert {found.stream for found in given} == {0}
    assert not server.connection.ended


def test_a_question_is_answered_and_an_answer_told() -> None:
    server = Server()

    server.say(frames.ping(b"12345678"))

    (answer,) = server.heard()
    assert (answer.type, answer.flags, answer.payload) == (Type.PING, ACK, b"12345678")


def _head(server: Server, *fields: tuple[str, str], end: bool = False) -> bytes:
    return frames.headers(1, server.block(fields), end=end)


#: What ends the stream, by what is wrong with it.
_STREAM_MISTAKES: dict[str, Callable[[Server], bytes]] = {
    "data before the head": lambda s: frames.data(1, b"x"),
    "no status": lambda s: _head(s, ("content-type", "application/grpc")),
    "a status that is no number": lambda s: _head(s, (":status", "2x0")),
    "a switch of protocols": lambda s: _head(s, (":status", "101")),
    "an interim answer that ends": lambda s: _head(s, (":status", "100"), end=True),
    "a field of HTTP/1.1": lambda s: _head(s, (":status", "200"), ("connection", "close")),
    "a name in upper case": lambda s: _head(s, (":status", "200"), ("Loud", "x")),
    "a head that is too large": lambda s: _head(s, (":status", "200"), ("x", "y" * 17_000)),
    "a second head": lambda s: s.head(1) + s.head(1),
    "a pseudo field in trailers": lambda s: s.head(1) + _head(s, (":status", "200"), end=True),
    "a window opened by nothing": lambda s: frames.window_update(1, 0),
    "a window that is too large": lambda s: frames.window_update(1, 2**31 - 1),
}


@pytest.mark.parametrize("mistake", _STREAM_MISTAKES)
def test_a_mistake_of_a_stream_ends_that_stream(mistake: str) -> None:
    server = Server()
    server.connection.open(FIELDS)
    other = server.connection.open(FIELDS, b"x")
    server.heard()

    told = server.say(_STREAM_MISTAKES[mistake](server))

    assert type(told[-1]) is StreamReset
    assert not told[-1].by_peer
    assert server.heard()[-1].type == Type.RST_STREAM
    assert server.say(server.head(other), server.trailers(other))[-1] == TrailersReceived(
        other, GOOD
    )


#: What ends the connection, by what is wrong with it.
_MISTAKES = {
    "no HTTP/2": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "data on a stream that is idle": frames.data(9, b"x"),
    "data without a stream": frames.data(0, b"x"),
    "a head on a stream that is idle": frames.headers(9, b"\x88"),
    "a head on a stream of the server's": frames.headers(2, b"\x88"),
    "a promise": frames.frame(Type.PUSH_PROMISE, stream=1, payload=bytes(4)),
    "a reset of a stream that is idle": frames.reset(9),
    "a block that is not whole": frames.headers(1, b"\x88", whole=False) + frames.ping(),
    "a block that cannot be decoded": frames.headers(1, b"\xff\xff\xff\xff\xff\xff\xff"),
    "a padding that is too long": frames.frame(Type.DATA, PADDED, 1, b"\x09x"),
    "a frame that is too long": frames.frame(
        Type.DATA, 0, 1, bytes(ConnectionLimits().frame_bytes_max + 1)
    ),
    "a window of the connection opened by nothing": frames.window_update(0, 0),
    "a farewell that is too short": frames.frame(Type.GOAWAY, payload=bytes(7)),
    "a farewell of a stream": frames.frame(Type.GOAWAY, stream=1, payload=bytes(8)),
    "settings of half a value": frames.frame(Type.SETTINGS, payload=bytes(5)),
    "a flood of questions": frames.ping() * 2_100,
    "a flood of nothing": frames.data(1) * 2_100,
}


@pytest.mark.parametrize("mistake", _MISTAKES)
def test_a_mistake_of_the_connection_ends_it_and_says_why(mistake: str) -> None:
    server = Server()
    stream = server.connection.open(FIELDS)
    server.say(server.head(stream))
    server.heard()

    told = server.say(_MISTAKES[mistake])

    assert type(told[-1]) is ConnectionEnded
    assert any(type(event) is StreamReset for event in told)
    assert server.heard()[-1].type == Type.GOAWAY
    assert server.connection.is_going_away
    assert server.say(frames.ping()) == []


def test_what_another_kind_of_server_begins_with_is_told() -> None:
    connection = ClientConnection(ConnectionLimits(), 0)
    (told,) = connection.receive(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", 0)
    assert isinstance(told, ConnectionEnded)
    assert told.code == ErrorCode.FRAME_SIZE_ERROR
    assert "begins with b'HTTP/1.1 400 Bad'" in told.reason


def test_frames_without_use_by_the_way_are_no_flood() -> None:
    server = Server()
    stream = server.connection.open(FIELDS, b"x")
    server.say(server.head(stream))

    for second in range(1_000):
        server.connection.receive(frames.ping() * 50, second * 1_000)

    assert not server.connection.ended


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_server_sends_nothing_is_raised(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        server = Server()
        streams = [server.connection.open(FIELDS, b"x"), server.connection.open(FIELDS)]
        good = b"".join(
            server.head(stream) + frames.data(stream, b"abc") + server.trailers(stream)
            for stream in streams
        )
        sent = bytearray(good + frames.ping() + frames.window_update(0, 5) + frames.settings())
        for _ in range(chance.randint(1, 8)):
            _damage(sent, chance)
        at = 0
        while at < len(sent):
            step = chance.randint(1, 60)
            server.connection.receive(bytes(sent[at : at + step]), at)
            at += step
        if not server.connection.ended:
            server.connection.send_data(streams[1], b"more")
        assert all(found.type in set(Type) for found in server.heard())


def _damage(sent: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(sent))
    match chance.randrange(4):
        case 0:
            sent[at] = chance.randrange(256)
        case 1:
            del sent[at : at + chance.randint(1, 9)]
        case 2:
            sent[at:at] = chance.randbytes(chance.randint(1, 9))
        case _:
            kind, flags = chance.randrange(11), chance.randrange(256)
            body = chance.randbytes(chance.randrange(12))
            sent[at:at] = frames.frame(kind, flags, chance.randrange(6), body)
