"""Messages as Arrow has them: from parsed records (proto/record_run.py) to batches of the columns that are wanted.

A column costs only if it is asked for. Numbers are passed as they are, texts and bodies by their places in the records'
bytes.

    message_id    the id that the sender gave it (UNIQ_KEY), or else the offset id, as in every RocketMQ client
    tags, keys   the properties TAGS and KEYS as they are stored: null without, several keys separated by spaces
    body         as it was sent: what sys_flag says is compressed is decompressed; with DECOMPRESS false as it is stored
    body_crc      of the body as it is stored

An *inner batch* (sys_flag bit 7: many messages in the body of one record) is one row, as it is one record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ....proto import record
from ....proto.byte_ranges import windows
from ....proto.errors import CorruptRecord, InvalidArgument
from ....proto.message_id import offset_message_id, offset_message_ids
from ....proto.properties import KEYS, SHARDING_KEY, TAGS, UNIQ_KEY
from ....proto.property_ranges import PropertyRanges
from ....proto.record_run import Bytes, Longs, RunColumns
from ..schemas import arrow
from .byte_range_columns import ConstantColumn, binary_ranges, instants, property_map, text_ranges

if TYPE_CHECKING:
    import pyarrow

Refused = tuple[int, str]
_HOST_V4_BYTES: Final = 8
_HOST_V6_BYTES: Final = _HOST_V4_BYTES + record.HOST_V6_EXTRA

#: Bytes of bodies that are decompressed for one batch: a few records may come to gigabytes.
BODIES_MAX: Final = 64 << 20


class MessageColumns:
    """Makes batches with the columns of SCHEMA (one of `schemas.projected("messages", …)`) of BROKER's records."""

    def __init__(
        self, schema: pyarrow.Schema, broker: str | None, *, decompress: bool = True
    ) -> None:
        self.schema = schema
        self.broker_name = broker
        self._broker = ConstantColumn(broker)
        self._nothing = ConstantColumn(None)
        self._decompress = decompress and "body" in schema.names

    def batch(
        self,
        data: Bytes,
        columns: RunColumns,
        refuse: Callable[[list[Refused]], None] | None = None,
    ) -> pyarrow.RecordBatch:
        """Return the records COLUMNS, all well formed, whose places count in DATA, a row each.

        REFUSE is called for a body that cannot be decompressed, with its row, and it is left out; without REFUSE it
        raises CorruptRecord. Unsupported, where LZ4 or ZSTD is not installed, is raised in any case.
        """
        return self.leading(data, columns, refuse, bodies_max=None)[0]

    def leading(
        self,
        data: Bytes,
        columns: RunColumns,
        refuse: Callable[[list[Refused]], None] | None = None,
        *,
        bodies_max: int | None = BODIES_MAX,
    ) -> tuple[pyarrow.RecordBatch, int]:
        """Return likewise the leading ones of COLUMNS, and how many were looked at: at least one.

        Once what was decompressed of them has BODIES_MAX bytes (None: no limit), the others are left for the next.
        """
        if not len(columns):
            return arrow().RecordBatch.from_pylist([], schema=self.schema), 0
        bodies: list[bytes | None] | None = None
        count = len(columns)
        if self._decompress and (columns.sys_flag & record.SYS_COMPRESSED).any():
            bodies, refused = _decompressed(data, columns, bodies_max)
            count = len(bodies)
            columns = columns.take(slice(0, count))
            if refused:
                if refuse is None:
                    row, why = refused[0]
                    raise CorruptRecord(
                        f"record at {int(columns.log_offset[row])}: {why}", field="body"
                    )
                refuse(refused)
                kept = np.ones(len(columns), np.bool_)
                kept[[row for row, _ in refused]] = False
                columns = columns.take(kept)
                bodies = [body for body in bodies if body is not None]
        rows = _Rows(data, columns, bodies, self._broker, self._nothing)
        arrays = [_MAKERS[name](rows) for name in self.schema.names]
        return arrow().RecordBatch.from_arrays(arrays, schema=self.schema), count


def _decompressed(
    data: Bytes, columns: RunColumns, size_max: int | None
) -> tuple[list[bytes | None], list[Refused]]:
    """Return the bodies, None for what cannot be decompressed, and why those cannot; up to SIZE_MAX bytes and one."""
    bodies: list[bytes | None] = []
    size = 0
    refused: list[Refused] = []
    ends = (columns.body_start + columns.body_size).tolist()
    places = zip(columns.body_start.tolist(), ends, columns.sys_flag.tolist(), strict=True)
    for row, (start, end, sys_flag) in enumerate(places):
        if size_max is not None and size >= size_max:
            break
        try:
            body = record.decompress_body(data[start:end].tobytes(), sys_flag)
            bodies.append(body)
            size += len(body)
        except (CorruptRecord, InvalidArgument) as error:
            bodies.append(None)
            refused.append((row, error.message))
    return bodies, refused


class _Rows:
    """The records of one batch, and what several columns need of them."""

    def __init__(
        self,
        data: Bytes,
        columns: RunColumns,
        bodies: list[bytes | None] | None,
        broker: ConstantColumn,
        nothing: ConstantColumn,
    ) -> None:
        self.data = data
        self.columns = columns
        self.broker = broker
        self._bodies = bodies
        self._nothing = nothing

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def ranges(self) -> PropertyRanges:
        return PropertyRanges(self.data, self.columns)

    def properties(self) -> Any:
        return property_map(self.data, self.ranges.pairs(), len(self))

    def nothing(self) -> Any:
        """Return null in every row, as text."""
        return self._nothing.rows(len(self))

    def property(self, name: str) -> Any:
        """Return the value of the property NAME, null where there is none."""
        starts, sizes = self.ranges.find(name)
        return text_ranges(self.data, starts, starts + sizes, sizes <= 0)

    def text(self, field: str) -> Any:
        starts: Longs = getattr(self.columns, f"{field}_start")
        return text_ranges(self.data, starts, starts + getattr(self.columns, f"{field}_size"))

    def number(self, field: str) -> Any:
        return arrow().array(getattr(self.columns, field))

    def time(self, field: str) -> Any:
        return instants(getattr(self.columns, field))

    def store_size(self) -> Any:
        return arrow().array(self.columns.sizes.astype(np.int32))

    def body(self) -> Any:
        if self._bodies is not None:
            return arrow().array(self._bodies, arrow().binary())
        starts = self.columns.body_start
        return binary_ranges(self.data, starts, starts + self.columns.body_size)

    def born_host(self) -> Any:
        starts = self.columns.starts + record.BORN_HOST_AT
        return self._hosts(starts, (self.columns.sys_flag & record.SYS_BORN_V6) != 0)

    def store_host(self) -> Any:
        return self._hosts(self._store_host_starts, self._stored_by_v6)

    @cached_property
    def _stored_by_v6(self) -> NDArray[np.bool_]:
        is_v6: NDArray[np.bool_] = (self.columns.sys_flag & record.SYS_STORE_V6) != 0
        return is_v6

    @cached_property
    def _store_host_starts(self) -> Longs:
        moved = ((self.columns.sys_flag & record.SYS_BORN_V6) != 0) * np.int64(record.HOST_V6_EXTRA)
        starts: Longs = self.columns.starts + record.STORE_HOST_AT + moved
        return starts

    def _hosts(self, starts: Longs, is_v6: NDArray[np.bool_]) -> Any:
        """Return the addresses and ports at STARTS as text: few are different, so each is written once."""
        pa = arrow()
        if is_v6.any():
            sizes = np.where(is_v6, _HOST_V6_BYTES, _HOST_V4_BYTES)
            packed = binary_ranges(self.data, starts, starts + sizes)
        else:
            numbers = windows(self.data, starts, _HOST_V4_BYTES).view(np.int64)[:, 0]
            if (numbers == numbers[0]).all():
                return pa.repeat(_host_text(int(numbers[0])), len(numbers))
            packed = pa.array(numbers)
        encoded = packed.dictionary_encode()
        texts = [_host_text(value) for value in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(encoded.indices)

    def message_id(self) -> Any:
        own = self.property(UNIQ_KEY)
        if not own.null_count:
            return own
        import pyarrow.compute

        compute: Any = pyarrow.compute  # its functions are made when it is imported
        return compute.coalesce(own, self._offset_ids())

    def _offset_ids(self) -> Any:
        """Return the ids that tell broker and log offset; the brokers' addresses are of one kind, but in tests."""
        starts, offsets = self._store_host_starts, self.columns.log_offset
        if not self._stored_by_v6.any():
            return _as_strings(
                offset_message_ids(windows(self.data, starts, _HOST_V4_BYTES), offsets)
            )
        texts = []
        for row, is_v6 in enumerate(self._stored_by_v6.tolist()):
            size = _HOST_V6_BYTES if is_v6 else _HOST_V4_BYTES
            start = int(starts[row])
            packed = self.data[start : start + size].tobytes()
            port = int.from_bytes(packed[-4:])
            texts.append(offset_message_id(packed[:-4], port, int(offsets[row])))
        return arrow().array(texts, arrow().string())


def _as_strings(rows: Bytes) -> Any:
    """Return the ASCII texts ROWS, which are equally long, as an array."""
    pa = arrow()
    count, size = rows.shape
    ends = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), count, [None, ends, pa.py_buffer(rows)])


def _host_text(packed: int | bytes) -> str:
    """Return the address and port in PACKED, the bytes in a record (IPv4: as a little-endian number)."""
    if isinstance(packed, int):
        packed = packed.to_bytes(_HOST_V4_BYTES, "little", signed=True)
    return str(record.Host(packed[:-4], int.from_bytes(packed[-4:], signed=True)))


_MAKERS: Final[dict[str, Callable[[_Rows], Any]]] = {
    "broker": lambda rows: rows.broker.rows(len(rows)),
    "topic": lambda rows: rows.text("topic"),
    "queue": lambda rows: rows.number("queue_id"),
    "queue_offset": lambda rows: rows.number("queue_offset"),
    "log_offset": lambda rows: rows.number("log_offset"),
    "store_size": _Rows.store_size,
    "store_timestamp": lambda rows: rows.time("store_ms"),
    "born_timestamp": lambda rows: rows.time("born_ms"),
    "born_host": _Rows.born_host,
    "store_host": _Rows.store_host,
    "flag": lambda rows: rows.number("flag"),
    "sys_flag": lambda rows: rows.number("sys_flag"),
    "reconsume_times": lambda rows: rows.number("reconsume_times"),
    "body_crc": lambda rows: rows.number("body_crc"),
    "prepared_transaction_offset": lambda rows: rows.number("prepared_offset"),
    "message_id": _Rows.message_id,
    "tags": lambda rows: rows.property(TAGS),
    "keys": lambda rows: rows.property(KEYS),
    "sharding_key": lambda rows: rows.property(SHARDING_KEY),
    "properties": _Rows.properties,
    "raw_properties": lambda rows: rows.text("properties"),
    "bad_record": _Rows.nothing,
    "body": _Rows.body,
}
