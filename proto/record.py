"""One record: a message as it is in the commit log, on the wire of pocketmq.v1, and in Apache RocketMQ's log.

All integers are big-endian and signed. BH and SH are 8 for an IPv4 host, 20 for IPv6; TL is 1 (V1) or 2 (V2).

    offset (IPv4)  size  field
    0              4     total size of the record, this field included
    4              4     magic: DAA320A7 = V1, DAA320AB = V2 (topic longer than 127 characters)
    8              4     body CRC: CRC-32 of the stored body & 0x7FFFFFFF, 0 for an empty body
    12             4     queue id
    16             4     flag, the application's own
    20             8     queue offset           B
    28             8     log offset             B
    36             4     sysFlag (below)
    40             8     born timestamp, ms
    48             BH    born host: address, port as i32
    56             8     store timestamp, ms    B
    64             SH    store host             B
    72             4     reconsume times
    76             8     prepared transaction offset
    84             4     body length, then the body
    88 + body      TL    topic length, then the topic
                   2     properties length, then the property string (properties.py)

B: the broker owns the field; a client leaves it zero. sysFlag bits: 0 compressed, 1 multi-tags, 2–3 transaction
(0 none, 4 prepared, 8 commit, 12 rollback), 4 born host is IPv6, 5 store host is IPv6, 6 needs unwrap, 7 inner
batch, 8–10 compression type (1 LZ4 frame, 2 ZSTD, 3 or 0 ZLIB).

Nearly every record is V1 between IPv4 hosts. `read_record` and `write_record` are fast for these (about 2 µs, without
properties), and leave all others to `decode_record` and `encode_record`.

Source: store-format.md §2. Everything here is pure; `record_run.py` reads many records at once.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

from .errors import CorruptRecord, InvalidRecord, MessageTooLarge, Unsupported
from .extras import pip_install
from .message_id import offset_message_id
from .properties import decode_properties, encode_properties
from .topics import MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX, TOPIC_LENGTH_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
MAGIC_BLANK: Final = 0xCBD43194 - (1 << 32)

CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
QUEUE_OFFSET_AT: Final = 20
LOG_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_HOST_AT: Final = 48
#: Positions for an IPv4 born host. An IPv6 host moves them by HOST_V6_EXTRA.
STORE_TIMESTAMP_AT: Final = 56
STORE_HOST_AT: Final = 64
RECONSUME_TIMES_AT: Final = 72  # likewise
HOST_V6_EXTRA: Final = 12
FIXED_SIZE_V4: Final = 91  # a V1 record between IPv4 hosts without body, topic and properties

SYS_COMPRESSED: Final = 0x1
SYS_MULTI_TAGS: Final = 0x2
SYS_TRANSACTION: Final = 0xC
SYS_PREPARED: Final = 0x4
SYS_COMMIT: Final = 0x8
SYS_ROLLBACK: Final = 0xC
SYS_BORN_V6: Final = 0x10
SYS_STORE_V6: Final = 0x20
SYS_NEEDS_UNWRAP: Final = 0x40
SYS_INNER_BATCH: Final = 0x80
SYS_COMPRESSION: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

CRC_MASK: Final = 0x7FFFFFFF
#: Default limit of a decompressed body: four times the limit of a sent message.
BODY_BYTES_MAX: Final = 4 * MESSAGE_SIZE_MAX
#: The window of a ZSTD frame; no level below "ultra" uses more than 8 MiB.
_ZSTD_WINDOW_MAX: Final = 32 * 1024 * 1024
#: Apache RocketMQ's gRPC clients set the flag of compression for gzip; the C++ client for zlib.
_ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32

_HEAD = struct.Struct(">iiiiiqqiq")
_MIDDLE = struct.Struct(">iqi")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">h")
_FRONT = struct.Struct(">iii")
#: Everything before the body of a record between IPv4 hosts.
_WHOLE_HEAD = struct.Struct(">iiiiiqqiq4siq4siiqi")
_V6: Final = SYS_BORN_V6 | SYS_STORE_V6
#: The size of a record between IPv4 hosts without its body, its topic and its properties.
_FRAME_SIZE: Final = _WHOLE_HEAD.size + 1 + _SHORT.size
_SHORT_MAX: Final = 0x7FFF
#: Log offset, sysFlag, and the reconsume times after IPv4 hosts.
_PLACE = struct.Struct(">qi32xi")


class Host(NamedTuple):
    """An address of 4 or 16 bytes, and a port."""

    address: bytes
    port: int

    @classmethod
    def parse(cls, address: str, port: int) -> Host:
        """Return the host for a numeric IPv4 or IPv6 ADDRESS."""
        return cls(ipaddress.ip_address(address).packed, port)

    @classmethod
    def of_peer(cls, peer: str) -> Host:
        """Return the host in "127.0.0.1:40312" or "[::1]:40312"; NO_HOST for another form."""
        address, _, port = peer.rpartition(":")
        try:
            return cls.parse(address.strip("[]"), int(port))
        except ValueError:
            return NO_HOST

    @property
    def is_v6(self) -> bool:
        return len(self.address) == 16

    def packed(self) -> bytes:
        """Return the bytes as in a record."""
        return self.address + _INT.pack(self.port)

    def __str__(self) -> str:
        address = ipaddress.ip_address(self.address)
        return f"[{address}]:{self.port}" if self.is_v6 else f"{address}:{self.port}"


NO_HOST: Final = Host(bytes(4), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A decoded record. BODY is as stored: `decompress_body` decompresses it as sys_flag says."""

    topic: str
    body: bytes
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    queue_offset: int = 0
    log_offset: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = NO_HOST
    store_timestamp_ms: int = 0
    store_host: Host = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    #: The decoder sets the three fields below; the encoder computes them.
    body_crc: int = 0
    total_size: int = 0
    magic: int = MAGIC_V1

    @property
    def message_id(self) -> str:
        """The offset message id."""
        return offset_message_id(self.store_host.address, self.store_host.port, self.log_offset)

    @property
    def crc_ok(self) -> bool:
        """Does the body match the stored CRC? An empty body is not checked, as in Apache RocketMQ."""
        return not self.body or body_crc(self.body) == self.body_crc


def body_crc(body: Buffer) -> int:
    """Return the CRC that a record stores for BODY."""
    return zlib.crc32(body) & CRC_MASK


def encode_record(record: Record, *, property_string: bytes | None = None) -> bytes:
    """Return the bytes of RECORD; sizes, CRC, magic and the IPv6 bits of sysFlag are computed.

    PROPERTY_STRING, if given, is stored unchanged instead of `record.properties`.
    Raises MessageTooLarge when the topic or the properties do not fit their length field.
    """
    properties = (
        encode_properties(record.properties) if property_string is None else property_string
    )
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise MessageTooLarge(
            f"properties: {len(properties)} bytes, the limit is {PROPERTIES_SIZE_MAX}",
            field="properties",
            limit=PROPERTIES_SIZE_MAX,
            value=len(properties),
        )
    magic, topic_part = topic_field(record.topic)
    tail = b"".join(
        (
            record.born_host.packed(),
            _LONG.pack(record.store_timestamp_ms),
            record.store_host.packed(),
            _INT.pack(record.reconsume_times),
            _LONG.pack(record.prepared_transaction_offset),
            _INT.pack(len(record.body)),
            record.body,
            topic_part,
            _SHORT.pack(len(properties)),
            properties,
        )
    )
    head = _HEAD.pack(
        _HEAD.size + len(tail),
        magic,
        body_crc(record.body) if record.body else 0,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.log_offset,
        with_host_bits(record.sys_flag, record.born_host, record.store_host),
        record.born_timestamp_ms,
    )
    return head + tail


def topic_field(topic: str) -> tuple[int, bytes]:
    """Return the magic of a record of TOPIC, and its topic field with the length.

    Raises MessageTooLarge if it does not fit its length field.
    """
    encoded = topic.encode()
    size = len(encoded)
    if size <= TOPIC_LENGTH_MAX:
        return MAGIC_V1, bytes((size,)) + encoded
    if size > _SHORT_MAX:
        raise MessageTooLarge(
            f"topic: {size} bytes, the limit is {_SHORT_MAX}", field="topic", value=size
        )
    return MAGIC_V2, _SHORT.pack(size) + encoded


def with_host_bits(sys_flag: int, born_host: Host, store_host: Host) -> int:
    """Return SYS_FLAG with the two IPv6 bits set as the hosts require."""
    bare = sys_flag & ~(SYS_BORN_V6 | SYS_STORE_V6)
    return bare | SYS_BORN_V6 * born_host.is_v6 | SYS_STORE_V6 * store_host.is_v6


def hosts_extra(sys_flag: int) -> int:
    """Return by how many bytes IPv6 hosts move the fields after both hosts."""
    return HOST_V6_EXTRA * (bool(sys_flag & SYS_BORN_V6) + bool(sys_flag & SYS_STORE_V6))


def head_store_time_ms(head: Buffer) -> int | None:
    """Return the store time in HEAD, the first bytes of a record; None if they are too few."""
    if len(head) < STORE_TIMESTAMP_AT + _LONG.size:
        return None
    (sys_flag,) = _INT.unpack_from(head, SYS_FLAG_AT)
    at = STORE_TIMESTAMP_AT + (HOST_V6_EXTRA if sys_flag & SYS_BORN_V6 else 0)
    return int(_LONG.unpack_from(head, at)[0]) if at + _LONG.size <= len(head) else None


def log_offset_and_times(record: Buffer) -> tuple[int, int]:
    """Return the log offset and the reconsume times of RECORD, a complete one; 0 times if it is too short for them."""
    log_offset, sys_flag, times = _PLACE.unpack_from(record, LOG_OFFSET_AT)
    if sys_flag & (SYS_BORN_V6 | SYS_STORE_V6):
        times_at = RECONSUME_TIMES_AT + hosts_extra(sys_flag)
        whole = len(record) >= times_at + _INT.size
        times = _INT.unpack_from(record, times_at)[0] if whole else 0
    return log_offset, times


def property_value(record: bytes, name: bytes) -> bytes:
    """Return the value of property NAME of RECORD, a complete one; empty if it has none, or is damaged."""
    try:
        at = _properties_at(record)
    except (struct.error, IndexError):
        return b""
    inner = record.rfind(b"\x02%b\x01" % name, at)
    if inner >= 0:
        at = inner + len(name) + 2
    elif record.startswith(b"%b\x01" % name, at):
        at += len(name) + 1
    else:
        return b""
    end = record.find(b"\x02", at)
    return record[at:] if end < 0 else record[at:end]


def _properties_at(record: bytes) -> int:
    """Return where the properties of RECORD start."""
    (sys_flag,) = _INT.unpack_from(record, SYS_FLAG_AT)
    at = RECONSUME_TIMES_AT + hosts_extra(sys_flag) + _MIDDLE.size
    at += int(_INT.unpack_from(record, at - _INT.size)[0])
    if _INT.unpack_from(record, _INT.size)[0] == MAGIC_V1:
        return at + 1 + record[at] + _SHORT.size
    return at + 2 + int(_SHORT.unpack_from(record, at)[0]) + _SHORT.size


def decode_record(buffer: Buffer, at: int = 0) -> Record:
    """Return the record at position AT of BUFFER.

    Raises InvalidRecord when the bytes are not one complete record with consistent lengths. The body's CRC is not
    compared: see `Record.crc_ok`.
    """
    try:
        return _decode(buffer, at)
    except (struct.error, IndexError) as error:
        raise InvalidRecord(
            f"record at {at}: only {len(buffer) - at} bytes, its fields need more",
            field="totalSize",
        ) from error


def decode_or_none(data: Buffer | None) -> Record | None:
    """Return the record at the start of DATA; None if there is no data, or none that `decode_record` accepts."""
    try:
        return None if data is None else decode_record(data)
    except InvalidRecord:
        return None


def _decode(buffer: Buffer, at: int) -> Record:
    total, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag, born = _HEAD.unpack_from(
        buffer, at
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise InvalidRecord(
            f"record at {at}: magic {magic & 0xFFFFFFFF:08X} is neither DAA320A7 nor DAA320AB",
            field="magicCode",
        )
    born_host, position = _host(buffer, at + BORN_HOST_AT, sys_flag & SYS_BORN_V6)
    (stored,) = _LONG.unpack_from(buffer, position)
    store_host, position = _host(buffer, position + 8, sys_flag & SYS_STORE_V6)
    reconsume, prepared, body_length = _MIDDLE.unpack_from(buffer, position)
    body, position = _part(buffer, position + _MIDDLE.size, body_length, at, "bodyLength")
    if magic == MAGIC_V1:
        topic_length, position = buffer[position], position + 1
    else:
        topic_length, position = _SHORT.unpack_from(buffer, position)[0], position + 2
    topic, position = _part(buffer, position, topic_length, at, "topicLength")
    (properties_length,) = _SHORT.unpack_from(buffer, position)
    properties, position = _part(buffer, position + 2, properties_length, at, "propertiesLength")
    if position - at != total:
        raise InvalidRecord(
            f"record at {at}: totalSize is {total}, but the fields add up to {position - at}",
            field="totalSize",
            value=total,
        )
    return Record(
        topic=topic.decode("utf-8", "replace"),
        body=body,
        queue_id=queue_id,
        flag=flag,
        sys_flag=sys_flag,
        queue_offset=queue_offset,
        log_offset=log_offset,
        born_timestamp_ms=born,
        born_host=born_host,
        store_timestamp_ms=stored,
        store_host=store_host,
        reconsume_times=reconsume,
        prepared_transaction_offset=prepared,
        properties=decode_properties(properties),
        body_crc=crc,
        total_size=total,
        magic=magic,
    )


def _host(buffer: Buffer, at: int, is_v6: int) -> tuple[Host, int]:
    size = 16 if is_v6 else 4
    (port,) = _INT.unpack_from(buffer, at + size)
    return Host(bytes(buffer[at : at + size]), port), at + size + 4


def _part(buffer: Buffer, at: int, size: int, record_at: int, name: str) -> tuple[bytes, int]:
    if size < 0 or at + size > len(buffer):
        raise InvalidRecord(
            f"record at {record_at}: {name} is {size}, but only {len(buffer) - at} bytes follow",
            field=name,
            value=size,
        )
    return bytes(buffer[at : at + size]), at + size


class PlainRecord(NamedTuple):
    """The fields of one record; the body is as stored."""

    topic: str
    body: bytes
    properties: dict[str, str]
    queue_id: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_ms: int
    born_host: Host
    store_ms: int
    store_host: Host
    reconsume_times: int


def read_record(data: Buffer) -> PlainRecord:
    """Return the fields of the record DATA; raise InvalidRecord when it is not one complete record."""
    size = len(data)
    if size > _FRAME_SIZE:
        head = _WHOLE_HEAD.unpack_from(data)
        total, magic, sys_flag, body_size = head[0], head[1], head[7], head[-1]
        usual = magic == MAGIC_V1 and not sys_flag & _V6 and total == size
        if usual and 0 <= body_size <= size - _FRAME_SIZE:
            body_end = _WHOLE_HEAD.size + body_size
            topic_end = body_end + 1 + data[body_end]
            at = topic_end + _SHORT.size
            if at <= size and at + _SHORT.unpack_from(data, topic_end)[0] == size:
                return PlainRecord(
                    str(data[body_end + 1 : topic_end], "utf-8", "replace"),
                    bytes(data[_WHOLE_HEAD.size : body_end]),
                    decode_properties(data[at:]),
                    head[3],
                    head[5],
                    head[6],
                    sys_flag,
                    head[8],
                    Host(head[9], head[10]),
                    head[11],
                    Host(head[12], head[13]),
                    head[14],
                )
    return _unusual_record(data)


def _unusual_record(data: Buffer) -> PlainRecord:
    record = decode_record(data)
    if record.total_size != len(data):
        raise InvalidRecord(
            f"{len(data)} bytes contain a record of {record.total_size}: give exactly one",
            field="totalSize",
            value=record.total_size,
        )
    return PlainRecord(
        record.topic,
        record.body,
        dict(record.properties),
        record.queue_id,
        record.queue_offset,
        record.log_offset,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.store_timestamp_ms,
        record.store_host,
        record.reconsume_times,
    )


def write_record(
    topic: str,
    queue_id: int,
    body: bytes,
    properties: bytes,
    *,
    sys_flag: int = 0,
    born_ms: int = 0,
    born_host: Host = NO_HOST,
) -> bytes:
    """Return a new record for QUEUE_ID of TOPIC with the property string PROPERTIES. The store sets the other fields.

    Raises MessageTooLarge for a topic or properties that do not fit their length field.
    """
    name = topic.encode()
    size = len(properties)
    if len(name) > TOPIC_LENGTH_MAX or born_host.is_v6 or size > PROPERTIES_SIZE_MAX:
        record = Record(
            topic=topic,
            body=body,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms,
            born_host=born_host,
        )
        return encode_record(record, property_string=properties)
    head = _WHOLE_HEAD.pack(
        _FRAME_SIZE + len(body) + len(name) + size,
        MAGIC_V1,
        body_crc(body) if body else 0,
        queue_id,
        0,
        0,
        0,
        sys_flag & ~_V6,
        born_ms,
        *born_host,
        0,
        *NO_HOST,
        0,
        0,
        len(body),
    )
    return b"".join((head, body, len(name).to_bytes(), name, _SHORT.pack(size), properties))


def encode_run(
    topic: str,
    queue: int,
    messages: Iterable[tuple[bytes, bytes]],
    *,
    born_timestamp_ms: int,
    born_host: Host,
    sys_flag: int | Sequence[int] = 0,
    flag: int = 0,
) -> tuple[bytes, list[int]]:
    """Return the records of MESSAGES, (body, property string) each, concatenated, and their sizes.

    All share FLAG, born time and host, and SYS_FLAG unless there is one for each. The broker's fields are zero, for
    an IPv4 store host. The caller checks lengths: a property string over 32,767 bytes raises `struct.error`.
    """
    magic, topic_part = topic_field(topic)
    middle_of = _Middles(queue, flag, born_timestamp_ms, born_host)
    flags = repeat(sys_flag) if isinstance(sys_flag, int) else sys_flag
    fixed = _FRONT.size + len(middle_of[0]) + 4 + len(topic_part) + 2
    parts: list[bytes] = []
    sizes: list[int] = []
    # The bytes before and after a body are mostly the same as in the previous record.
    before = behind = b""
    last_flag = last_body = last_properties = -1
    for (body, properties), own_flag in zip(messages, flags, strict=False):
        body_size, properties_size = len(body), len(properties)
        if body_size != last_body or own_flag != last_flag:
            last_body, last_flag = body_size, own_flag
            before = middle_of[own_flag] + _INT.pack(body_size)
        if properties_size != last_properties:
            last_properties = properties_size
            behind = topic_part + _SHORT.pack(properties_size)
        size = fixed + body_size + properties_size
        sizes.append(size)
        front = _FRONT.pack(size, magic, zlib.crc32(body) & CRC_MASK)
        parts += (front, before, body, behind, properties)
    return b"".join(parts), sizes


def record_head(magic: int, queue: int, born_timestamp_ms: int, born_host: Host) -> bytes:
    """Return a record up to its body, with MAGIC, and with zero as sizes and CRC."""
    middle = _Middles(queue, 0, born_timestamp_ms, born_host)[0]
    return _FRONT.pack(0, magic, 0) + middle + _INT.pack(0)


class _Middles(dict[int, bytes]):
    """The bytes between body CRC and body length, by sysFlag without the bits of the hosts."""

    def __init__(self, queue: int, flag: int, born_timestamp_ms: int, born_host: Host) -> None:
        super().__init__()
        self._fields = queue, flag, 0, 0
        self._born_timestamp_ms = born_timestamp_ms
        self._born_host = born_host

    def __missing__(self, sys_flag: int) -> bytes:
        host = self._born_host
        flags = with_host_bits(sys_flag, host, NO_HOST)
        head = struct.pack(">iiqqiq", *self._fields, flags, self._born_timestamp_ms)
        # After the host: store timestamp and host, reconsume times, prepared offset.
        middle = self[sys_flag] = head + host.packed() + bytes(8 + 8 + 4 + 8)
        return middle


def decompress_body(body: bytes, sys_flag: int, size_max: int = BODY_BYTES_MAX) -> bytes:
    """Return BODY as the sender had it, decompressed to SIZE_MAX bytes or less.

    Raises MessageTooLarge for a larger one, CorruptRecord when the bytes cannot be decompressed, Unsupported when LZ4
    or ZSTD is needed and the extra `compression` is not installed.
    """
    if not sys_flag & SYS_COMPRESSED:
        return body
    kind = sys_flag & SYS_COMPRESSION
    try:
        if kind == COMPRESSION_LZ4:
            whole = _lz4(body, size_max + 1)
        elif kind == COMPRESSION_ZSTD:
            whole = _zstd(body, size_max + 1)
        elif kind in (0, COMPRESSION_ZLIB):
            whole = _zlib(body, size_max + 1)
        else:
            raise CorruptRecord(
                f"sysFlag {sys_flag:#x}: compression type {kind >> 8} is unknown", field="sysFlag"
            )
    except ImportError as error:
        raise Unsupported(
            f"the body is compressed with LZ4 or ZSTD: {pip_install('compression')}"
        ) from error
    except (RuntimeError, zlib.error, ValueError) as error:
        raise CorruptRecord(f"the body cannot be decompressed: {error}", field="body") from error
    if len(whole) > size_max:
        raise MessageTooLarge(
            f"the body of {len(body)} bytes is larger than the limit of {size_max} when decompressed (body_max_bytes):"
            " raise the limit, or read it as stored",
            field="body_max_bytes",
            limit=size_max,
            value=len(body),
        )
    return whole


def _zlib(body: bytes, size_max: int) -> bytes:
    decompressor = zlib.decompressobj(_ZLIB_OR_GZIP)
    whole = decompressor.decompress(body, size_max)
    if len(whole) < size_max and not decompressor.eof:
        raise ValueError("it is truncated")
    return whole


def _lz4(body: bytes, size_max: int) -> bytes:
    import lz4.frame

    decompressor = lz4.frame.LZ4FrameDecompressor()
    whole = bytes(decompressor.decompress(body, max_length=size_max))
    if len(whole) < size_max and not decompressor.eof:
        raise ValueError("it is truncated")
    return whole


def _zstd(body: bytes, size_max: int) -> bytes:
    import zstandard

    try:
        # The frame header has the window size: memory that is allocated before the first byte is read.
        if zstandard.get_frame_parameters(body).window_size > _ZSTD_WINDOW_MAX:
            raise ValueError(f"its window is larger than {_ZSTD_WINDOW_MAX} bytes")
        said = zstandard.frame_content_size(body)
        whole = zstandard.ZstdDecompressor().stream_reader(body).read(size_max)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if said >= 0 and len(whole) < min(said, size_max):
        raise ValueError("it is truncated")
    return bytes(whole)
