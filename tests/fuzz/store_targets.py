"""Decoders of what is in files of a store, and in records: they may be damaged anywhere."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from pocketmq.broker.commit_texts import text_from_json
from pocketmq.proto.errors import (
    CorruptRecord,
    InvalidRecord,
    MessageTooLarge,
    Unsupported,
)
from pocketmq.proto.properties import decode_properties, encode_again
from pocketmq.proto.property_ranges import pairs_of
from pocketmq.proto.record import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    SYS_COMPRESSED,
    Host,
    Record,
    decode_record,
    decompress_body,
    encode_record,
    log_offset_and_times,
    property_value,
    read_record,
)
from pocketmq.proto.record_run import as_bytes, is_sound, parse_run, walk
from pocketmq.proto.run import check_run, stored_runs
from pocketmq.store.checkpoints import Checkpoint
from pocketmq.store.format import java_json, replica_files, state_tables, table_frames, timer_log
from pocketmq.store.format.index import IndexHeader
from pocketmq.store.format.log import find_run
from pocketmq.store.tables import Durability, JournalTable, JsonCodec, raw_table

from .target import REFUSED, Target, result_of, text_of

_TOPIC: Final = "orders"
_HOST_V4: Final = Host(bytes((127, 0, 0, 1)), 10_911)
_HOST_V6: Final = Host(bytes(range(16)), 10_911)
_REFUSED: Final = (InvalidRecord, MessageTooLarge)


def _records() -> list[bytes]:
    record = Record(
        topic=_TOPIC,
        body=b"body",
        born_timestamp_ms=1_700_000_000_000,
        born_host=_HOST_V4,
        store_host=_HOST_V4,
        properties={"KEYS": "k1 k2", "TAGS": "red", "UNIQ_KEY": "0" * 32, "own": "ü"},
    )
    return [
        encode_record(record),
        encode_record(replace(record, body=b"", properties={})),
        encode_record(replace(record, born_host=_HOST_V6, store_host=_HOST_V6)),
        encode_record(replace(record, topic="t" * 200)),
        encode_record(replace(record, queue_offset=3, log_offset=64, reconsume_times=2)),
    ]


def _check_record(data: bytes) -> None:
    decoded = result_of(InvalidRecord, decode_record, data)
    read = result_of(InvalidRecord, read_record, data)
    if decoded is REFUSED:
        assert read is REFUSED
        return
    assert isinstance(decoded.crc_ok, bool)
    assert isinstance(decoded.message_id, str)
    if read is not REFUSED:
        assert read.topic == decoded.topic
        assert read.body == decoded.body
        assert read.properties == decoded.properties
        assert (read.queue_offset, read.log_offset) == (decoded.queue_offset, decoded.log_offset)
    whole = data[: decoded.total_size]
    if len(whole) == decoded.total_size:
        log_offset_and_times(whole)
        _check_values(decoded)
        is_sound(whole)
        assert len(parse_run(whole, np.zeros(1, np.int64)).starts) == 1


def _check_values(decoded: Record) -> None:
    """The value that is searched in the bytes of a record is that of the decoded one."""
    string = encode_again(decoded.properties)
    record = result_of(MessageTooLarge, partial(encode_record, property_string=string), decoded)
    if record is not REFUSED:
        for name, value in decoded.properties.items():
            assert property_value(record, name.encode()) == value.encode()


def _check_batch(data: bytes) -> None:
    starts, end = walk(data)
    marks = [*starts.tolist(), end]
    sizes = [stop - start for start, stop in pairwise(marks)] or [len(data)]
    for wanted in (sizes, [len(data)], [*sizes, 1]):
        run = result_of(_REFUSED, check_run, data, wanted, _TOPIC, 0)
        if run is REFUSED:
            continue
        assert len(run) == len(wanted)
        at = 0
        for size in wanted:
            record = read_record(data[at : at + size])
            assert record.topic == _TOPIC
            at += size


def _batches() -> list[bytes]:
    one, empty, *_ = _records()
    return [one * 3, one + empty + one, one * 40]


def _check_log(data: bytes) -> None:
    columns = find_run(as_bytes(data), 0)
    ends = columns.starts + columns.sizes
    assert (columns.starts[1:] >= ends[:-1]).all()
    assert not len(ends) or ends[-1] <= len(data)
    runs = stored_runs(data, 0)
    if runs is not None:
        assert sum(map(len, runs)) == len(columns.starts)


def _logs() -> list[bytes]:
    log = b""
    for body in (b"a", b"bb", b""):
        record = Record(topic=_TOPIC, body=body, log_offset=len(log), properties={"KEYS": "k"})
        log += encode_record(record)
    return [log, log + b"\0" * 40, b"\0" * 8 + log]


def _check_properties(data: bytes) -> None:
    found = decode_properties(data)
    assert decode_properties(encode_again(found)) == found
    for name, at, size in pairs_of(data):
        assert data[at - len(name) - 1 : at - 1] == name
        assert size > 0


def _check_body(data: bytes) -> None:
    refusals = (CorruptRecord, MessageTooLarge, Unsupported)
    for kind in (COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0x700):
        body = result_of(refusals, decompress_body, data, SYS_COMPRESSED | kind, 10_000)
        assert body is REFUSED or len(body) <= 10_000


def _bodies() -> list[bytes]:
    found = [zlib.compress(b"x" * 500), zlib.compress(bytes(100_000))]
    try:
        import lz4.frame
        import zstandard
    except ImportError:
        return found
    return [*found, lz4.frame.compress(b"x" * 500), zstandard.ZstdCompressor().compress(b"x" * 500)]


def _check_java_json(data: bytes) -> None:
    text = text_of(data)
    value = result_of(ValueError, java_json.parse, text)
    if value is REFUSED:
        return
    for pretty in (True, False):
        assert _same(java_json.parse(java_json.render(value, pretty=pretty)), value)


def _same(left: Any, right: Any) -> bool:
    """Are they equal, also in the types of numbers and the order of keys?"""
    return repr(left) == repr(right)


_JSON: Final = (
    b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"topicConfigTable":{"T":{"topicName":"T",'
    b'"readQueueNums":4,"writeQueueNums":4,"perm":6,"order":false,"topicFilterType":"SINGLE_TAG","topicSysFlag":0,'
    b'"attributes":{"+message.type":"LITE"}},"U":{"$ref":"$.topicConfigTable.T"}}}',
    b'{"dataVersion":{"counter":1},"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":16,'
    b'"groupRetryPolicy":{"type":"CUSTOMIZED"}}},"forbiddenTable":{"g":{"T":3}}}',
    b'{"offsetTable":{"T@g":{0:5,1:6}},"pullOffsetTable":{"T@g":{"0":5}},"dataVersion":{"counter":2}}',
    b'{"offsetTable":{1:9,18:2},"dataVersion":{}}',
    b'{"dataVersion":{"counter":39},"timingCount":{"T":{"count":9,"timeStamp":7}}}',
    b'[1,-2.5e3,true,null,"\\u00fc\\ud83d\\ude00",[[]],{}]',
)
_TABLES: Final[tuple[tuple[Callable[[str], Any], Callable[[Any], str]], ...]] = (
    (state_tables.parse_topics, state_tables.render_topics),
    (state_tables.parse_groups, state_tables.render_groups),
    (state_tables.parse_consumer_offsets, state_tables.render_consumer_offsets),
    (state_tables.parse_delay_offsets, state_tables.render_delay_offsets),
    (
        state_tables.parse_timer_metrics,
        lambda found: state_tables.render_timer_metrics(*found),
    ),
)


def _check_tables(data: bytes) -> None:
    for parse, render in _TABLES:
        _check_table(parse, render, text_of(data))


def _check_table(parse: Callable[[str], Any], render: Callable[[Any], str], text: str) -> None:
    table = result_of(ValueError, parse, text)
    if table is not REFUSED:
        once = render(table)
        assert render(parse(once)) == once


def _check_replica_files(data: bytes) -> None:
    text = text_of(data)
    for parse, render in (
        (replica_files.parse_epochs, replica_files.render_epochs),
        (replica_files.parse_identity, replica_files.render_identity),
        (replica_files.parse_note, replica_files.render_note),
    ):
        _there_and_back(parse, render, text)


def _there_and_back(parse: Callable[[str], Any], render: Callable[[Any], str], text: str) -> None:
    found = result_of(ValueError, parse, text)
    if found is REFUSED:
        return
    again = result_of(ValueError, render, found)
    assert again is REFUSED or parse(again) == found


def _replica_texts() -> list[bytes]:
    note = replica_files.ReplicaNote(epoch_seen=3, synced=9, confirm=8, confirm_epoch=2)
    texts = [
        replica_files.render_epochs(((1, 0), (3, 512))),
        replica_files.render_identity(replica_files.BrokerIdentity("c", "broker-a", 2)),
        replica_files.render_note(note),
    ]
    return [text.encode() for text in texts]


def _check_journal(data: bytes) -> None:
    table_frames.number_of(data, table_frames.JOURNAL)
    gaps: list[table_frames.FrameGap] = []
    covered = table_frames.HEAD_BYTES
    for _, content in table_frames.frames(data, gaps):
        covered += table_frames.FRAME_HEAD_BYTES + len(content)
        result_of(ValueError, _read_sections, content)
    covered += sum(gap.bytes for gap in gaps)
    assert not data[covered:].strip(b"\0") or covered >= len(data)
    result_of(ValueError, _read_sections, data)  # As if its CRC was right.


def _read_sections(content: bytes) -> None:
    values: JournalTable[str, str, Any] = JournalTable(
        1, "values", JsonCodec(), Durability.WITH_LOG
    )
    for section in table_frames.sections(content):
        for table in (raw_table(1, "raw"), values):
            result_of(ValueError, table.decode, section.entries)
        notes = result_of(ValueError, _notes, section.entries)
        assert notes is REFUSED or table_frames.notes(notes)


def _notes(entries: bytes) -> list[table_frames.Note]:
    return list(table_frames.notes_in(entries))


def _journals() -> list[bytes]:
    put = table_frames.entry(table_frames.SCOPE, value=b"g") + table_frames.entry(
        table_frames.PUT, b"key", b'{"a":1}'
    )
    notes = table_frames.notes(
        [
            table_frames.LogNote(bytes(16), 9, 7, True),
            table_frames.ClockReading(5, 6),
            table_frames.TableName(3, "offsets"),
            table_frames.LossNote(4),
            table_frames.EndNote(),
        ]
    )
    content = table_frames.section(3, put, 512, table_frames.TableVersion(1, 2, 3)) + notes
    head = table_frames.head(table_frames.JOURNAL, 7)
    whole = head + table_frames.frame(1, content) + table_frames.frame(2, notes)
    return [whole, whole + bytes(50), whole[:-3], content]


def _check_fixed(data: bytes) -> None:
    """Files whose fields have fixed places take any bytes."""
    assert IndexHeader.parse(IndexHeader.parse(data).pack()) == IndexHeader.parse(data)
    Checkpoint.parse(data)
    for record in timer_log.records(memoryview(data), 0):
        assert record.position < len(data)
    timer_log.is_blank(data, 0, len(data))
    document = result_of(ValueError, java_json.parse, text_of(data))
    if document is not REFUSED:
        result_of((ValueError, TypeError), text_from_json, document)


def _fixed() -> Iterable[bytes]:
    return [IndexHeader(1, 2, 3, 4, 5, 6).pack(), bytes(56), timer_log.blank(52) + bytes(40)]


TARGETS: Final = (
    Target("record", _check_record, _records),
    Target("batch", _check_batch, _batches),
    Target("log", _check_log, _logs),
    Target("properties", _check_properties, lambda: [b"KEYS\x01k\x02TAGS\x01t\x02", b"a\x01b"]),
    Target("body", _check_body, _bodies),
    Target("java-json", _check_java_json, lambda: _JSON),
    Target("state-tables", _check_tables, lambda: _JSON),
    Target("replica-files", _check_replica_files, _replica_texts),
    Target("journal", _check_journal, _journals),
    Target("fixed-files", _check_fixed, _fixed),
)
