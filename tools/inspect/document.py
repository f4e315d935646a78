"""The description of a store as one JSON document, field for field that of `java-store dump`.

`describe_apache` describes what Apache RocketMQ 5.5.0's broker would see after its load and recovery, `describe_ours`
what PocketMQ would serve. Nothing is written: all changes stay in an overlay. NOW_MS is the time that the broker would
have.

Keys: `accepted` and `refusal` are the result. `filesBefore`, `filesAfter`: every file with its length.
`checkpointBefore`, `checkpoint`. `minPhyOffset`, `maxPhyOffset`, `records`, `blanks`, `broken`: the commit log in
order. `queues`: limits, entries, entries whose message cannot be read, ranges without entries. `lookups`: the results
for each key and tag of the records. `indexFiles`, `config`, `timer`.

For PocketMQ's recovery `oracle` is "PocketMQ", and `recovery` is the report. A record that recovery skipped is in
`records` with `crcOk` false, or in `broken` if it cannot be decoded.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping
from typing import Any, Final

from ...proto.errors import PocketMQError, StoreError
from ...proto.record import (
    SYS_ROLLBACK,
    SYS_TRANSACTION,
    Host,
    Record,
    decode_record,
    decompress_body,
)
from ...store.apache.config import JavaConfig
from ...store.apache.files import StartRefused
from ...store.apache.index import JavaIndexFile
from ...store.apache.queue import JavaQueue
from ...store.apache.records import decode
from ...store.apache.settings import ApacheSettings
from ...store.apache.store import JavaReading
from ...store.apache.timers import JavaTimers
from ...store.checkpoints import Checkpoint
from ...store.disk import Disk
from ...store.format.index import TAG_TYPE, index_key
from ...store.format.timer_log import TimerBlank, TimerRecord
from ...store.opened_store import OpenedStore
from ...store.overlay_disk import OverlayDisk
from ...store.view import StoreView

Document = dict[str, Any]

ORACLE: Final = "Apache RocketMQ 5.5.0"
_LOOKUP_RESULTS: Final = 64
OURS: Final = "PocketMQ"


def describe_apache(
    root: str,
    given: Mapping[str, str],
    settings: ApacheSettings,
    now_ms: int,
    *,
    lookups: bool = True,
) -> Document:
    """Return the description of the store ROOT; GIVEN are the settings by RocketMQ's names, repeated in the document.

    Without LOOKUPS, half of the work in a large store, that key is an empty list.
    """
    disk = OverlayDisk()
    document = head(disk, root, given, ORACLE)
    try:
        before = checkpoint_before(disk, root)
        java = OpenedStore.as_java(disk, root, settings, now_ms)
    except StartRefused as refusal:
        return document | {"accepted": False, "refusal": refusal.text}
    document |= {"filesAfter": files(disk, root), "checkpointBefore": before}
    document |= Description(java.reading).parts(lookups=lookups)
    return document | side_tables(java.config, java.timers)


def head(disk: Disk, root: str, given: Mapping[str, str], oracle: str) -> Document:
    """Return the first keys of the document, before those of the result."""
    return {
        "oracle": oracle,
        "settings": dict(sorted(given.items())),
        "accepted": True,
        "refusal": None,
        "abortPresent": disk.exists(posixpath.join(root, "abort")),
        "filesBefore": files(disk, root),
    }


def files(disk: Disk, root: str) -> dict[str, int]:
    """Return every file under ROOT with its length, by its path from there."""
    found: dict[str, int] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        for entry in disk.list(posixpath.join(root, folder) if folder else root):
            path = posixpath.join(folder, entry.name)
            if entry.is_folder:
                folders.append(path)
            else:
                found[path] = entry.size
    return dict(sorted(found.items()))


def side_tables(config: JavaConfig, timers: JavaTimers | None) -> Document:
    """Return `config`, and `timer` if there is a timer store."""
    tables: Document = {"config": config.to_json()}
    if timers is not None:
        tables["timer"] = _timer(timers, config.timers_pending)
    return tables


def checkpoint_before(disk: Disk, root: str) -> Document | None:
    """Return the checkpoint as it is on disk; None without one."""
    store = StoreView(disk, root)
    return checkpoint(store.checkpoint()) if store.has("checkpoint") else None


def checkpoint(values: Checkpoint) -> Document:
    """Return the six fields by RocketMQ's names."""
    return {
        "physicMsgTimestamp": values.log_time_ms,
        "logicsMsgTimestamp": values.queues_time_ms,
        "indexMsgTimestamp": values.index_time_ms,
        "masterFlushedOffset": values.master_flushed_offset,
        "confirmPhyOffset": values.confirm_offset,
        "logicsPhysicalOffset": values.queues_log_offset,
    }


class Description:
    """Walks one opened store."""

    def __init__(self, store: JavaReading) -> None:
        self._store = store
        self._keys: dict[tuple[str, str, str], None] = {}

    def parts(self, *, lookups: bool) -> Document:
        """Return everything but config and timers, in the order of the document."""
        store = self._store
        parts: Document = {
            "checkpoint": checkpoint(store.checkpoint),
            "minPhyOffset": store.log_begin,
            "maxPhyOffset": store.log_end,
        }
        parts |= self._scan()
        parts["queues"] = [self._queue(store.queues[key]) for key in sorted(store.queues)]
        parts["lookups"] = [self._lookup(*key) for key in self._keys] if lookups else []
        parts["indexFiles"] = [_index_file(file) for file in store.index.files]
        return parts

    def _scan(self) -> Document:
        """Return the records of the log, in order, and the places where none can be read."""
        store = self._store
        records: list[Document] = []
        blanks: list[Document] = []
        broken: list[Document] = []
        at = store.log_begin
        while at < store.log_end:
            data = store.log.data(at, first_if_none=at == store.log_begin)
            if data is None:
                broken.append({"offset": at, "why": "no data"})
                at = store.log.roll_next(at)
                continue
            checked = store.records.check(data, 0, crc=True)
            crc_ok = checked.success
            if not crc_ok:
                checked = store.records.check(data, 0, crc=False)
            if checked.is_record:
                described = self.record(data[: checked.size], at, crc_ok)
                (broken if "why" in described else records).append(described)
                at += checked.size
                continue
            if checked.is_blank:
                size = int.from_bytes(data[:4], "big", signed=True)
                blanks.append({"offset": at, "size": size})
            else:
                why = "checkMessageAndReturnSize fails with and without the CRC"
                broken.append({"offset": at, "why": why})
            at = store.log.roll_next(at)
        return {"records": records, "blanks": blanks, "broken": broken}

    def record(self, data: memoryview, at: int, crc_ok: bool) -> Document:
        """Return the description of the record DATA at AT; its keys will be looked up."""
        record = decode_record(data)  # the check has shown that it can be decoded
        self.collect_keys(record)
        return record_document(record, at, crc_ok)

    def collect_keys(self, record: Record) -> None:
        """Remember the keys of RECORD for the look-ups."""
        unique = record.properties.get("UNIQ_KEY")
        if unique is not None:
            self._keys[record.topic, unique, ""] = None
        for word in record.properties.get("KEYS", "").split(" "):
            if word:
                self._keys[record.topic, word, ""] = None
        tags = record.properties.get("TAGS")
        if tags:
            self._keys[record.topic, tags, TAG_TYPE] = None

    def _queue(self, queue: JavaQueue) -> Document:
        entries: list[list[int]] = []
        unreachable: list[int] = []
        holes: list[list[int]] = []
        at = queue.min_offset
        while at < queue.max_offset:
            before = at
            for unit in queue.units(at):
                entries.append(list(unit))
                if not self._is_reachable(queue, unit):
                    unreachable.append(unit[0])
                at = unit[0] + max(1, unit[4] if len(unit) > 4 else 1)
            if at == before:
                behind = queue.behind_hole(at)
                holes.append([at, min(behind, queue.max_offset)])
                at = behind
        return {
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "type": queue.kind,
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
            "nextOffset": queue.max_offset,
            "maxPhysicOffset": queue.max_log_offset,
            "unreachable": unreachable,
            "holes": holes,
            "entries": entries,
        }

    def _is_reachable(self, queue: JavaQueue, unit: tuple[int, ...]) -> bool:
        try:
            message = self._store.message(unit[1], unit[2])
        except ValueError:
            return False
        if message is None or message.topic != queue.topic:
            return False
        return (message.queue_id, message.queue_offset) == (queue.queue_id, unit[0])

    def _lookup(self, topic: str, key: str, kind: str) -> Document:
        found = self._store.lookup(
            index_key(topic, key, kind), _LOOKUP_RESULTS, typed=kind == TAG_TYPE
        )
        asked = {"topic": topic, "key": key} | ({"indexType": kind} if kind else {})
        return asked | {"offsets": found}


def record_document(record: Record, at: int, crc_ok: bool) -> Document:
    """Return the description of RECORD at AT."""
    try:
        body: bytes | None = decompress_body(record.body, record.sys_flag)
    except PocketMQError:
        body = None
    document: Document = {
        "physicalOffset": at,
        "magic": f"{record.magic & 0xFFFFFFFF:08x}",
        "storeSize": record.total_size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp_ms,
        "bornHost": host_text(record.born_host),
        "storeTimestamp": record.store_timestamp_ms,
        "storeHost": host_text(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "msgId": record.message_id,
        "bodyCRC": record.body_crc,
        "crcOk": crc_ok,
        "rawBodyLength": len(record.body),
        "bodyLength": None if body is None else len(body),
        "bodySha256": None if body is None else hashlib.sha256(body).hexdigest(),
        "properties": dict(sorted(record.properties.items())),
    }
    if record.log_offset != at:
        document["ownPhysicalOffset"] = record.log_offset
    return document


def host_text(host: Host) -> str:
    """Return HOST as Java prints it: an IPv6 address has all its eight groups."""
    address = host.address
    if len(address) == 4:
        text = ".".join(str(byte) for byte in address)
    else:
        groups = (address[at] << 8 | address[at + 1] for at in range(0, 16, 2))
        text = ":".join(f"{group:x}" for group in groups)
    return f"{text}:{host.port}"


def _index_file(file: JavaIndexFile) -> Document:
    header = file.header
    return {
        "name": posixpath.basename(file.path),
        "beginTimestamp": header.begin_ms,
        "endTimestamp": header.end_ms,
        "beginPhyOffset": header.begin_log_offset,
        "endPhyOffset": header.end_log_offset,
        "hashSlotCount": header.slots_used,
        "indexCount": header.next_entry,
    }


def _timer(timers: JavaTimers, pending: Mapping[str, int]) -> Document:
    precision = timers.precision_ms
    slots = [
        {
            "index": number,
            "timeMs": (slot.time * precision + (1 << 63)) % (1 << 64)
            - (1 << 63),  # 64 bits, as a long of Java
            "firstPos": slot.first,
            "lastPos": slot.last,
            "num": slot.count,
            "magic": slot.magic,
        }
        for number, slot in sorted(timers.wheel.slots.items())
        if slot.time or slot.count
    ]
    return {
        "checkpoint": {
            "lastReadTimeMs": timers.checkpoint.last_read_ms,
            "lastTimerLogFlushPos": timers.checkpoint.log_flushed,
            "lastTimerQueueOffset": timers.checkpoint.queue_offset,
            "masterTimerQueueOffset": timers.checkpoint.master_queue_offset,
        },
        "commitQueueOffset": timers.queue_offset,
        "slots": slots,
        "log": [_timer_record(record) for record in timers.all_records()],
        "pendingByTopic": dict(sorted(pending.items())),
    }


def _timer_record(record: TimerRecord | TimerBlank) -> Document:
    if isinstance(record, TimerBlank):
        return {"pos": record.position, "blank": record.size}
    return {
        "pos": record.position,
        "size": record.size,
        "prevPos": record.previous,
        "magic": record.magic,
        "writeTimeMs": record.write_time_ms,
        "delayMs": record.delay_ms,
        "physicalOffset": record.log_offset,
        "messageSize": record.message_size,
        "topicHash": record.topic_hash,
        "reserved": record.reserved,
    }


def describe_ours(
    root: str,
    given: Mapping[str, str],
    settings: ApacheSettings,
    now_ms: int,
    *,
    lookups: bool = True,
) -> Document:
    """Return the description of the store ROOT after PocketMQ's recovery; GIVEN are settings by RocketMQ's names.

    Without LOOKUPS, half of the work in a large store, that key is an empty list.
    """
    disk = OverlayDisk()
    document = head(disk, root, given, OURS)
    try:
        before = checkpoint_before(disk, root)
        ours = OpenedStore.as_ours(disk, root, settings, now_ms)
    except StoreError as error:
        return document | {"accepted": False, "refusal": error.message}
    document |= {"filesAfter": files(disk, root), "checkpointBefore": before}
    document |= _OurDescription(ours.reading, disk).parts(lookups=lookups)
    document |= side_tables(ours.config, ours.timers)
    assert ours.report is not None, "our recovery reports"
    return document | {"recovery": ours.report.to_json()}


class _OurDescription(Description):
    """Shows what recovery skipped as it was before."""

    def __init__(self, store: JavaReading, disk: Disk) -> None:
        super().__init__(store)
        self._disk = disk
        self._broken = posixpath.join(store.root, "pocketmq/broken")

    def record(self, data: memoryview, at: int, crc_ok: bool) -> Document:
        now = decode(data)
        path = posixpath.join(self._broken, f"log-{at:020d}")
        if (
            now is None
            or now.sys_flag & SYS_TRANSACTION != SYS_ROLLBACK
            or not self._disk.exists(path)
        ):
            return super().record(data, at, crc_ok)
        saved = decode(memoryview(self._disk.read(path)))
        if saved is None:
            return {
                "offset": at,
                "why": f"{len(data)} bytes were damaged; they are in pocketmq/broken",
            }
        return record_document(saved, at, crc_ok=False)
