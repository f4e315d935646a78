"""What queues of a store hold, as it is told of them: when a message was stored, what a group has unread.

Nothing is seen that is not confirmed. Bounds: UNREAD_ENTRIES_MAX entries are added up for one request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from ..proto.errors import InvalidArgument, InvalidRecord
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.record import decode_record
from ..store.message_store import MessageStore

#: Queues in one request: the loop serves nobody else meanwhile.
QUEUES_MAX: Final = 10_000
#: So many queue entries are added up for one request: some 20 ms.
UNREAD_ENTRIES_MAX: Final = 2_000_000


def stored_ms(store: MessageStore, topic: str, queue: int, offset: int) -> int:
    """Return when the first message from OFFSET on was stored; −1: there is none, or it is damaged."""
    low, high = store.queue_bounds(topic, queue)
    if max(low, offset) < high:
        found = store.read_queue(topic, queue, max(low, offset), 1, 1).records
        with contextlib.suppress(InvalidRecord):
            return decode_record(found).store_timestamp_ms
    return -1


def add_unread(store: MessageStore, offsets: Iterable[pb.GroupOffset]) -> None:
    """Tell of each of OFFSETS since when messages are unread, and how many bytes; others must not wait for it."""
    left = UNREAD_ENTRIES_MAX
    for one in offsets:
        one.unread_store_time_ms = stored_ms(store, one.topic, one.queue, one.offset)
        if one.offset < 0:
            continue  # Where the group will begin is its own choice.
        size, count = store.unread_bytes(one.topic, one.queue, one.offset, left)
        left -= count
        if size is not None:
            one.unread_bytes = size


def check_count(field: str, count: int) -> None:
    """Raise InvalidArgument where FIELD names more queues than QUEUES_MAX: COUNT."""
    if count > QUEUES_MAX:
        raise InvalidArgument(
            f"{field}: {count} in one request, the limit is {QUEUES_MAX}: ask in parts",
            field=field,
            limit=QUEUES_MAX,
            value=count,
        )


def check_natural(field: str, value: int) -> None:
    """Raise InvalidArgument if VALUE of FIELD is negative."""
    if value < 0:
        raise InvalidArgument(
            f"{field} is {value}: must not be negative", field=field, limit=0, value=value
        )
