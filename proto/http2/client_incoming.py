"""The half of a client's connection that reads: responses, trailers and what a server says of the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import calm
from .client_streams import ClientStream
from .events import StreamReset
from .faults import ConnectionFault, StreamFault
from .field_blocks import Block
from .frames import (
    HEADER_TABLE_SIZE,
    MAX_CONCURRENT_STREAMS,
    STREAM_MASK,
    WORD,
    ErrorCode,
)
from .hpack import FieldEncoder, FieldList
from .incoming import Incoming
from .limits import ConnectionLimits
from .outgoing import Outgoing
from .requests import Malformed, check_trailers
from .responses import GoAwayReceived, ResponseReceived, TrailersReceived, read_status
from .stream_table import StreamTable

#: Responses below are not the last word (RFC 9110 §15.2).
_FINAL: Final = 200
_REASON_BYTES_MAX: Final = 200


class ClientIncoming(Incoming):
    """What a client's connection reads. ENCODER makes its blocks, as large a table as the server allows."""

    def __init__(
        self,
        limits: ConnectionLimits,
        table: StreamTable,
        outgoing: Outgoing,
        budget: calm.Budget,
        tell: Callable[[Any], None],
        encoder: FieldEncoder,
    ) -> None:
        super().__init__(limits, table, outgoing, budget, tell)
        self._encoder = encoder
        self._reader.greet()
        #: Streams that the server takes at once.
        self.streams_max = STREAM_MASK
        #: No stream above this is answered any more; None: the server has not said so.
        self.answered_up_to: int | None = None

    @property
    def is_ready(self) -> bool:
        """Has the server said its settings?"""
        return self._has_settings

    # --- responses

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            # What was under way when this side broke the stream off.
            self._take_credit(len(payload))
            self._check_used(stream_id, "DATA")
            return
        assert isinstance(stream, ClientStream)
        if not stream.answered:
            self._take_credit(len(payload))
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "DATA before the head")
        super()._on_data(flags, stream_id, payload)

    def _on_fields(self, block: Block, found: FieldList) -> None:
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

    def _on_head(self, stream: ClientStream, block: Block, found: FieldList) -> None:
        status = read_status(found.fields)
        if status < _FINAL:
            if block.ends:
                raise Malformed("an answer that ends before it has begun")
            self._budget.charge(calm.IDLE_FRAME)
            return
        stream.answered = True
        stream.ended_by_peer = block.ends
        self._tell(ResponseReceived(stream.id, status, found.fields[1:], block.ends))

    def _on_answers_end(self, stream: ClientStream, block: Block, found: FieldList) -> None:
        if not block.ends:
            raise Malformed("trailers that do not end the stream")
        check_trailers(found.fields)
        stream.ended_by_peer = True
        self._tell(TrailersReceived(stream.id, found.fields))

    def _check_used(self, stream_id: int, what: str) -> None:
        """Raise ConnectionFault, for WHAT came on STREAM_ID, if that was never opened."""
        if stream_id == 0 or self._table.is_idle(stream_id):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which is idle"
            )

    # --- the connection

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
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which was not allowed")
