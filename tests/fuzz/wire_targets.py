"""Decoders of what peers send: HTTP/2, gRPC, remoting, replication, and texts inside requests."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from typing import Any, Final

from pocketmq.broker.pop.handles import (
    decode_handle as decode_receipt_handle,
    encode_handle as encode_receipt_handle,
)
from pocketmq.broker.replication import registry_format
from pocketmq.broker.replication.frames import read_state
from pocketmq.proto import slave_protocol
from pocketmq.proto.errors import (
    ConfigError,
    InvalidArgument,
    InvalidFilter,
    InvalidReceiptHandle,
)
from pocketmq.proto.filters.expressions import parse_tags, tag_expression
from pocketmq.proto.filters.normal_form import canonical_sql
from pocketmq.proto.filters.sql_evaluation import compiled
from pocketmq.proto.filters.sql_parser import parse as parse_sql
from pocketmq.proto.message_id import decode_offset_message_id, offset_message_id
from pocketmq.proto.recall_handle import decode_handle, encode_handle
from pocketmq.proto.remoting import fastjson
from pocketmq.proto.remoting.command import RemotingCommand, decode, encode
from pocketmq.proto.remoting.frames import FrameSplitter
from pocketmq.proto.rpc.connection import ClientConnection, ServerConnection
from pocketmq.proto.rpc.errors import RpcError
from pocketmq.proto.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    frame,
    settings,
    window_update,
)
from pocketmq.proto.rpc.hpack import CompressionError, FieldDecoder, FieldEncoder
from pocketmq.proto.rpc.http1_requests import HttpRefused, RequestReader
from pocketmq.proto.rpc.limits import ConnectionLimits
from pocketmq.proto.rpc.messages import Inflation, MessageReader, with_prefix
from pocketmq.proto.time_text import format_duration, parse_duration
from pocketmq.proto.yaml_file import read_yaml, read_yaml_lines

from .target import REFUSED, Target, pieces, result_of, text_of

_FIELDS: Final = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
    (":authority", "127.0.0.1:8081"),
    ("content-type", "application/grpc"),
    ("grpc-timeout", "3S"),
    ("te", "trailers"),
]
_LIMITS: Final = ConnectionLimits()


def _check_server(data: bytes) -> None:
    _check_connection(lambda: ServerConnection(_LIMITS, 0), data)


def _check_client(data: bytes) -> None:
    def opened() -> ClientConnection:
        return ClientConnection(_LIMITS, 0)

    _check_connection(opened, data)


def _check_connection(opened: Callable[[], Any], data: bytes) -> None:
    """The same bytes mean the same, in whatever pieces they arrive."""
    whole, parts = opened(), opened()
    whole.receive(data, 0)
    for piece in pieces(data):
        parts.receive(piece, 0)
    assert whole.ended == parts.ended
    if whole.ended:
        assert whole.end_code == parts.end_code
    for connection in (whole, parts):
        while connection.take() and connection.has_more:
            pass


def _requests() -> list[bytes]:
    head = FieldEncoder().encode(_FIELDS)
    call = frame(HEADERS, END_HEADERS, 1, head) + frame(DATA, END_STREAM, 1, with_prefix(b"body"))
    return [
        PREFACE + settings({4: 65_535}) + window_update(0, 9) + call,
        PREFACE + settings({}) + frame(6, 0, 0, bytes(8)) + call + frame(3, 0, 1, bytes(4)),
        PREFACE + settings({1: 0}) + frame(HEADERS, 0, 1, head[:9]) + frame(9, 4, 1, head[9:]),
    ]


def _responses() -> list[bytes]:
    head = FieldEncoder().encode([(":status", "200"), ("content-type", "application/grpc")])
    end = FieldEncoder().encode([("grpc-status", "0")])
    return [
        settings({4: 65_535})
        + frame(HEADERS, END_HEADERS, 1, head)
        + frame(DATA, 0, 1, with_prefix(b"body"))
        + frame(HEADERS, END_HEADERS | END_STREAM, 1, end),
        settings({}) + frame(7, 0, 0, bytes(8)) + frame(6, 1, 0, bytes(8)),
    ]


def _check_fields(data: bytes) -> None:
    found = result_of(CompressionError, FieldDecoder().decode, data)
    if found is REFUSED or found.flaw or found.too_large:
        return
    assert FieldDecoder().decode(FieldEncoder().encode(found.fields)).fields == found.fields


def _check_http1(data: bytes) -> None:
    whole = RequestReader("peer", secure=False)
    whole.feed(data)
    parts = RequestReader("peer", secure=False)
    seen: list[Any] = []
    for piece in pieces(data):
        parts.feed(piece)
        while not (seen and seen[-1] is REFUSED):
            found = result_of(HttpRefused, parts.next)
            if found is None:
                break
            seen.append(found)
    for one in seen:
        found = result_of(HttpRefused, whole.next)
        assert found == one or REFUSED in (found, one)
        if REFUSED in (found, one):
            return


def _check_messages(data: bytes) -> None:
    for compressed in (False, True):
        whole = _messages(MessageReader(10_000, compressed=compressed), [data])
        parts = _messages(MessageReader(10_000, compressed=compressed), pieces(data))
        assert whole == parts


def _messages(reader: MessageReader, received: Iterable[bytes]) -> list[Any]:
    found: list[Any] = []
    try:
        for piece in received:
            for message in reader.feed(piece):
                data = message.rest() if isinstance(message, Inflation) else message
                assert len(data) <= 10_000
                found.append(data)
    except RpcError as error:
        found.append(type(error))
    return found


def _grpc_messages() -> list[bytes]:
    packed = gzip.compress(b"x" * 3_000, mtime=0)
    return [
        with_prefix(b"one") + with_prefix(b""),
        b"\1" + len(packed).to_bytes(4) + packed + with_prefix(b"two"),
    ]


def _check_remoting(data: bytes) -> None:
    whole = result_of(ValueError, FrameSplitter(10_000).feed, data)
    splitter = FrameSplitter(10_000)
    parts: Any = []
    try:
        for piece in pieces(data):
            parts += splitter.feed(piece)
    except ValueError:
        parts = REFUSED
    assert whole == parts
    frames = [] if whole is REFUSED else whole
    for one in (*frames, data):
        command = result_of(ValueError, decode, one)
        if command is not REFUSED:
            again = result_of(ValueError, encode, command)
            assert again is REFUSED or _plain(decode(again[4:])) == _plain(command)


def _plain(command: RemotingCommand) -> tuple[Any, ...]:
    language = command.language if command.language.isupper() else ""
    return (command.code, command.opaque, command.flag, command.body, language and command.version)


def _commands() -> list[bytes]:
    command = RemotingCommand(
        code=310, opaque=7, fields={"a": "orders", "b": "ü"}, body=b"body", remark="why"
    )
    frames = [encode(command), encode(RemotingCommand(code=34, opaque=8, is_json=False))]
    return [*frames, b"".join(frames), frames[0][4:], frames[1][4:]]


def _check_fastjson(data: bytes) -> None:
    value = result_of(ValueError, fastjson.loads, data)
    if value is not REFUSED:
        assert repr(fastjson.loads(fastjson.dumps(value))) == repr(value)


def _check_slave_protocol(data: bytes) -> None:
    for kind in (slave_protocol.ClassicFrames, slave_protocol.AutoSwitchFrames):
        whole = _fed(kind(), [data])
        parts = _fed(kind(), pieces(data))
        assert whole == parts
    result_of(ValueError, slave_protocol.ClassicReports().feed, data)


def _fed(reader: Any, received: Iterable[bytes]) -> list[Any]:
    found: list[Any] = []
    try:
        for piece in received:
            found += reader.feed(piece)
    except ValueError:
        return [ValueError]  # What comes before it may be in the same piece.
    return found


def _slave_streams() -> list[bytes]:
    handshake = slave_protocol.Handshake(9, 2, ((1, 0), (2, 5)))
    frame_ = slave_protocol.LogFrame(5, b"bytes", 2, 5, 9)
    return [
        slave_protocol.classic_frame(0, b"bytes") + slave_protocol.classic_frame(5),
        slave_protocol.handshake_answer(handshake) + slave_protocol.transfer_frame(frame_),
        slave_protocol.classic_report(9),
    ]


def _check_replication(data: bytes) -> None:
    result_of(ValueError, read_state, data)
    for parse, render in (
        (registry_format.parse_cell, registry_format.render_cell),
        (registry_format.parse_live, registry_format.render_live),
        (registry_format.parse_mark, registry_format.render_mark),
    ):
        found = result_of(ConfigError, parse, data, "/node")
        if found is not REFUSED:
            assert parse(render(found), "/node") == found


_REPLICATION: Final = (
    b'{"format":1,"epoch":3,"master":1,"in_sync":[1,2],"replicas":{"1":"h:1","2":"h:2","3":"h:3"}}',
    b'{"address":"h:1","epoch":3,"end":9,"unclean":false,"epoch_seen":4,"store":"s"}',
    b'{"format":1,"end":9,"epoch":3,"accepted":2}',
    b'{"topicConfigTable":{"T":{"perm":6,"name":"\\u00fc"}},"n":-5}',
)


def _check_sql(data: bytes) -> None:
    text = text_of(data)
    tree = result_of(InvalidFilter, parse_sql, text)
    if tree is REFUSED:
        assert result_of(InvalidFilter, canonical_sql, text) is REFUSED
        return
    canonical = canonical_sql(text)
    assert canonical_sql(canonical) == canonical
    original, again = compiled(text), compiled(canonical)
    assert original.names == again.names
    for value in (None, "", "5", "-0.5", "true", text[:30]):
        row = (value,) * len(original.names)
        assert original.evaluate(row) is again.evaluate(row)


_SQL: Final = (
    b"a > 5 AND (b = 'x''y' OR NOT c IS NULL)",
    b"price BETWEEN -1.5e3 AND 10 AND region IN ('eu', 'us') OR a <> TRUE",
    b"name NOT LIKE 'x' OR a CONTAINS 'b' AND c NOT STARTSWITH 'd' OR e ENDSWITH ''",
    b"NOT NOT (a >= 0.1 OR TRUE)",
)


def _check_texts(data: bytes) -> None:
    text = text_of(data)
    tags = result_of(InvalidFilter, parse_tags, text)
    if tags is not REFUSED:
        assert parse_tags(tag_expression(tags)) == tags
    duration_ms = result_of(InvalidArgument, parse_duration, text)
    if duration_ms is not REFUSED:
        assert parse_duration(format_duration(duration_ms)) == duration_ms
    receipt = result_of(InvalidReceiptHandle, decode_receipt_handle, text)
    if receipt is not REFUSED:
        assert decode_receipt_handle(encode_receipt_handle(*receipt)) == receipt
    recall = result_of(InvalidArgument, decode_handle, text)
    if recall is not REFUSED:
        assert decode_handle(encode_handle(*recall)) == recall
    place = result_of(InvalidArgument, decode_offset_message_id, text)
    if place is not REFUSED:
        assert offset_message_id(*place) == "".join(text.split()).upper()


_TEXTS: Final = (
    b"a || b||c",
    b"1h30m5ms",
    encode_receipt_handle(True, 3, 5, 2**63).encode(),
    encode_receipt_handle(False, 3, 5, 9, "chat-1").encode(),
    encode_handle("orders", "broker-a", 1_700_000_000_000, "0" * 32).encode(),
    offset_message_id(bytes((127, 0, 0, 1)), 10_911, 77).encode(),
)


def _check_yaml(data: bytes) -> None:
    text = text_of(data)
    result_of(ConfigError, read_yaml_lines, text, "pocketmq.yaml")
    result_of(ConfigError, read_yaml, text, "pocketmq.yaml")


TARGETS: Final = (
    Target("http2-server", _check_server, _requests),
    Target("http2-client", _check_client, _responses),
    Target("hpack", _check_fields, lambda: [FieldEncoder().encode(_FIELDS)]),
    Target(
        "http1",
        _check_http1,
        lambda: [
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET http://b/y HTTP/1.0\r\n\r\n",
        ],
    ),
    Target("grpc-messages", _check_messages, _grpc_messages),
    Target("remoting", _check_remoting, _commands),
    Target(
        "fastjson",
        _check_fastjson,
        lambda: [b'{"brokerAddrs":{0:"h:1"},{"a":1}:[1.5,null]}', b'[{1:2,"x":true}]'],
    ),
    Target("slave-protocol", _check_slave_protocol, _slave_streams),
    Target("replication", _check_replication, lambda: _REPLICATION),
    Target("sql", _check_sql, lambda: _SQL),
    Target("texts", _check_texts, lambda: _TEXTS),
    Target(
        "yaml", _check_yaml, lambda: [b"broker:\n  port: 1\n  host: '::'\n", b"a: &x {b: *x}\n"]
    ),
)
