"""The sequence numbers of an idempotent batch, in the fields of its request and in a property of its records.

    PRODUCER_SEQUENCE = "producer id, hexadecimal:epoch:first:count"

The first record of a batch carries the property for all COUNT records, or each record carries its own, with count 1.
The first form costs nothing per message. A batch that is stored in parts needs the second: `rest_of` gives each record
of the rest its own number. Fields and property must agree: the broker keeps the fields in memory, and finds the
property in the log after a restart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ...proto import properties as names
from ...proto.errors import InvalidArgument
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.record_copy import RecordCopier
from ...proto.record_run import Longs
from ...proto.run import Run

#: Numbers stay far below 2⁶³, so that no sum exceeds 64 bits.
SEQUENCE_MAX: Final = 1 << 62
#: Limit of records per batch; a request with more is impossible.
COUNT_MAX: Final = 1 << 22
_ID_MAX: Final = (1 << 63) - 1
_NAME: Final = f"{names.PRODUCER_SEQUENCE}{names.NAME_END}".encode()
_VALUE: Final = re.compile(rb"([0-9a-f]{1,16}):([0-9]{1,10}):([0-9]{1,19}):([0-9]{1,10})")


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """The producer of a batch in EPOCH, and the numbers of its records in their queue: COUNT from FIRST on."""

    producer_id: int
    epoch: int
    first: int
    count: int

    @classmethod
    def of(cls, run: pb.ProduceRun) -> RunNumbers:
        """Return the numbers in the fields of RUN; raise InvalidArgument, which names the invalid field."""
        epoch, first = run.producer_epoch, run.first_sequence
        _check("producer_id", run.producer_id, _ID_MAX)
        _check("producer_epoch", epoch, _ID_MAX)
        _check("first_sequence", first, SEQUENCE_MAX)
        return cls(run.producer_id, epoch, first, len(run.sizes))

    @classmethod
    def parse(cls, value: bytes) -> RunNumbers | None:
        """Return the numbers in the VALUE of the property; None if it is malformed."""
        found = _VALUE.fullmatch(value)
        if found is None:
            return None
        producer_id, epoch, first, count = found.groups()
        numbers = cls(int(producer_id, 16), int(epoch), int(first), int(count))
        sound = 0 < numbers.producer_id <= _ID_MAX and numbers.first <= SEQUENCE_MAX
        return numbers if sound and 0 < numbers.count <= COUNT_MAX else None

    @property
    def end(self) -> int:
        """The number after the last record."""
        return self.first + self.count

    def text(self) -> str:
        """The value of the property for all records."""
        return f"{self.producer_id:x}:{self.epoch}:{self.first}:{self.count}"

    def own(self, row: int) -> str:
        """Return the value of the property for record ROW alone."""
        return f"{self.producer_id:x}:{self.epoch}:{self.first + row}:1"


def each_has_its_own(numbers: RunNumbers, run: Run) -> bool:
    """Return whether each record of RUN has its own number of NUMBERS; False: the first record has the property for
    all.

    Raises InvalidArgument if the records have anything else. If the first record has it for all, the others are not
    checked: only a forged batch has further numbers, and they harm only its own producer, when a start reads the log.
    """
    string = b"\x02" + names.closed(run.property_string(0))
    wanted = names.encode_pair(names.PRODUCER_SEQUENCE, numbers.text())
    if b"\x02" + wanted in string and string.count(b"\x02" + _NAME) == 1:
        return numbers.count == 1
    return _each(numbers, run)


def _each(numbers: RunNumbers, run: Run) -> bool:
    """Check every record."""
    starts, sizes = run.properties.find(names.PRODUCER_SEQUENCE)
    data = memoryview(run.records)
    said = [
        str(data[start : start + size], "utf-8", "replace") if size > 0 else ""
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    own = [numbers.own(row) for row in range(numbers.count)]
    for_all = [numbers.text(), *[""] * (numbers.count - 1)]
    if said in (own, for_all):
        return said == own
    wanted = for_all if said[0] == for_all[0] else own
    row = next(row for row, value in enumerate(said) if value != wanted[row])
    raise InvalidArgument(
        f"record {row} of the batch: the property {names.PRODUCER_SEQUENCE} is {said[row][:80]!r}, but the fields of"
        f" the batch mean {numbers.text()!r} (in the first record only), or {own[row]!r} (each record its own)",
        field=names.PRODUCER_SEQUENCE,
        index=row,
        value=said[row][:80],
    )


def _check(field: str, value: int, limit: int) -> None:
    if not 0 <= value <= limit:
        raise InvalidArgument(
            f"{field} is {value}: must be between 0 and {limit}",
            field=field,
            limit=limit,
            value=value,
        )


def rest_of(numbers: RunNumbers, run: Run, rows: Longs) -> list[bytes]:
    """Return the records ROWS of RUN with their own numbers. Raises MessageTooLarge for properties above the limit."""
    copier = RecordCopier(run.records, run.columns)
    rest = []
    for row in rows.tolist():
        string = names.without(copier.properties(row), (names.PRODUCER_SEQUENCE,))
        string += names.encode_pair(names.PRODUCER_SEQUENCE, numbers.own(row))
        rest.append(copier.copy(row, topic=run.topic, queue_id=run.queue, properties=string))
    return rest
