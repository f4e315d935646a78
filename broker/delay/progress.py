"""How far delivery has come: a note with every chunk, and the levels' own file, `config/delayOffset.json`.

Apache's files (`timercheck`, `delayOffset.json`) tell how far delivery has come, about once a second, and only what the
device holds; a broker that is killed again and again within seconds would deliver the same messages each time. The
note is ours: the file `pocketmq/delivered`, one page that is written with every chunk and never synced. It outlives the
process, not the machine. It is believed only where that is so: the store was not closed, the machine runs since
before (its boot id), and the log and the timer log are as long as they were. Losing it delivers more again, no more.

    0    4 bytes  "PMDN"            of a level: i64, the next queue offset
    4    u16      slots             of a slot: i64 its time; i64 the newest timer record that was looked at;
    6    u16      levels                       i64, i64 due time and position of the first record that is pending:
    8    16 bytes boot id                      what was looked at and comes before it, was delivered
    24   i64      log end
    32   i64      timer log end     then the levels, then the slots, then
    40   i64      read time         u32  CRC-32 of all that

A note costs some 10 µs. Bounds: the oldest SLOTS_MAX slots of which something was delivered.

`delayOffset.json` says of each level which message of its queue comes next. It never says more than the device holds: a
save takes a snapshot, and writes it once the log is flushed up to where it ended at that moment, delivered copies
included. After a power cut what was delivered since is delivered again; nothing is lost. After a kill the note knows
better.

Not thread-safe: the event loop owns both. Source: Apache's ScheduleMessageService.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...proto.errors import PocketMQError, StoreError
from ...store.disk import Mapping as FileMapping
from ...store.format.state_tables import DelayOffsets, parse_delay_offsets, render_delay_offsets
from ...store.message_store import MessageStore
from ...store.state_files import StateFile
from ..messages.storing import Appends, synced

logger = logging.getLogger(__name__)

SIZE: Final = 4096
SLOTS_MAX: Final = 64
_BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"
_MAGIC: Final = b"PMDN"
_HEAD: Final = struct.Struct(">4sHH16sqqq")
_SLOT: Final = struct.Struct(">qqqq")
_CRC: Final = struct.Struct(">I")
_BOOT_ID_SIZE: Final = 16
#: Apache's: messages between two steps of the file's version.
_MESSAGES_PER_VERSION: Final = 200


# --- the note


class SlotNote(NamedTuple):
    """Of one slot: records up to LAST that come before (DUE_MS, POSITION) were delivered, or recalled."""

    last: int
    due_ms: int
    position: int


class DeliveredNote:
    """The note of STORE. `find` what the last process left, then `write` with every chunk; `remove` at a clean stop."""

    def __init__(self, store: MessageStore, *, has_replicas: bool = False) -> None:
        """HAS_REPLICAS: others may have delivered since, and what was delivered be gone: no note counts."""
        self._store = store
        self._has_replicas = has_replicas
        self._path = f"{store.config.own_folder}/delivered"
        self._boot_id = _boot_id(store)
        self._file: FileMapping | None = None
        self._failed = False
        #: Start of the oldest slot that was not delivered as a whole.
        self.read_ms = 0
        #: The next queue offset of each level, from 1 on.
        self.levels: dict[int, int] = {}
        self._slots: dict[int, SlotNote] = {}

    def find(self) -> None:
        """Take over what the last process noted, if that is to be believed."""
        disk = self._store.disk
        if not disk.exists(self._path):
            return
        data = disk.read_at(self._path, 0, SIZE)
        ended_cleanly = self._store.ended_cleanly or self._has_replicas
        if ended_cleanly or self._boot_id is None or not self._read(data):
            disk.delete(self._path)

    def _read(self, data: bytes) -> bool:
        """Take DATA over; return whether it can be believed."""
        if len(data) < SIZE or data[:4] != _MAGIC:
            return False
        _, slots, levels, boot_id, log_end, timer_end, read_ms = _HEAD.unpack_from(data)
        names = struct.Struct(f">{levels}q")
        end = _HEAD.size + names.size + slots * _SLOT.size
        if end + _CRC.size > SIZE or _CRC.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
            return False
        store = self._store
        if boot_id != self._boot_id or log_end > store.max_log_offset:
            return False
        if timer_end > store.timers.log.max_offset:
            return False
        self.read_ms = read_ms
        self.levels = dict(enumerate(names.unpack_from(data, _HEAD.size), start=1))
        for at in range(_HEAD.size + names.size, end, _SLOT.size):
            slot_ms, last, due_ms, position = _SLOT.unpack_from(data, at)
            self._slots[slot_ms] = SlotNote(last, due_ms, position)
        return True

    @property
    def slots(self) -> list[int]:
        """The times of the slots of which something is known."""
        return list(self._slots)

    def of_slot(self, slot_ms: int) -> SlotNote | None:
        """Return what is known of the slot of SLOT_MS."""
        return self._slots.get(slot_ms)

    def write_levels(self, levels: Mapping[int, int]) -> None:
        """Note the next queue offset of each of LEVELS."""
        self.levels.update(levels)
        self._write()

    def write_slots(self, slots: Iterable[tuple[int, SlotNote]]) -> None:
        """Note of SLOTS what was delivered of them; what the timers say is over is left out."""
        self._slots.update(slots)
        self.read_ms = max(self.read_ms, self._store.timers.read_ms)
        for slot_ms in [slot_ms for slot_ms in self._slots if slot_ms < self.read_ms]:
            del self._slots[slot_ms]
        self._write()

    def _write(self) -> None:
        if self._boot_id is None:
            return
        oldest = sorted(self._slots.items())[:SLOTS_MAX]
        levels = [self.levels.get(level, 0) for level in range(1, max(self.levels, default=0) + 1)]
        store = self._store
        data = b"".join(
            (
                _HEAD.pack(
                    _MAGIC,
                    len(oldest),
                    len(levels),
                    self._boot_id,
                    store.max_log_offset,
                    store.timers.log.max_offset,
                    self.read_ms,
                ),
                struct.pack(f">{len(levels)}q", *levels),
                *(_SLOT.pack(slot_ms, *note) for slot_ms, note in oldest),
            )
        )
        try:
            self._opened().write(0, data + _CRC.pack(zlib.crc32(data)))
        except StoreError as error:  # Then more is delivered again after a kill.
            if not self._failed:
                logger.warning("what was delivered is not noted: %s", error.message)
            self._failed = True

    def _opened(self) -> FileMapping:
        if self._file is None:
            disk = self._store.disk
            disk.make_folders(self._store.config.own_folder)
            self._file = disk.open_map(self._path, size=SIZE, create=True)
        return self._file

    def remove(self) -> None:
        """Forget it: the store is about to be closed, and its own files tell exactly what was delivered."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._store.disk.exists(self._path):
            self._store.disk.delete(self._path)


def _boot_id(store: MessageStore) -> bytes | None:
    """Return what tells this run of the machine from others; None where it does not say."""
    try:
        text = store.disk.read(_BOOT_ID_PATH)
        found = bytes.fromhex(text.decode("ascii").strip().replace("-", ""))
    except (OSError, ValueError):
        return None
    return found if len(found) == _BOOT_ID_SIZE else None


# --- the file of the levels


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What is to be written, once the log is flushed up to END_OFFSET."""

    table: DelayOffsets
    end_offset: int


class LevelProgress:
    """The next queue offset of each level, over FILE; NOW_MS dates its versions. NOTE was found before."""

    def __init__(
        self,
        file: StateFile,
        store: MessageStore,
        appends: Appends,
        now_ms: Callable[[], int],
        note: DeliveredNote | None = None,
    ) -> None:
        self._file = file
        self._store = store
        self._appends = appends
        self._now_ms = now_ms
        loaded = file.load(parse_delay_offsets)
        if loaded.problem:
            logger.warning("state file was broken file=%s problem=%s", file.name, loaded.problem)
        table = loaded.value or DelayOffsets()
        self._version = table.version
        self._offsets = dict(table.offsets)
        self._note = note
        if note is not None:
            for level, offset in note.levels.items():
                if offset > self._offsets.get(level, 0):
                    self._offsets[level] = offset
        self._delivered = 0
        self._dirty = False
        self._pending: _Snapshot | None = None
        store.events.flushed.append(self._on_flushed)

    @property
    def offsets(self) -> Mapping[int, int]:
        """Which message of the queue of each level comes next."""
        return self._offsets

    def offset(self, level: int) -> int:
        """Return which message of the queue of LEVEL comes next."""
        return self._offsets.get(level, 0)

    def reached(self, level: int, offset: int, messages: int = 0) -> None:
        """Note that the one at OFFSET comes next, after MESSAGES were delivered."""
        if self._offsets.get(level) != offset:
            self._offsets[level] = offset
            self._dirty = True
        if messages and self._note is not None:
            self._note.write_levels({level: offset})
        steps = self._delivered // _MESSAGES_PER_VERSION
        self._delivered += messages
        if self._delivered // _MESSAGES_PER_VERSION > steps:
            self._version = self._version.next(self._now_ms())

    def save(self) -> None:
        """Write what is new, as soon as it is safe; call this every now and then. Raises what the disk raises."""
        if self._pending is None and self._dirty:
            self._pending = self._snapshot()
            self._dirty = False
        self._write_if_safe()

    async def save_exactly(self) -> None:
        """Have everything so far on the device, and write it; an error of the disk is told in the log."""
        if self._pending is None and not self._dirty:
            return
        self._pending = snapshot = self._snapshot()
        self._dirty = False
        try:
            await synced(self._store, snapshot.end_offset)
            self._write_if_safe()
        except PocketMQError as error:
            self._pending = None
            logger.warning("delayed messages may be delivered again: %s", error.message)

    def _snapshot(self) -> _Snapshot:
        table = DelayOffsets(self._version, dict(sorted(self._offsets.items())))
        return _Snapshot(table, self._store.max_log_offset)

    def _on_flushed(self, flushed_offset: int) -> None:
        try:
            self._write_if_safe()
        except PocketMQError as error:  # The next save tries again.
            logger.warning("state file not saved file=%s reason=%s", self._file.name, error.message)

    def _write_if_safe(self) -> None:
        snapshot = self._pending
        if snapshot is not None and self._appends.flushed_offset >= snapshot.end_offset:
            self._file.save(render_delay_offsets(snapshot.table))
            self._pending = None
