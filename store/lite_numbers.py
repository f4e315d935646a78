"""Numbers messages of lite topics: gives their records the queue, and the number in it, as RocketMQ's broker does.

The properties are INNER_MULTI_DISPATCH=`%LMQ%$parent$lite` and INNER_MULTI_QUEUE_OFFSET=number. The numbers are text in
the record, so they must be known before the record is complete: in the turn of the append.
"""

from __future__ import annotations

from typing import Final

from ..proto import properties as names
from ..proto.errors import MessageTooLarge
from ..proto.lite_topics import lite_queue_name
from ..proto.property_ranges import pairs_of
from ..proto.run import Run
from ..proto.topics import PROPERTIES_SIZE_MAX
from .lite_queues import LiteQueues, lite_place

_LITE_TOPIC: Final = names.LITE_TOPIC.encode()
_OWN: Final = (names.MULTI_DISPATCH.encode(), names.MULTI_QUEUE_OFFSET.encode())
#: Bytes of the size of the property string, in front of it.
_SIZE_BYTES: Final = 2


class LiteNumbers:
    """Gives the messages of one append their numbers in the queues of LITE."""

    def __init__(self, lite: LiteQueues) -> None:
        self._lite = lite
        self._next: dict[str, int] = {}

    def numbered(self, run: Run) -> Run:
        """Return a copy of RUN whose records have their numbers; those without a lite topic are unchanged.

        Raises MessageTooLarge if the properties of a record are too large then.
        """
        records, sizes = [], []
        at = 0
        for row, size in enumerate(run.sizes.tolist()):
            string = run.property_string(row)
            record = bytes(run.records[at : at + size])
            if added := self._added(run.topic, string):
                record, string = _with_properties(record, string, added, row)
            records.append(record)
            sizes.append(len(string))
            at += size
        if run.is_small:
            made = Run.of_plain(run.topic, run.queue, records, sizes)
        else:
            made = Run.of(run.topic, run.queue, records)
        made.whole = run.whole
        return made

    def _added(self, topic: str, string: bytes) -> bytes:
        """Return the properties to add to a record of TOPIC with the property STRING; empty: none."""
        values = _values(string)
        lite_topic = values.get(_LITE_TOPIC)
        if not lite_topic:
            return b""
        name = lite_queue_name(topic, lite_topic.decode("utf-8", "replace"))
        if lite_place(topic, name.encode(), b"0") is None:
            return b""
        number = self._next.get(name)
        if number is None:
            queue = self._lite.get(name)
            number = 0 if queue is None else queue.max_offset
        self._next[name] = number + 1
        return b"".join(
            names.encode_pair(key.decode(), value)
            for key, value in zip(_OWN, (name, number), strict=True)
        )


def _values(string: bytes) -> dict[bytes, bytes]:
    return {name: string[at : at + size] for name, at, size in pairs_of(string)}


def _with_properties(record: bytes, string: bytes, added: bytes, row: int) -> tuple[bytes, bytes]:
    """Return RECORD, which ends with the property STRING, and STRING, with ADDED instead of earlier ones."""
    before = _values(string)
    if any(name in before for name in _OWN):
        kept = [(name, value) for name, value in before.items() if name not in _OWN]
        made = b"".join(b"%b\x01%b\x02" % pair for pair in kept) + added
    else:
        made = string + (b"" if string.endswith(b"\x02") else b"\x02") + added
    if len(made) > PROPERTIES_SIZE_MAX:
        raise MessageTooLarge(
            f"record {row} of the run: properties with the number in the lite topic have {len(made)} bytes, the"
            f" limit is {PROPERTIES_SIZE_MAX}",
            field="properties",
            index=row,
            limit=PROPERTIES_SIZE_MAX,
            value=len(made),
        )
    head = record[4 : len(record) - len(string) - _SIZE_BYTES]
    size = 4 + len(head) + _SIZE_BYTES + len(made)
    return b"".join((size.to_bytes(4), head, len(made).to_bytes(_SIZE_BYTES), made)), made
