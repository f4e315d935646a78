"""The entries of consume queues, and the units that extend them.

Source: store-format.md §3; RocketMQ 5.5.0's ConsumeQueue, BatchConsumeQueue and ConsumeQueueExt.

Plain queue, consumequeue/<topic>/<queue>/: one entry of 20 bytes per message. Entry N, where N is the queue offset of
the message, is at byte 20·N:

    0   8   log offset of the record
    8   4   size of the record
    12  8   tags code: Java hash of TAGS, sign-extended, 0 without tags; in SCHEDULE_TOPIC_XXXX the delivery time, ms
            (or the address of an EXTENSION_UNIT)

An entry is *valid* if its log offset is not negative and its size positive; a reader stops at the first invalid one
(unused places are zero). If the first entry has a number above 0, *pre-blank* entries (log offset 0, size 2147483647,
the rest 0) precede it from the start of the file on.

Batch queue, batchconsumequeue/<topic>/<queue>/ (only topics with the attribute queue.type=BatchCQ): one entry of 46
bytes per *inner batch*, a record with many messages of one topic and queue. The entries have no gaps, so their
positions do not depend on queue offsets:

    0   20  as in a plain queue
    20  8   store time, ms
    28  8   queue offset of the first message in it (property INNER_BASE)
    36  2   number of messages in it (property INNER_NUM)
    38  4   compacted offset, −1
    42  4   0
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .rows import RowFormat, Rows

ENTRY: Final = RowFormat(log_offset="q", size="i", tags_code="q")
BATCH_ENTRY: Final = RowFormat(
    log_offset="q",
    size="i",
    tags_code="q",
    store_ms="q",
    base="q",
    count="h",
    compacted="i",
    reserved="i",
)
#: consumequeue_ext/<topic>/<queue>/ (RocketMQ with enableConsumeQueueExt): an entry may have an address instead of
#: the tags code: −2^63 + the offset of a unit in that sequence of files. Values below the i32 range are addresses.
#: A unit:
#:     0   2   size of the unit: 20 + that of the bit map
#:     2   8   tags code (in SCHEDULE_TOPIC_XXXX the delivery time, ms)
#:     10  8   store time, ms
#:     18  2   size of the bit map, then the bit map: the results of RocketMQ's filters
EXTENSION_UNIT: Final = RowFormat(size="h", tags_code="q", store_ms="q", map_size="h")

#: The prefix of topics of light queues. Their entries point to records of other topics.
LIGHT_PREFIX: Final = "%LMQ%"
#: The size in a pre-blank entry; no record is that large.
PRE_BLANK_SIZE: Final = (1 << 31) - 1
#: The compacted offset in a batch entry of a queue that is not compacted.
NOT_COMPACTED: Final = -1
#: The highest address of an extension unit; everything above is a tags code.
ADDRESS_MAX: Final = -(1 << 31) - 1
#: The address of the unit at offset 0.
ADDRESS_LEAST: Final = -(1 << 63)


def entry_format(*, is_batch: bool) -> RowFormat:
    """Return the format of the entries of a batch queue, or of a plain one."""
    return BATCH_ENTRY if is_batch else ENTRY


def names_record(entries: Rows) -> NDArray[np.bool_]:
    """Return which of ENTRIES, of either kind, point to a record: not unused or pre-blank ones."""
    sizes = entries["size"]
    named: NDArray[np.bool_] = (
        (entries["log_offset"] >= 0) & (sizes > 0) & (sizes != PRE_BLANK_SIZE)
    )
    return named


def leading(good: NDArray[np.bool_]) -> int:
    """Return how many entries at the beginning are GOOD."""
    return len(good) if good.all() else int(good.argmin())
