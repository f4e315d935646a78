"""The progress of groups, delay levels, timers and transactions in a fork, as of its cut.

No file says when a group committed what. So a committed offset becomes the lesser of what the table says and the
queue's end at the cut: a group is never ahead of the fork, but may be further than it was at that moment. What the
broker itself keeps is set back so that nothing waits for ever: a delay level to the first message due after the moment,
timers to the moment, transactions to the beginning of their queues (the operation messages in the log show which are
over).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...proto.topics import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from ...store.checkpoints import CHECKPOINT_SIZE, read_timer_checkpoint
from ...store.disk import Disk
from ...store.format.state_tables import (
    parse_consumer_offsets,
    parse_delay_offsets,
    render_consumer_offsets,
    render_delay_offsets,
)
from ...store.message_store import MessageStore
from ...store.offsets_file import OffsetsFile
from ...store.state_files import StateFile
from .cut import Cut

_TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
_CHUNK: Final = 10_000

Offsets = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class Clamped:
    """How many committed offsets were beyond the cut, of how many, and how many levels were set back."""

    offsets: int = 0
    of_offsets: int = 0
    levels: int = 0


def wind_back_timers(disk: Disk, root: str, cut: Cut) -> bool:
    """Let the timers of ROOT continue from the cut's time: their messages are entered again when the store is opened.

    Return whether there are any. Wheel and timer log must not be there.
    """
    path = posixpath.join(root, "config", "timercheck")
    known = read_timer_checkpoint(disk, path)
    if known.is_empty:
        return False
    read_ms = min(known.last_read_ms, max(0, cut.time_ms) // 1000 * 1000)
    # A position beyond the end of the timer log, which is empty, says that it lost its records.
    values = replace(known, last_read_ms=read_ms, log_flushed=max(1, known.log_flushed))
    disk.write_file(path, values.pack().ljust(CHECKPOINT_SIZE, b"\0"))
    return True


def clamp_tables(disk: Disk, root: str, store: MessageStore, cut: Cut) -> Clamped:
    """Write the tables of the fork ROOT as of CUT; STORE is the fork, opened on DISK."""
    beyond, total = _clamp_offsets(disk, root, store)
    return Clamped(beyond, total, _clamp_levels(disk, root, store, cut))


def _clamp_offsets(disk: Disk, root: str, store: MessageStore) -> tuple[int, int]:
    file = OffsetsFile(disk, root)
    table = file.load(parse_consumer_offsets).value
    if table is None:
        return 0, 0
    beyond = _clamped(table.offsets, store)
    _clamped(table.pull_offsets, store)
    file.save(render_consumer_offsets(table))
    return beyond, sum(map(len, table.offsets.values()))


def _clamped(offsets: Offsets, store: MessageStore) -> int:
    """Clamp OFFSETS in place; return how many were beyond the end of their queue."""
    beyond = 0
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        for queue, offset in queues.items():
            least, most = store.queue_bounds(topic, queue)
            beyond += offset > most
            queues[queue] = min(offset, most)
            if group == _TRANSACTION_GROUP and topic in (HALF_TOPIC, OP_HALF_TOPIC):
                queues[queue] = least
    return beyond


def _clamp_levels(disk: Disk, root: str, store: MessageStore, cut: Cut) -> int:
    file = StateFile(disk, root, "delayOffset.json")
    table = file.load(parse_delay_offsets).value
    if table is None:
        return 0
    back = 0
    for level, offset in table.offsets.items():
        due = min(offset, _due_by(store, level - 1, cut.time_ms))
        back += due < offset
        table.offsets[level] = due
    file.save(render_delay_offsets(table))
    return back


def _due_by(store: MessageStore, queue: int, time_ms: int) -> int:
    """Return the first queue offset of a delay level that is due after TIME_MS. The tags code is the due time."""
    found = store.queues.get(SCHEDULE_TOPIC, queue)
    if found is None:
        return 0
    offset = found.min_offset
    while offset < found.max_offset:
        codes = found.entries(offset, _CHUNK)[2]
        late = np.flatnonzero(codes > time_ms)
        if len(late):
            return offset + int(late[0])
        offset = offset + len(codes) if len(codes) else found.offset_behind_hole(offset)
    return found.max_offset
