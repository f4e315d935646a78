"""A run to append, what became of it, and the fields that only the store can fill in.

The store owns four fields of a record: queue offset (20) and log offset (28) lie side by side, and so do store time
(56) and store host (64; both 12 further behind an IPv6 born host). So two 16-byte assignments patch a whole run,
by strides where its records have one size, by gathering their places otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..proto.errors import InvalidRecord
from ..proto.few_records import FewColumns, as_few
from ..proto.property_ranges import PropertyRanges
from ..proto.record import (
    HOST_V6_EXTRA,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    SYS_BORN_V6,
    SYS_STORE_V6,
    SYS_TRANSACTION,
    Host,
)
from ..proto.record_run import Longs, RunColumns, parse_run, starts_of
from .disk import Buffer

_OFFSETS = np.dtype([("queue_offset", ">i8"), ("log_offset", ">i8")])
_STAMP_SIZE = 16
_SIXTEEN = f"V{_STAMP_SIZE}"
_LONG = struct.Struct(">q")
_PAIR = struct.Struct(">qq")
#: The columns that are positions in the buffer.
_PLACES = frozenset(("starts", "body_start", "topic_start", "properties_start"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Records of one queue, end to end, checked (`run_check.check_run`) and without the store's own fields.

    `columns` tells of `records`; the store fills its queue_offset, log_offset and store_ms. With `whole` the run is
    one batch: it is never divided between two log files. `properties` are those of `records`, if somebody has looked
    for them already.
    """

    topic: str
    queue: int
    records: Buffer
    columns: RunColumns
    whole: bool = False
    properties: PropertyRanges | None = None

    @classmethod
    def of(cls, topic: str, queue: int, records: Sequence[Buffer]) -> Run:
        """Return RECORDS, which were encoded or copied for QUEUE of TOPIC, as a run; they are not checked."""
        data = b"".join(records)
        columns = parse_run(data, starts_of([len(record) for record in records]))
        return cls(topic=topic, queue=queue, records=data, columns=columns)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a run went: its records have the queue offsets from FIRST_QUEUE_OFFSET on and LOG_OFFSETS.

    Everything of it is on the device once the log is flushed up to END_OFFSET.
    """

    first_queue_offset: int
    log_offsets: Longs
    end_offset: int
    store_timestamp_ms: int

    def __len__(self) -> int:
        return len(self.log_offsets)


def check_appendable(columns: RunColumns) -> None:
    """Refuse what has no place in a queue: a transaction's PREPARED and ROLLBACK types, and 16-byte store hosts."""
    if as_few(columns) is not None:
        return
    kinds = columns.sys_flag & SYS_TRANSACTION
    if ((kinds | columns.sys_flag & SYS_STORE_V6) != 0).any():
        _refuse(columns)


def _refuse(columns: RunColumns) -> None:
    for index, sys_flag in enumerate(columns.sys_flag.tolist()):
        if sys_flag & SYS_STORE_V6:
            problem = "reserves an IPv6 store host, but the broker fills in an IPv4 one"
        elif sys_flag & SYS_TRANSACTION in (0, 8):
            continue
        else:
            problem = "says prepared or rolled back; such messages are stored in the half topic, without that type"
        raise InvalidRecord(
            f"record {index} of the run: sysFlag {sys_flag:#x} {problem}",
            field="sysFlag",
            index=index,
            value=sys_flag,
        )


def stamp(store_timestamp_ms: int, host: Host) -> bytes:
    """Return the 16 bytes of store time and store host."""
    return struct.pack(">q4si", store_timestamp_ms, host.address, host.port)


def patch(
    data: NDArray[np.uint8],
    columns: RunColumns,
    queue_offsets: Longs,
    log_offset: int,
    stamped: bytes,
) -> None:
    """Fill the store's fields of all records in DATA and in COLUMNS.

    The records get QUEUE_OFFSETS, and lie end to end in the log from LOG_OFFSET on.
    """
    few = as_few(columns)
    if few is not None:
        patch_few(data.data, few, int(queue_offsets[0]), log_offset, stamped)
        return
    count = len(columns)
    columns.queue_offset = queue_offsets
    columns.log_offset = columns.starts + (log_offset - int(columns.starts[0]))
    columns.store_ms = np.full(count, _LONG.unpack_from(stamped)[0], np.int64)
    stamp_at = _stamp_at(columns)
    offsets: NDArray[np.void]
    if stamp_at is not None and _equal_sized(columns):
        size, first = int(columns.sizes[0]), int(columns.starts[0])
        offsets = np.ndarray(
            (count,), _OFFSETS, data, offset=first + QUEUE_OFFSET_AT, strides=(size,)
        )
        offsets["queue_offset"] = columns.queue_offset
        offsets["log_offset"] = columns.log_offset
        stamps = np.ndarray(
            (count, _STAMP_SIZE), np.uint8, data, offset=first + stamp_at, strides=(size, 1)
        )
        stamps[:] = np.frombuffer(stamped, np.uint8)
        return
    # As plain bytes: a structured array would be written field by field.
    pairs = np.empty(count, _OFFSETS)
    pairs["queue_offset"] = columns.queue_offset
    pairs["log_offset"] = columns.log_offset
    anywhere = np.ndarray((len(data) - _STAMP_SIZE + 1,), _SIXTEEN, data, strides=(1,))
    anywhere[columns.starts + QUEUE_OFFSET_AT] = pairs.view(_SIXTEEN)
    anywhere[columns.starts + _stamp_places(columns)] = np.frombuffer(stamped, _SIXTEEN)


def patch_few(
    view: memoryview, columns: FewColumns, first: int, log_offset: int, stamped: bytes
) -> None:
    """Do what `patch` does for a few records, numbered from FIRST on; VIEW holds them."""
    places = columns.places
    numbers = range(first, first + len(places))
    log_offsets = [log_offset + place.start for place in places]
    columns.queue_offset = np.array(numbers, np.int64)
    columns.log_offset = np.array(log_offsets, np.int64)
    columns.store_ms = np.array([_LONG.unpack_from(stamped)[0]] * len(places), np.int64)
    for place, number, offset in zip(places, numbers, log_offsets, strict=True):
        _PAIR.pack_into(view, place.start + QUEUE_OFFSET_AT, number, offset)
        at = place.start + STORE_TIMESTAMP_AT
        view[at : at + _STAMP_SIZE] = stamped


def joined(runs: Sequence[Run]) -> tuple[NDArray[np.uint8], RunColumns]:
    """Return the records of RUNS end to end in one writable array, and the columns of them all."""
    data = np.frombuffer(bytearray().join([run.records for run in runs]), np.uint8)
    if len(runs) == 1:
        return data, runs[0].columns
    if any(as_few(run.columns) is not None for run in runs):
        sizes = np.concatenate([run.columns.sizes for run in runs])
        return data, parse_run(data, starts_of(sizes))
    counts = [len(run.columns) for run in runs]
    begins = np.cumsum([0, *(len(run.records) for run in runs[:-1])])
    shift = np.repeat(begins, counts)
    parts = []
    for name in RunColumns.__slots__:
        column = np.concatenate([getattr(run.columns, name) for run in runs])
        parts.append(column + shift if name in _PLACES else column)
    return data, RunColumns(*parts)


def _equal_sized(columns: RunColumns) -> bool:
    sizes = columns.sizes
    return len(sizes) > 1 and bool((sizes == sizes[0]).all())


def _stamp_at(columns: RunColumns) -> int | None:
    """Return where store time and host stand in every record; None if it differs from record to record."""
    places = _stamp_places(columns)
    return int(places[0]) if (places == places[0]).all() else None


def _stamp_places(columns: RunColumns) -> Longs:
    born_v6 = (columns.sys_flag & SYS_BORN_V6) != 0
    places: Longs = STORE_TIMESTAMP_AT + HOST_V6_EXTRA * born_v6.astype(np.int64)
    return places
