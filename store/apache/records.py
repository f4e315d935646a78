"""RocketMQ's check of one record (CommitLog.checkMessageAndReturnSize) and its decoder, on the bytes of a log file.

The check decides where the log ends at recovery, so it is copied exactly: an exception in Java is a failure here, and
what Java accepts is accepted here (a body length below zero, a foreign physical offset).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...proto.errors import InvalidRecord
from ...proto.java_hash import java_hash
from ...proto.properties import decode_properties
from ...proto.record import (
    CRC_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_V6,
    SYS_STORE_V6,
    Record,
    decode_record,
)
from ...proto.topics import SCHEDULE_TOPIC
from .settings import ApacheSettings

_HEAD = struct.Struct(">iiiiiqqiq")
_LONG = struct.Struct(">q")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_JAVA_INT = re.compile(r"[+-]?[0-9]+")
_PROPERTY_CRC_SIZE: Final = 20
_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result: success with a size is a record, success with size 0 the blank at a file's end."""

    success: bool
    size: int = -1
    topic: str = ""
    queue_id: int = 0
    log_offset: int = 0
    tags_code: int = 0
    store_timestamp_ms: int = 0
    queue_offset: int = 0
    keys: str | None = ""
    unique_key: str | None = None
    sys_flag: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    batch_base: int = 0
    batch_size: int = 1

    @property
    def is_record(self) -> bool:
        """Return whether there is a valid record."""
        return self.success and self.size > 0

    @property
    def is_blank(self) -> bool:
        """Does the file end here?"""
        return self.success and self.size == 0


FAILED: Final = Checked(success=False)
BLANK: Final = Checked(success=True, size=0)


class _Refuted(Exception):
    """The bytes are not a record that RocketMQ accepts."""


class RecordCheck:
    """Checks records under SETTINGS."""

    def __init__(self, settings: ApacheSettings) -> None:
        self._settings = settings
        self._delays = settings.delay_table()

    def check(self, data: memoryview, at: int, *, crc: bool) -> Checked:
        """Check the bytes at AT of DATA, which ends at the end of the buffer in Java."""
        if len(data) - at <= 4:
            return FAILED
        try:
            (total,) = _INT.unpack_from(data, at)
            if len(data) - at - 4 < total - 4:
                return FAILED
            (magic,) = _INT.unpack_from(data, at + 4)
            if magic == MAGIC_BLANK:
                return BLANK
            if magic not in (MAGIC_V1, MAGIC_V2) or total < 0:
                return FAILED
            return self._check(data, at, total, magic, crc)
        except (_Refuted, struct.error):
            return FAILED

    def _check(self, data: memoryview, at: int, total: int, magic: int, crc: bool) -> Checked:
        _, _, body_crc, queue_id, _, queue_offset, log_offset, sys_flag, _ = _HEAD.unpack_from(
            data, at
        )
        place = at + 48 + (20 if sys_flag & SYS_BORN_V6 else 8)
        (stored,) = _LONG.unpack_from(data, place)
        place += 8 + (20 if sys_flag & SYS_STORE_V6 else 8) + 12
        body_size = max(0, _INT.unpack_from(data, place)[0])
        body = _part(data, place + 4, body_size, total)
        by_property = self._settings.property_crc_required
        if crc and body_size and not by_property and zlib.crc32(body) & CRC_MASK != body_crc:
            return FAILED
        place += 4 + body_size
        topic_size, place = _topic_size(data, place, magic)
        topic = bytes(_part(data, place, topic_size, total)).decode("utf-8", "replace")
        place += topic_size
        properties_size = max(0, _SHORT.unpack_from(data, place)[0])
        text = _part(data, place + 2, properties_size, total)
        place += 2 + properties_size
        properties = decode_properties(text)
        tags_code = self._tags_code(topic, properties, stored)
        if crc and by_property and not _property_crc_fits(data, place, total, properties):
            return FAILED
        if place - at != total:
            return Checked(success=False, size=total)
        base, count = _batch(properties, queue_offset)
        return Checked(
            success=True,
            size=total,
            topic=topic,
            queue_id=queue_id,
            log_offset=log_offset,
            tags_code=tags_code,
            store_timestamp_ms=stored,
            queue_offset=queue_offset,
            keys=properties.get("KEYS") if properties_size else "",
            unique_key=properties.get("UNIQ_KEY"),
            sys_flag=sys_flag,
            properties=properties,
            batch_base=base,
            batch_size=count,
        )

    def _tags_code(self, topic: str, properties: Mapping[str, str], stored: int) -> int:
        tags = properties.get("TAGS")
        code = java_hash(tags) if tags else 0
        delay = properties.get("DELAY")
        if topic == SCHEDULE_TOPIC and delay is not None:
            level = min(_java_int(delay, 32), max(self._delays))
            if level > 0:
                return stored + self._delays.get(level, 1000)
        return code


def _part(data: memoryview, at: int, size: int, total: int) -> memoryview:
    """Return SIZE bytes at AT. Java copies them into an array of TOTAL bytes, and fails if they exceed it."""
    if size < 0 or size > total or at + size > len(data):
        raise _Refuted
    return data[at : at + size]


def _topic_size(data: memoryview, at: int, magic: int) -> tuple[int, int]:
    if magic == MAGIC_V2:
        return _SHORT.unpack_from(data, at)[0], at + 2
    if at >= len(data):
        raise _Refuted
    return (data[at] + 128) % 256 - 128, at + 1


def _java_int(text: str, bits: int) -> int:
    if not _JAVA_INT.fullmatch(text) or not -(1 << bits - 1) <= int(text) < 1 << bits - 1:
        raise _Refuted
    return int(text)


def _batch(properties: Mapping[str, str], queue_offset: int) -> tuple[int, int]:
    """Return first queue offset and number of messages; a record without an inner batch is a batch of one."""
    if "INNER_NUM" not in properties or "INNER_BASE" not in properties:
        return queue_offset, 1
    return _java_int(properties["INNER_BASE"], 64), _java_int(properties["INNER_NUM"], 16)


def _property_crc_fits(
    data: memoryview, end: int, total: int, properties: Mapping[str, str]
) -> bool:
    text = properties.get("__CRC32#")
    if text is None:
        return False
    expected = 0
    for character in reversed(text):
        expected = (expected * 10 + ord(character) - 48 + (1 << 31)) % (1 << 32) - (1 << 31)
    start = end - total
    if expected < 0 or start < 0 or total < _PROPERTY_CRC_SIZE:
        return False
    return zlib.crc32(data[start : end - _PROPERTY_CRC_SIZE]) & CRC_MASK == expected


def decode(data: memoryview) -> Record | None:
    """Return the record that RocketMQ's MessageDecoder returns for DATA; None where it fails."""
    try:
        record = decode_record(data)
    except InvalidRecord:
        return None
    ports = (record.born_host.port, record.store_host.port)
    return record if all(0 <= port <= _PORT_MAX for port in ports) else None
