"""The reading half of a connection: it checks each frame of the peer and turns it into events.

`Incoming` is for servers. `ClientIncoming` differs in heads, DATA before them, two settings, GOAWAY and PUSH_PROMISE
(RFC 9113 §6). Events: heads of requests and of responses, pieces of bodies, resets, GOAWAY, the end. Heads are checked
for pseudo-fields, headers and trailers, and for what makes them malformed (§8.2.2, §8.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from . import flood_budget
from .frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_MASK,
    WINDOW_MAX,
    WINDOW_UPDATE,
    WORD,
    ConnectionFault,
    ErrorCode,
    FieldBlock,
    FieldBlocks,
    FrameReader,
    StreamFault,
    check_dependency,
    frame,
    read_settings,
    rst_stream,
    window_update,
    without_padding,
)
from .hpack import CompressionError, Field, FieldDecoder, FieldEncoder, FieldList
from .limits import ConnectionLimits
from .streams import ClientStream, Http2Stream, Outgoing, StreamTable

_SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)
_PING_BYTES: Final = 8
_GOAWAY_BYTES_MIN: Final = 8
#: Opening the windows of this many streams costs as much as one useless frame.
_STREAMS_A_CHARGE: Final = 16


class Malformed(Exception):
    """A request, or its trailers, that HTTP/2 does not allow. It ends its stream."""


class Request(NamedTuple):
    """A request. HEADERS has no pseudo-fields; of a repeated name it has the last value, of cookies all values."""

    method: str
    path: str
    authority: str
    headers: dict[str, str]


_PSEUDO: Final = frozenset((":method", ":scheme", ":path", ":authority"))
#: Fields that are not allowed after the pseudo-fields: other pseudo-fields, and those of HTTP/1.1 connections.
_MISPLACED: Final = frozenset(
    (
        *_PSEUDO,
        ":status",
        ":protocol",
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    )
)


def read_request(fields: list[Field]) -> Request:
    """Return the request with FIELDS, in their order; raise Malformed."""
    pseudo: dict[str, str] = {}
    count = 0
    for name, value in fields:
        if name[0] != ":":
            break
        pseudo[name] = value
        count += 1
    if len(pseudo) != count:
        raise Malformed("a pseudo-field occurs twice")
    headers = dict(fields[count:])
    if "cookie" in headers:
        # Browsers split it, so that its parts fit into the table (§8.2.3).
        headers["cookie"] = "; ".join(value for name, value in fields if name == "cookie")
    check_headers(headers)
    if not pseudo.keys() <= _PSEUDO:
        raise Malformed("a pseudo-field is not one of requests")
    path, method = pseudo.get(":path"), pseudo.get(":method")
    if not path or not method or not pseudo.get(":scheme"):
        raise Malformed("a request without :method, :scheme or :path")
    return Request(method, path, pseudo.get(":authority", ""), headers)


def check_headers(headers: dict[str, str]) -> None:
    """Raise Malformed unless HEADERS, which follow the pseudo-fields or the body, are allowed there."""
    if not _MISPLACED.isdisjoint(headers):
        misplaced = ", ".join(sorted(_MISPLACED & headers.keys()))
        raise Malformed(f"{misplaced} not allowed here")
    if headers.get("te", "trailers") != "trailers":
        raise Malformed("te is not trailers")


def check_trailers(fields: list[Field]) -> None:
    """Raise Malformed unless FIELDS may follow a body."""
    check_headers(dict(fields))


def content_length(headers: dict[str, str]) -> int | None:
    """Return the declared length of the body; None: it is not declared. Raises Malformed."""
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise Malformed("content-length is not a number")
    return int(text)


class RequestReceived(NamedTuple):
    """A stream started. ENDED: no body follows."""

    stream_id: int
    request: Request
    ended: bool


class RequestTooLarge(NamedTuple):
    """A stream started whose fields exceed the limit, so they are unknown. It waits for a response."""

    stream_id: int
    ended: bool


class DataReceived(NamedTuple):
    """A piece of a request's body; ENDED: it is the last, and may be empty."""

    stream_id: int
    data: bytes
    ended: bool


class StreamReset(NamedTuple):
    """A stream ended before its answer: the peer reset it, or made a mistake on it (BY_PEER False)."""

    stream_id: int
    code: int
    by_peer: bool


class CallsReset(NamedTuple):
    """The first event of a read: the peer resets these streams later in it. Their other events need no service."""

    stream_ids: tuple[int, ...]


class Drained(NamedTuple):
    """The queued bytes of a stream fell below the size that the writer asked for."""

    stream_id: int


class PingAnswered(NamedTuple):
    """The peer answered the ping with PAYLOAD."""

    payload: bytes


class ConnectionEnded(NamedTuple):
    """The connection has ended: send the rest of the output, which has the reason, and close it."""

    code: int
    reason: str


Event: TypeAlias = (
    RequestReceived
    | RequestTooLarge
    | DataReceived
    | StreamReset
    | CallsReset
    | Drained
    | PingAnswered
    | ConnectionEnded
)


class ResponseReceived(NamedTuple):
    """The response of a stream started, with HTTP STATUS and further FIELDS. ENDED: nothing else follows."""

    stream_id: int
    status: int
    fields: list[Field]
    ended: bool


class TrailersReceived(NamedTuple):
    """The answer of a stream has ended with FIELDS."""

    stream_id: int
    fields: list[Field]


class GoAwayReceived(NamedTuple):
    """The server accepts no new streams, and dropped those above LAST_STREAM_ID. It may give a reason."""

    last_stream_id: int
    code: int
    reason: str


ClientEvent: TypeAlias = (
    ResponseReceived
    | DataReceived
    | TrailersReceived
    | StreamReset
    | Drained
    | PingAnswered
    | GoAwayReceived
    | ConnectionEnded
)


def read_status(fields: list[Field]) -> int:
    """Return the status of a response that begins with FIELDS; raise Malformed."""
    name, text = fields[0] if fields else ("", "")
    if name != ":status" or len(text) != 3 or not (text.isascii() and text.isdigit()):
        raise Malformed("a response does not begin with :status")
    status = int(text)
    if status < 100 or status == 101:
        raise Malformed(f"a response with status {status}")
    check_headers(dict(fields[1:]))
    return status


class Incoming:
    """The reader of a connection. Events go to TELL. Mistakes of the peer that end the connection are raised."""

    def __init__(
        self,
        limits: ConnectionLimits,
        table: StreamTable,
        outgoing: Outgoing,
        budget: flood_budget.FloodBudget,
        tell: Callable[[Any], None],
    ) -> None:
        self._limits = limits
        self._table = table
        self._streams = table.open
        self._outgoing = outgoing
        self._budget = budget
        self._tell = tell
        self._reader = FrameReader(limits.frame_bytes_max)
        # A block may be longer than its list: short fields of many bytes, or badly encoded strings.
        self._blocks = FieldBlocks(4 * limits.field_list_bytes_max)
        self._decoder = FieldDecoder(list_bytes_max=limits.field_list_bytes_max)
        self._credit = limits.connection_window
        self._uncredited = 0
        self._has_settings = False
        self._stale_calls = flood_budget.FloodBudget(
            budget.now_ms,
            flood_budget.STALE_CALLS,
            flood_budget.STALE_CALLS_PER_SECOND,
            "calls that were reset at once",
        )
        #: Streams above this id were opened by the current read …
        self._read_from = 0
        #: … which resets these of them, …
        self.stale: set[int] = set()
        #: … and streams that were opened before it.
        self.reset_by_peer: list[int] = []
        self._incomplete_since_ms = budget.now_ms
        self._incomplete_count = 0
        #: Streams above this are no longer served.
        self.last_served: int | None = None
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            DATA: self._on_data,
            HEADERS: self._on_headers,
            PRIORITY: self._on_priority,
            RST_STREAM: self._on_reset,
            SETTINGS: self._on_settings,
            PUSH_PROMISE: self._on_push_promise,
            PING: self._on_ping,
            GOAWAY: self._on_go_away,
            WINDOW_UPDATE: self._on_window_update,
            CONTINUATION: self._on_continuation,
        }

    def read(self, data: bytes, now_ms: int) -> None:
        """Process DATA, received at NOW_MS; raise ConnectionFault, or Exhausted."""
        self._budget.advance_to(now_ms)
        self._read_from = self._table.last_id
        if self.stale or self.reset_by_peer:
            self.stale, self.reset_by_peer = set(), []
        blocks, handlers = self._blocks, self._handlers
        for kind, flags, stream_id, payload in self._reader.read(data):
            if not self._has_settings and (kind != SETTINGS or flags & ACK):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if blocks.is_open and kind != CONTINUATION:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a block of fields is incomplete")
            try:
                handlers.get(kind, self._on_unknown)(flags, stream_id, payload)
            except StreamFault as mistake:
                self._end_stream(mistake)
        self._note_incomplete(now_ms)

    def refuse_more(self) -> int:
        """Serve only streams that are already open; return the last of them."""
        self.last_served = self._table.last_id
        return self.last_served

    @property
    def is_incomplete(self) -> bool:
        """Is the preface, a frame or a block of fields incomplete?"""
        return self._reader.is_incomplete or self._blocks.is_open

    def incomplete_for_ms(self, now_ms: int) -> int:
        """How long the incomplete part has waited for its rest."""
        return now_ms - self._incomplete_since_ms if self.is_incomplete else 0

    def _note_incomplete(self, now_ms: int) -> None:
        if self._blocks.is_open:
            if self._incomplete_count >= 0:  # It starts here; CONTINUATION frames do not count.
                self._incomplete_count = -1
                self._incomplete_since_ms = now_ms
        elif self._incomplete_count != self._reader.count:
            self._incomplete_count = self._reader.count
            self._incomplete_since_ms = now_ms

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._take_credit(size)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._table.check_over(stream_id, "DATA")
            if size < flood_budget.TINY_DATA:
                self._budget.charge(flood_budget.IDLE_FRAME)
            return
        if stream.ended_by_peer:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end")
        stream.credit -= size
        if stream.credit < 0:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more than its window")
        if flags & PADDED:
            payload = without_padding(payload)
        ended = flags & END_STREAM != 0
        if stream.declared is not None:
            self._count_declared(stream, len(payload), ended=ended)
        if ended:
            stream.ended_by_peer = True
            self._budget.earn(flood_budget.REQUEST)
        else:
            if len(payload) < flood_budget.TINY_DATA:
                self._budget.charge(flood_budget.IDLE_FRAME)
            stream.uncredited += size
            if not stream.held:
                self.open_window(stream)
        self._tell(DataReceived(stream_id, payload, ended))

    def _take_credit(self, size: int) -> None:
        """Subtract SIZE bytes from the window of the connection, and open it again at once."""
        self._credit -= size
        if self._credit < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window")
        self._uncredited += size
        if self._uncredited * 2 >= self._limits.connection_window:
            self._outgoing.write(window_update(0, self._uncredited))
            self._credit += self._uncredited
            self._uncredited = 0

    def open_window(self, stream: Http2Stream) -> None:
        """Open the window of STREAM again, once enough is used for a frame to pay."""
        if stream.uncredited * 2 >= self._limits.stream_window and not stream.ended_by_peer:
            self._outgoing.write(window_update(stream.id, stream.uncredited))
            stream.credit += stream.uncredited
            stream.uncredited = 0

    def _count_declared(self, stream: Http2Stream, size: int, *, ended: bool) -> None:
        """Compare the length of the body with its content-length."""
        assert stream.declared is not None
        stream.received += size
        if stream.received > stream.declared or (ended and stream.received != stream.declared):
            raise StreamFault(
                stream.id, ErrorCode.PROTOCOL_ERROR, "content-length differs from the body"
            )

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._blocks.begin(flags, stream_id, payload)
        if block is not None:
            self._on_block(block)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._budget.charge(flood_budget.IDLE_FRAME)
        block = self._blocks.go_on(flags, stream_id, payload)
        if block is not None:
            self._on_block(block)

    def _on_block(self, block: FieldBlock) -> None:
        try:
            # Always decode it, even if the stream is refused: the next block refers to the table that it changes.
            found = self._decoder.decode(block.data)
        except CompressionError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        if found.too_large:
            self._budget.charge(len(block.data) >> flood_budget.TOO_LARGE_SHIFT)
        self._on_fields(block, found)

    def _on_fields(self, block: FieldBlock, found: FieldList) -> None:
        """Process the fields of BLOCK: a request's head, or its trailers."""
        stream_id = block.stream_id
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._on_trailers(stream, block, found)
            return
        if not self._table.is_idle(stream_id):
            self._table.check_over(stream_id, "HEADERS")
            self._budget.charge(flood_budget.IDLE_FRAME)
            return
        self._table.begin(stream_id)
        check_dependency(stream_id, block.depends_on)
        if self.last_served is not None or len(self._streams) >= self._limits.streams_max:
            # The peer may not have received the limit yet, so this is not a mistake.
            raise StreamFault(
                stream_id, ErrorCode.REFUSED_STREAM, "too many streams", flood_budget.IDLE_FRAME
            )
        self._open(block, found)

    def _open(self, block: FieldBlock, found: FieldList) -> None:
        """Start the stream of a request with the fields FOUND in BLOCK."""
        stream_id = block.stream_id
        if found.flaw is not None:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, found.flaw)
        stream = Http2Stream(stream_id, self._outgoing.initial_window, self._limits.stream_window)
        stream.ended_by_peer = block.ends
        if found.too_large:
            self._streams[stream_id] = stream
            self._tell(RequestTooLarge(stream_id, block.ends))
            return
        try:
            request = read_request(found.fields)
            stream.declared = content_length(request.headers)
        except Malformed as error:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if block.ends and stream.declared:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "content-length without a body")
        self._streams[stream_id] = stream
        self._tell(RequestReceived(stream_id, request, block.ends))

    def _on_trailers(self, stream: Http2Stream, block: FieldBlock, found: FieldList) -> None:
        """End the body of STREAM with the fields FOUND in BLOCK. Their values are not used."""
        check_dependency(stream.id, block.depends_on)
        if stream.ended_by_peer:
            raise StreamFault(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS after the end")
        try:
            check_trailers(found.fields)
        except Malformed as error:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if not block.ends or found.flaw is not None:
            raise StreamFault(
                stream.id,
                ErrorCode.PROTOCOL_ERROR,
                found.flaw or "trailers that do not end the stream",
            )
        if stream.declared is not None:
            self._count_declared(stream, 0, ended=True)
        stream.ended_by_peer = True
        self._tell(DataReceived(stream.id, b"", True))

    def _on_reset(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != WORD.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM must have four bytes")
        if stream_id == 0 or self._table.is_idle(stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM of an idle stream")
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            self._budget.charge(flood_budget.IDLE_FRAME)
            return
        self._outgoing.forget(stream)
        self._table.add_reset_by_peer(stream_id)
        if stream_id > self._read_from:
            self._stale_calls.advance_to(self._budget.now_ms)
            self.stale.add(stream_id)
            self._stale_calls.charge(1)
        else:
            self.reset_by_peer.append(stream_id)
            self._tell(StreamReset(stream_id, WORD.unpack(payload)[0], True))

    def _end_stream(self, mistake: StreamFault) -> None:
        """Reset the stream on which the peer made MISTAKE."""
        stream_id = mistake.stream_id
        self._budget.charge(mistake.cost)
        self._outgoing.write(rst_stream(stream_id, mistake.code))
        self._table.add_reset(stream_id)
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self._outgoing.forget(stream)
            self._tell(StreamReset(stream_id, mistake.code, False))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        self._budget.charge(flood_budget.IDLE_FRAME)
        if flags & ACK:
            if payload:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS must be empty"
                )
            return
        self._has_settings = True
        for identifier, value in read_settings(payload):
            if identifier == INITIAL_WINDOW_SIZE:
                self._budget.charge(len(self._streams) // _STREAMS_A_CHARGE)
                self._outgoing.resize_windows(value, self._streams.values())
            elif identifier == MAX_FRAME_SIZE:
                self._outgoing.resize_frames(value)
            else:
                self._on_setting(identifier, value)
        self._outgoing.write(_SETTINGS_ACK)

    def _on_setting(self, identifier: int, value: int) -> None:
        """Ignore a setting that a server does not need: it uses no dynamic table, and opens no streams."""

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != WORD.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE must have four bytes")
        self._budget.charge(flood_budget.IDLE_FRAME)
        more = WORD.unpack(payload)[0] & STREAM_MASK
        if stream_id == 0:
            if more == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by zero")
            self._outgoing.window += more
            if self._outgoing.window > WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2³¹−1")
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            if self._table.is_idle(stream_id):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of an idle stream")
            return
        if more == 0:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by zero")
        stream.window += more
        if stream.window > WINDOW_MAX:
            raise StreamFault(
                stream_id, ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2³¹−1"
            )
        self._outgoing.wake(stream)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != _PING_BYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING must have eight bytes")
        self._budget.charge(flood_budget.IDLE_FRAME)
        if flags & ACK:
            self._tell(PingAnswered(payload))
            return
        self._outgoing.write(frame(PING, ACK, 0, payload))

    def _on_go_away(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < _GOAWAY_BYTES_MIN:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, "GOAWAY must have eight or more bytes"
            )
        self._budget.charge(
            flood_budget.IDLE_FRAME
        )  # The peer opens no more streams, and closes the connection when it likes.

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
        self._budget.charge(flood_budget.IDLE_FRAME)
        if len(payload) != 5:
            raise StreamFault(
                stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY must have five bytes"
            )
        check_dependency(stream_id, WORD.unpack_from(payload)[0] & STREAM_MASK)

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE by a client")

    def _on_unknown(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        self._budget.charge(flood_budget.IDLE_FRAME)


#: Responses with a lower status are interim (RFC 9110 §15.2).
_FINAL: Final = 200
_REASON_BYTES_MAX: Final = 200


class ClientIncoming(Incoming):
    """The reader of a client's connection. ENCODER uses a table as large as the server allows."""

    def __init__(
        self,
        limits: ConnectionLimits,
        table: StreamTable,
        outgoing: Outgoing,
        budget: flood_budget.FloodBudget,
        tell: Callable[[Any], None],
        encoder: FieldEncoder,
    ) -> None:
        super().__init__(limits, table, outgoing, budget, tell)
        self._encoder = encoder
        self._reader.greet()
        #: The limit of concurrent streams that the server announced.
        self.streams_max = STREAM_MASK
        #: Streams above this will not be answered; None: the server has not announced it.
        self.answered_up_to: int | None = None

    @property
    def is_ready(self) -> bool:
        """Have the server's settings arrived?"""
        return self._has_settings

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            # It was on its way when this side reset the stream.
            self._take_credit(len(payload))
            self._check_used(stream_id, "DATA")
            return
        assert isinstance(stream, ClientStream)
        if not stream.answered:
            self._take_credit(len(payload))
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "DATA before the head")
        super()._on_data(flags, stream_id, payload)

    def _on_fields(self, block: FieldBlock, found: FieldList) -> None:
        stream_id = block.stream_id
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_used(stream_id, "HEADERS")
            return
        assert isinstance(stream, ClientStream)
        if found.flaw is not None:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, found.flaw)
        if found.too_large:
            raise StreamFault(stream_id, ErrorCode.ENHANCE_YOUR_CALM, "too many fields")
        try:
            if stream.answered:
                self._on_answers_end(stream, block, found)
            else:
                self._on_head(stream, block, found)
        except Malformed as error:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error

    def _on_head(self, stream: ClientStream, block: FieldBlock, found: FieldList) -> None:
        status = read_status(found.fields)
        if status < _FINAL:
            if block.ends:
                raise Malformed("an answer that ends before its head")
            self._budget.charge(flood_budget.IDLE_FRAME)
            return
        stream.answered = True
        stream.ended_by_peer = block.ends
        self._tell(ResponseReceived(stream.id, status, found.fields[1:], block.ends))

    def _on_answers_end(self, stream: ClientStream, block: FieldBlock, found: FieldList) -> None:
        if not block.ends:
            raise Malformed("trailers that do not end the stream")
        check_trailers(found.fields)
        stream.ended_by_peer = True
        self._tell(TrailersReceived(stream.id, found.fields))

    def _check_used(self, stream_id: int, what: str) -> None:
        """Raise ConnectionFault, about WHAT was received on STREAM_ID, if that stream was never opened."""
        if stream_id == 0 or self._table.is_idle(stream_id):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which is idle"
            )

    def _on_setting(self, identifier: int, value: int) -> None:
        if identifier == HEADER_TABLE_SIZE:
            self._encoder.resize(value)
        elif identifier == MAX_CONCURRENT_STREAMS:
            self.streams_max = value

    def _on_go_away(self, flags: int, stream_id: int, payload: bytes) -> None:
        super()._on_go_away(flags, stream_id, payload)
        last = WORD.unpack_from(payload)[0] & STREAM_MASK
        code = WORD.unpack_from(payload, WORD.size)[0]
        self.answered_up_to = last
        reason = payload[2 * WORD.size :][:_REASON_BYTES_MAX].decode("utf-8", "replace")
        self._tell(GoAwayReceived(last, code, reason))
        for late in [found for found in self._streams.values() if found.id > last]:
            del self._streams[late.id]
            self._outgoing.forget(late)
            self._tell(StreamReset(late.id, ErrorCode.REFUSED_STREAM, True))

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which is disabled")
