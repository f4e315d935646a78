"""The bytes of the journal of tables and of its snapshots.

All numbers are big-endian.

    file     head, frames, zeros
    head     4s "PMTJ"  u16 version  u16 kind (1 journal, 2 snapshot)  u64 number
    frame    4s "PMtf"  u32 size  u64 sequence  u32 CRC-32 of size, sequence and content    then its content: sections
    section  u8 table  u8 flags  u32 size of the entries  u64 needs  [flag 1: i64 counter, i64 state, i64 ms]  entries
    entry    u8 op  u16 key size  u32 value size  key  value

    1 put   2 drop   3 scope: later entries belong to it   4 clear: drop all of a scope   5 clear all: drop all

Sizes let a reader skip tables and operations it does not know. Table 0 belongs to the journal itself:

    10 opened    16s boot id, u64 log end, u32 CRC of the log's tail: a process began
    11 end       nothing follows
    12 clock     i64 instant, i64 Unix milliseconds
    15 name      u8 table, its name
    16 log mark  as 10: a process had the log up to there
    17 loss      u64 log offset: the log lost records from there on
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from ...proto.errors import InvalidArgument

VERSION: Final = 1
JOURNAL: Final = 1
SNAPSHOT: Final = 2
OWN_TABLE: Final = 0
PUT, DROP, SCOPE, CLEAR, CLEAR_ALL = 1, 2, 3, 4, 5
_OPENED, _END, _CLOCK, _NAME, _LOG_MARK, _LOSS = 10, 11, 12, 15, 16, 17
KEY_BYTES_MAX: Final = 0xFFFF
NO_BOOT_ID: Final = bytes(16)

_HEAD_MAGIC: Final = b"PMTJ"
_HEAD: Final = struct.Struct(">4sHHQ")
HEAD_BYTES: Final = _HEAD.size
_FRAME_MAGIC: Final = b"PMtf"
_FRAME: Final = struct.Struct(">4sIQI")
FRAME_HEAD_BYTES: Final = _FRAME.size
_GUARDED: Final = struct.Struct(">IQ")
_SECTION: Final = struct.Struct(">BBIQ")
_HAS_VERSION: Final = 1
_VERSION: Final = struct.Struct(">qqq")
_ENTRY: Final = struct.Struct(">BHI")
_MARK_FORM: Final = struct.Struct(">16sQI")
_CLOCK_FORM: Final = struct.Struct(">qq")
_LOSS_FORM: Final = struct.Struct(">Q")


class TableVersion(NamedTuple):
    """The data version of a table, as Apache RocketMQ counts it."""

    counter: int
    state: int
    timestamp_ms: int


class LogNote(NamedTuple):
    """The log reached to LOG_END during the boot BOOT_ID of the machine; TAIL is the CRC of its last bytes.

    IS_START: a process found this at its start. It may have lost bytes after LOG_END that the previous process had.
    """

    boot_id: bytes
    log_end: int
    tail: int
    is_start: bool


class LossNote(NamedTuple):
    """The log lost records from LOG_END on."""

    log_end: int


class ClockReading(NamedTuple):
    """At the instant NOW_MS of the process, the wall clock was at UNIX_MS."""

    now_ms: int
    unix_ms: int


class TableName(NamedTuple):
    """TABLE is called NAME."""

    table: int
    name: str


class EndNote(NamedTuple):
    """Nothing follows."""


Note = LogNote | LossNote | ClockReading | TableName | EndNote


class Section(NamedTuple):
    """ENTRIES of one table. They are valid only if the log reaches to NEEDS."""

    table: int
    needs: int
    version: TableVersion | None
    entries: bytes


class TableEntry(NamedTuple):
    """One operation."""

    op: int
    key: bytes
    value: bytes


class FrameGap(NamedTuple):
    """BYTES of a file, at AT, that are not a frame; IS_TORN: no frame follows them."""

    at: int
    bytes: int
    is_torn: bool


def head(kind: int, number: int) -> bytes:
    """Return the head of file NUMBER."""
    return _HEAD.pack(_HEAD_MAGIC, VERSION, kind, number)


def frame(sequence: int, content: bytes) -> bytes:
    """Return the frame of CONTENT, a sequence of sections."""
    guarded = _GUARDED.pack(len(content), sequence)
    crc = zlib.crc32(content, zlib.crc32(guarded))
    return _FRAME.pack(_FRAME_MAGIC, len(content), sequence, crc) + content


def section(
    table: int, entries: bytes, needs: int = 0, version: TableVersion | None = None
) -> bytes:
    """Return the section with ENTRIES of TABLE."""
    flags = 0 if version is None else _HAS_VERSION
    told = b"" if version is None else _VERSION.pack(*version)
    return _SECTION.pack(table, flags, len(entries), needs) + told + entries


def entry(op: int, key: bytes = b"", value: bytes = b"") -> bytes:
    """Return the entry of operation OP. Raises InvalidArgument for a key that is too long."""
    if len(key) > KEY_BYTES_MAX:
        raise InvalidArgument(
            f"key of {len(key):,} bytes, the limit is {KEY_BYTES_MAX:,}: use a shorter name",
            field="key",
            limit=KEY_BYTES_MAX,
            value=len(key),
        )
    return _ENTRY.pack(op, len(key), len(value)) + key + value


def notes(said: Iterable[Note]) -> bytes:
    """Return the journal's own section with the entries SAID."""
    return section(OWN_TABLE, b"".join(map(_note, said)))


def _note(said: Note) -> bytes:
    if isinstance(said, LogNote):
        return entry(_OPENED if said.is_start else _LOG_MARK, value=_MARK_FORM.pack(*said[:3]))
    if isinstance(said, LossNote):
        return entry(_LOSS, value=_LOSS_FORM.pack(said.log_end))
    if isinstance(said, ClockReading):
        return entry(_CLOCK, value=_CLOCK_FORM.pack(*said))
    if isinstance(said, TableName):
        return entry(_NAME, value=bytes([said.table]) + said.name.encode())
    return entry(_END)


def number_of(data: bytes, kind: int) -> int | None:
    """Return the number of the file DATA of KIND; None if this version cannot read it."""
    if len(data) < HEAD_BYTES:
        return None
    magic, version, found, number = _HEAD.unpack_from(data)
    return number if (magic, version, found) == (_HEAD_MAGIC, VERSION, kind) else None


def frames(data: bytes, gaps: list[FrameGap]) -> Iterator[tuple[int, bytes]]:
    """Yield (sequence, content) of each valid frame of the file DATA; add the bytes between them to GAPS."""
    at = HEAD_BYTES
    while at < len(data):
        found = _sound(data, at)
        if found is not None:
            yield found
            at += FRAME_HEAD_BYTES + len(found[1])
            continue
        if data.endswith(bytes(len(data) - at)):
            return
        following = _next_sound(data, at + 1)
        if following is None:
            gaps.append(FrameGap(at, len(data[at:].rstrip(b"\0")), True))
            return
        gaps.append(FrameGap(at, following - at, False))
        at = following


def _sound(data: bytes, at: int) -> tuple[int, bytes] | None:
    """Return sequence and content of the frame at AT; None if there is no valid one."""
    if len(data) - at < FRAME_HEAD_BYTES or not data.startswith(_FRAME_MAGIC, at):
        return None
    _, size, sequence, crc = _FRAME.unpack_from(data, at)
    start = at + FRAME_HEAD_BYTES
    if size > len(data) - start:
        return None
    content = data[start : start + size]
    if zlib.crc32(content, zlib.crc32(_GUARDED.pack(size, sequence))) != crc:
        return None
    return sequence, content


def _next_sound(data: bytes, at: int) -> int | None:
    while (at := data.find(_FRAME_MAGIC, at)) >= 0:
        if _sound(data, at) is not None:
            return at
        at += 1
    return None


def sections(content: bytes) -> Iterator[Section]:
    """Yield the sections of a frame. Raises ValueError for bytes that are not of version 1."""
    at = 0
    while at < len(content):
        table, flags, size, needs = _unpacked(_SECTION, content, at)
        at += _SECTION.size
        version = None
        if flags & _HAS_VERSION:
            version = TableVersion(*_unpacked(_VERSION, content, at))
            at += _VERSION.size
        if size > len(content) - at:
            raise ValueError(f"a section of {size:,} bytes ends after its frame")
        yield Section(table, needs, version, content[at : at + size])
        at += size


def entries(data: bytes) -> Iterator[TableEntry]:
    """Yield the entries of a section. Raises ValueError for bytes that are not of version 1."""
    at = 0
    while at < len(data):
        op, key_size, value_size = _unpacked(_ENTRY, data, at)
        middle = at + _ENTRY.size + key_size
        end = middle + value_size
        if end > len(data):
            raise ValueError(f"an entry of {end - at:,} bytes ends after its section")
        yield TableEntry(op, data[middle - key_size : middle], data[middle:end])
        at = end


def notes_in(data: bytes) -> Iterator[Note]:
    """Yield the notes in the entries DATA of the journal's own table; unknown ones are skipped."""
    for op, _, value in entries(data):
        if op in (_OPENED, _LOG_MARK):
            boot_id, log_end, tail = _unpacked(_MARK_FORM, value, 0)
            yield LogNote(boot_id, log_end, tail, op == _OPENED)
        elif op == _LOSS:
            yield LossNote(*_unpacked(_LOSS_FORM, value, 0))
        elif op == _CLOCK:
            yield ClockReading(*_unpacked(_CLOCK_FORM, value, 0))
        elif op == _NAME and value:
            yield TableName(value[0], value[1:].decode("utf-8", "replace"))
        elif op == _END:
            yield EndNote()


def _unpacked(form: struct.Struct, data: bytes, at: int) -> tuple[Any, ...]:
    if form.size > len(data) - at:
        raise ValueError(f"{form.size} bytes were expected at {at:,}, there are {len(data) - at}")
    return form.unpack_from(data, at)
