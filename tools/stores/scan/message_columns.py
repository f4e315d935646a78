"""Messages as Arrow has them: from parsed records (proto/record_run.py) to batches of the columns that are wanted.

A column costs only if it is asked for. Numbers are handed over as they are, texts and bodies by their places in the
records' bytes.

messageId    the id that the sender gave it (UNIQ_KEY), or else the offset id, as in every RocketMQ client
tags, keys   the properties TAGS and KEYS as they stand there: null without, several keys separated by spaces
body         as it was sent: what sysFlag says is compressed is decompressed; or with DECOMPRESS false as it is stored
bodyCrc      of the body as it is stored

An *inner batch* (sysFlag bit 7: many messages in the body of one record) is one row, as it is one record.

Columns of byte ranges: from where values stand in a buffer to Arrow arrays, without a Python object a value.

An Arrow array of strings is a buffer and the places at which values begin and end. With the places (start 0, end 0,
start 1, end 1, …) over the whole buffer every second element is a value, and the others are what lies between: nothing
is copied up to here. `take` then picks the values: 30 ns each. Ranges that do not rise, or overlap (in records of a
damaged store they may), are cut out one by one.

Text that is no UTF-8 is repaired with U+FFFD, as Java's decoder does it.

The properties of records are an Arrow map. By Apache's reader a later duplicate of a name wins, so a map never holds a
name twice; names and values that are empty are none (proto/properties.py). Duplicates are rare: to see that there are
none costs some 10 ns a property.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ....proto import record
from ....proto.byte_ranges import windows
from ....proto.errors import CorruptRecord, InvalidArgument
from ....proto.message_id import offset_message_id, offset_message_ids
from ....proto.properties import KEYS, SHARDING_KEY, TAGS, UNIQ_KEY
from ....proto.property_ranges import Pairs, PropertyRanges
from ....proto.record_run import Bytes, Ints, Longs, RunColumns
from ..schemas import arrow

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

        A body that cannot be decompressed is told to REFUSE with its row, and left out; without REFUSE it raises
        CorruptRecord. Unsupported, where LZ4 or ZSTD is not installed, is raised in any case.
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
    """Return the address and port that PACKED, the bytes in a record (IPv4: as a little-endian number), stand for."""
    if isinstance(packed, int):
        packed = packed.to_bytes(_HOST_V4_BYTES, "little", signed=True)
    return str(record.Host(packed[:-4], int.from_bytes(packed[-4:], signed=True)))


_MAKERS: Final[dict[str, Callable[[_Rows], Any]]] = {
    "brokerName": lambda rows: rows.broker.rows(len(rows)),
    "topic": lambda rows: rows.text("topic"),
    "queueId": lambda rows: rows.number("queue_id"),
    "queueOffset": lambda rows: rows.number("queue_offset"),
    "physicalOffset": lambda rows: rows.number("log_offset"),
    "storeSize": _Rows.store_size,
    "storeTimestamp": lambda rows: rows.time("store_ms"),
    "bornTimestamp": lambda rows: rows.time("born_ms"),
    "bornHost": _Rows.born_host,
    "storeHost": _Rows.store_host,
    "flag": lambda rows: rows.number("flag"),
    "sysFlag": lambda rows: rows.number("sys_flag"),
    "reconsumeTimes": lambda rows: rows.number("reconsume_times"),
    "bodyCrc": lambda rows: rows.number("body_crc"),
    "preparedTransactionOffset": lambda rows: rows.number("prepared_offset"),
    "messageId": _Rows.message_id,
    "tags": lambda rows: rows.property(TAGS),
    "keys": lambda rows: rows.property(KEYS),
    "shardingKey": lambda rows: rows.property(SHARDING_KEY),
    "properties": _Rows.properties,
    "rawProperties": lambda rows: rows.text("properties"),
    "badRecord": _Rows.nothing,
    "body": _Rows.body,
}


# ---------------------------------------------------------------- columns of byte ranges


#: Places in a buffer of Arrow's have 31 bits.
_BYTES_MAX: Final = (1 << 31) - 1
#: In microseconds 64 bits reach that many milliseconds either way; a sender may have written anything.
_INSTANT_MAX_MS: Final = (1 << 63) // 1000 - 1
#: So many different names are counted as bits of one number; the sums of so many properties a record fit in 64 bits.
_BITS_MAX: Final = 40
_TOKENS: Final = 4


def binary_ranges(
    data: Bytes, starts: Longs, ends: Longs, missing: NDArray[np.bool_] | None = None
) -> pyarrow.Array:
    """Return the ranges [STARTS, ENDS) of DATA as Arrow binary values, null where MISSING."""
    return _picked(data, starts, ends, missing, arrow().binary())


def text_ranges(
    data: Bytes, starts: Longs, ends: Longs, missing: NDArray[np.bool_] | None = None
) -> pyarrow.Array:
    """Return the ranges [STARTS, ENDS) of DATA as Arrow strings, null where MISSING."""
    return as_text(_picked(data, starts, ends, missing, arrow().string()))


def _picked(
    data: Bytes, starts: Longs, ends: Longs, missing: NDArray[np.bool_] | None, kind: Any
) -> pyarrow.Array:
    pa = arrow()
    if missing is not None and missing.any():
        starts, ends = _filled(starts, missing), _filled(ends, missing)
    else:
        missing = None
    if not len(starts):
        return pa.array([], kind)
    places = np.empty(2 * len(starts), np.int64)
    places[0::2] = starts
    places[1::2] = ends
    if not are_rising(places, len(data)):
        cut = [
            None if gone else data[start:end].tobytes()
            for start, end, gone in zip(
                starts.tolist(), ends.tolist(), _flags(missing, len(starts)), strict=True
            )
        ]
        return pa.array(cut, pa.binary()).cast(kind, safe=False)
    between = pieces(data, places, kind)
    chosen = evens(len(starts))
    return between.take(pa.array(chosen, mask=missing) if missing is not None else pa.array(chosen))


def _flags(missing: NDArray[np.bool_] | None, count: int) -> list[bool]:
    flags: list[bool] = [False] * count if missing is None else missing.tolist()
    return flags


def are_rising(places: Longs, room: int) -> bool:
    """Do PLACES never fall, and lie inside ROOM bytes? Arrow itself believes whatever it is told."""
    inside = int(places[0]) >= 0 and int(places[-1]) <= room
    return inside and not bool((places[1:] < places[:-1]).any())


def pieces(data: Bytes, places: Longs, kind: Any) -> pyarrow.Array:
    """Return what lies in DATA between each of PLACES, which must rise, and the next one; nothing is copied."""
    pa = arrow()
    if len(data) > _BYTES_MAX:
        raise ValueError(f"{len(data):,} bytes: places in a buffer have 31 bits")
    return pa.Array.from_buffers(
        kind, len(places) - 1, [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(data)]
    )


def _filled(places: Longs, missing: NDArray[np.bool_]) -> Longs:
    """Return PLACES with the nearest one before in place of a MISSING one, so that they still rise."""
    return np.maximum.accumulate(np.where(missing, 0, places))


@cache
def _evens(room: int) -> Ints:
    return np.arange(0, 2 * room, 2, dtype=np.int32)


def evens(count: int) -> Ints:
    """Return 0, 2, 4, …: COUNT numbers."""
    return _evens(1 << max(13, (count - 1).bit_length()))[:count]


def as_text(strings: pyarrow.Array) -> pyarrow.Array:
    """Return STRINGS with malformed UTF-8 repaired."""
    pa = arrow()
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        values = strings.cast(pa.binary()).to_pylist()
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
        return pa.array(texts, pa.string())
    return strings


def instants(times_ms: Longs) -> pyarrow.Array:
    """Return Unix milliseconds as Arrow timestamps in µs; null where 64 bits do not hold them."""
    pa = arrow()
    kind = pa.timestamp("us", tz="UTC")
    wild = (times_ms > _INSTANT_MAX_MS) | (times_ms < -_INSTANT_MAX_MS)
    if wild.any():
        return pa.array(np.where(wild, 0, times_ms) * 1000, pa.int64(), mask=wild).cast(kind)
    micros = np.ascontiguousarray(times_ms * 1000)
    return pa.Array.from_buffers(kind, len(micros), [None, pa.py_buffer(micros)])


class ConstantColumn:
    """A column that has one text in every row; made once, and cut to length."""

    __slots__ = ("_array", "_text")

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._array: Any = None

    def rows(self, count: int) -> pyarrow.Array:
        """Return it for COUNT rows."""
        if self._array is None or len(self._array) < count:
            pa = arrow()
            self._array = pa.repeat(pa.scalar(self._text, pa.string()), count)
        return self._array[:count]


def property_map(data: Bytes, pairs: Pairs, count: int) -> pyarrow.Array:
    """Return the maps of COUNT records whose properties PAIRS stand in DATA."""
    pa = arrow()
    names, values = _names_and_values(data, pairs)
    rows = pairs.rows
    encoded = names.dictionary_encode()
    ids = encoded.indices.to_numpy()
    if _has_duplicates(rows, ids, len(encoded.dictionary), count):
        kept = _last_ones(rows, ids, len(encoded.dictionary))
        names, values, rows = names.take(pa.array(kept)), values.take(pa.array(kept)), rows[kept]
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=ends[1:])
    return pa.MapArray.from_arrays(pa.array(ends), names, values)


def _names_and_values(data: Bytes, pairs: Pairs) -> tuple[Any, Any]:
    """Return the names and the values. Of four neighbours one is a name, one its separator, one a value, one a gap."""
    pa = arrow()
    if not len(pairs):
        return pa.array([], pa.string()), pa.array([], pa.string())
    columns = (pairs.name_starts, pairs.name_ends, pairs.value_starts, pairs.value_ends)
    places = np.empty(_TOKENS * len(pairs), np.int64)
    for at, column in enumerate(columns):
        places[at::_TOKENS] = column
    if not are_rising(places, len(data)):
        names, values = columns[:2], columns[2:]
        return text_ranges(data, *names), text_ranges(data, *values)
    tokens = pieces(data, places, pa.string())
    chosen = np.arange(0, len(places), _TOKENS, dtype=np.int32)
    names, values = tokens.take(pa.array(chosen)), tokens.take(pa.array(chosen + np.int32(2)))
    return as_text(names), as_text(values)


def _has_duplicates(rows: Longs, ids: Ints, names: int, count: int) -> bool:
    """Is a name twice in one record? Then the sum of its bits is more than their union."""
    if not len(rows):
        return False
    if names > _BITS_MAX:
        return len(np.unique(rows * names + ids)) != len(rows)
    bits = np.int64(1) << ids.astype(np.int64)
    firsts = np.flatnonzero(np.diff(rows, prepend=-1))
    return bool((np.add.reduceat(bits, firsts) != np.bitwise_or.reduceat(bits, firsts)).any())


def _last_ones(rows: Longs, ids: Ints, names: int) -> Longs:
    """Return which properties are the last ones of their name in their record, in order."""
    _, backwards = np.unique((rows * names + ids)[::-1], return_index=True)
    return np.sort(len(rows) - 1 - backwards)
