"""A run: records of one queue, one after the other, for a store.

The C core reads all batches of standard records (V1 between IPv4 hosts, no transaction), if it is there: scanned.py.
Otherwise a few standard records are read and patched one by one, because each numpy call would cost more. For many
there are columns (record_run.py). In most large runs, records differ only in body, CRC, message id and keys. Then one
record is parsed, and the others are compared with it (`UniformRecords`). Other runs are checked by columns, which find
the first error.

The store sets four fields of a record. Queue offset (20) and log offset (28) are adjacent, and so are store time (56)
and store host (64; both 12 later after an IPv6 born host). So two 16-byte assignments patch a complete run.

A run from a client is checked. The first error is reported with the index of the record, the field and its value.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from .byte_ranges import HASHED_WIDTH_MAX, windows
from .errors import InvalidRecord, MessageTooLarge
from .java_hash import java_hash
from .property_ranges import PropertyRanges, pairs_of
from .record import (
    CRC_AT,
    CRC_MASK,
    HOST_V6_EXTRA,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    SYS_BORN_V6,
    Buffer,
    Host,
    topic_field,
)
from .record_run import (
    HEAD_SIZE,
    LEAST_SIZE,
    Bytes,
    Ints,
    Longs,
    RunColumns,
    body_crcs,
    crc_mismatches,
    even_crcs,
    parse_run,
    starts_of,
    topic_is,
)
from .scanned import UNUSUAL, ScannedRecords, scan
from .topics import MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX, RECORD_SIZE_MAX, TOPIC_LENGTH_MAX

#: More records are cheaper to read by columns.
FEW_MAX: Final = 16
#: From this many records of small runs on, it is cheaper to patch all runs by columns.
_JOINED_LEAST: Final = 48
#: The maximum number of records that are compared with one of them; for more, columns cost hardly more.
_ALIKE_MAX: Final = 1 << 13
#: The maximum size of their topics and property strings, which are copied.
_ALIKE_BYTES_MAX: Final = 1 << 20

#: Total size, magic, body CRC, queue id, sysFlag, body length.
_HEAD: Final = struct.Struct(">iiii20xi44xi")
#: Total size, magic, queue id, queue offset, log offset, sysFlag, store time, body length: of a record in the log.
_STORED_HEAD: Final = struct.Struct(">ii4xi4xqqi16xq20xi")
_SHORT: Final = struct.Struct(">h")
_PAIR: Final = struct.Struct(">qq")
_STAMP: Final = struct.Struct(">q4si")
_OFFSETS: Final = np.dtype([("queue_offset", ">i8"), ("log_offset", ">i8")])
_SIXTEEN: Final = f"V{_STAMP.size}"
_NOWHERE: Final[Longs] = np.empty(0, np.int64)
#: The fields of a head that may differ between records.
_OWN_FIELDS: Final = np.dtype(
    {
        "names": ["total_size", "body_crc", "body_size"],
        "formats": [">i4", ">i4", ">i4"],
        "offsets": [0, CRC_AT, HEAD_SIZE - 4],
        "itemsize": HEAD_SIZE,
    }
)
#: The properties whose values may differ.
_OWN_NAMES: Final = (b"UNIQ_KEY", b"KEYS")
#: These values must be ASCII without spaces and without characters that separate.
_PLAIN_FIRST: Final = np.uint8(0x21)
_PLAIN_COUNT: Final = np.uint8(0x7F - 0x21)
_HEAD_BYTES: Final = f"V{HEAD_SIZE}"
#: In many records of up to this size in all, a search for bytes is faster than finding the properties.
_SEARCHED_MAX: Final = 16 * 1024


class RecordPlace(NamedTuple):
    """The start and size of a record in its run, and of its property string, in bytes."""

    start: int
    size: int
    properties_start: int
    properties_size: int


class UniformRecords:
    """Many standard records that resemble each other, except perhaps the first one.

    The others differ from the second in body, CRC and sizes, and in the values of `own`: those are ASCII without spaces
    and of one size per property. The first record of an idempotent producer has one more property.

    starts, sizes: of all records;  size_range: the smallest and the largest size;  strings: the property strings of the
    first and the second;  first, second: the properties in these;  own: by name, one row of bytes for each record from
    the second on.
    """

    __slots__ = ("first", "own", "second", "size_range", "sizes", "starts", "strings")

    def __init__(
        self,
        starts: Longs,
        sizes: Longs,
        size_range: tuple[int, int],
        strings: tuple[bytes, bytes],
        own: dict[bytes, Bytes],
    ) -> None:
        self.starts = starts
        self.sizes = sizes
        self.size_range = size_range
        self.strings = strings
        self.first, self.second = map(_pairs, strings)
        self.own = own

    def first_string(self, _records: Buffer) -> bytes:
        """Return the property string of the first record."""
        return self.strings[0]

    def may_have(self, hints: Sequence[bytes]) -> bool:
        """May a record have a property whose name contains one of HINTS? False is certain."""
        return any(hint in string for string in self.strings for hint in hints)

    def stamp(self, view: memoryview, first: int, log_offset: int, stamped: bytes) -> None:
        """Set the store's fields in VIEW, a copy of the records."""
        numbers = np.arange(first, first + len(self.starts))
        _patch_at(view, self.starts, self.starts, numbers, self.starts + log_offset, stamped)


class Run:
    """RECORDS for QUEUE of TOPIC, without gaps and without the store's own fields: see `check_run`, `of`, `of_plain`.

    COLUMNS describe them; or PLACES, if they are a few standard records, or ALIKE, if they are many, or if the C core
    has read them. With WHOLE the run is atomic: it is never divided between two log files. IS_LITE: messages of lite
    topics, which the store numbers. `first` (queue offset), `log_offsets`, `end_offset` and `store_ms` are of the last
    patch.
    """

    __slots__ = (
        "_alike",
        "_columns",
        "_places",
        "_properties",
        "end_offset",
        "first",
        "is_lite",
        "log_offsets",
        "queue",
        "records",
        "store_ms",
        "topic",
        "whole",
    )

    def __init__(
        self,
        *,
        topic: str,
        queue: int,
        records: Buffer,
        columns: RunColumns | None = None,
        places: Sequence[RecordPlace] | None = None,
        alike: UniformRecords | ScannedRecords | None = None,
        whole: bool = False,
    ) -> None:
        self.topic = topic
        self.queue = queue
        self.records = records
        self.whole = whole
        self.is_lite = False
        self._columns = columns
        self._places = places
        self._alike = alike
        self._properties: PropertyRanges | None = None
        self.first = 0
        self.log_offsets: Longs = _NOWHERE
        self.end_offset = 0
        self.store_ms = 0

    def mark_lite(self) -> None:
        """Note that it has messages of lite topics, which the store numbers."""
        self.is_lite = True

    @classmethod
    def of(cls, topic: str, queue: int, records: Sequence[Buffer]) -> Self:
        """Return RECORDS, which were encoded or copied for QUEUE of TOPIC, as a run; they are not checked."""
        data = b"".join(records)
        columns = parse_run(data, starts_of([len(record) for record in records]))
        return cls(topic=topic, queue=queue, records=data, columns=columns)

    @classmethod
    def of_plain(
        cls, topic: str, queue: int, records: Sequence[bytes], properties_sizes: Sequence[int]
    ) -> Self:
        """Return RECORDS made by `write_record`, between IPv4 hosts, with properties of PROPERTIES_SIZES."""
        if len(records) > FEW_MAX or len(topic.encode()) > TOPIC_LENGTH_MAX:
            return cls.of(topic, queue, records)
        places = []
        start = 0
        for record, size in zip(records, properties_sizes, strict=True):
            end = start + len(record)
            places.append(RecordPlace(start, len(record), end - size, size))
            start = end
        data = records[0] if len(records) == 1 else b"".join(records)
        return cls(topic=topic, queue=queue, records=data, places=places)

    def __len__(self) -> int:
        if self._places is not None:
            return len(self._places)
        return len(self.columns if self._alike is None else self._alike.sizes)

    @property
    def is_small(self) -> bool:
        """Is it processed record by record? Then all records are standard."""
        return self._places is not None

    @property
    def is_standard(self) -> bool:
        """Are all records known to be V1 between IPv4 hosts, without a transaction or a batch?"""
        return self._places is not None or self._alike is not None

    @property
    def columns(self) -> RunColumns:
        """The fields of the records, one array each; the store's own as `patch` set them."""
        if self._columns is None:
            self._columns = parse_run(self.records, starts_of(self.sizes))
            if len(self.log_offsets):
                self._fill_columns(self.log_offsets)
        return self._columns

    @property
    def properties(self) -> PropertyRanges:
        """The ranges of the properties of all records."""
        if self._properties is None:
            self._properties = PropertyRanges(self.records, self.columns)
        return self._properties

    @property
    def sizes(self) -> Longs:
        """The size of each record."""
        if self._alike is not None:
            return self._alike.sizes
        if self._places is None:
            return self.columns.sizes
        return np.array([place.size for place in self._places], np.int64)

    @property
    def size_range(self) -> tuple[int, int]:
        """The sizes of its smallest and its largest record."""
        places = self._places
        if self._alike is not None:
            return self._alike.size_range
        if places is None:
            sizes = self.columns.sizes
            return int(sizes.min()), int(sizes.max())
        if len(places) == 1:
            return places[0].size, places[0].size
        found = [place.size for place in places]
        return min(found), max(found)

    def property_string(self, row: int) -> bytes:
        """Return the property string of record ROW."""
        if self._places is not None:
            _, _, start, size = self._places[row]
        elif self._alike is not None and row == 0:
            return self._alike.first_string(self.records)
        else:
            start, size = self.columns.properties_place(row)
        return bytes(self.records[start : start + size])

    def may_have(self, hints: Sequence[bytes]) -> bool:
        """May a record have a property whose name contains one of HINTS? False is certain."""
        if self._alike is not None:
            return self._alike.may_have(hints)
        if self._places is not None:
            strings = map(self.property_string, range(len(self._places)))
            return any(hint in string for string in strings for hint in hints)
        if len(self.records) > _SEARCHED_MAX:
            return True
        data = bytes(self.records)
        return any(hint in data for hint in hints)

    def properties_if_small(self) -> list[dict[bytes, bytes]] | None:
        """Return the properties of each record, as `PropertyRanges.find` does; None if there are many records."""
        if self._places is None:
            return None
        return [_pairs(self.property_string(row)) for row in range(len(self._places))]

    @property
    def alike(self) -> UniformRecords | None:
        """Its records, if they are many that resemble each other, except perhaps the first."""
        return self._alike if isinstance(self._alike, UniformRecords) else None

    @property
    def scanned(self) -> ScannedRecords | None:
        """Its records, if the C core has read them."""
        return self._alike if isinstance(self._alike, ScannedRecords) else None

    @property
    def sizes_if_small(self) -> list[int]:
        """The size of each record; empty if there are many records."""
        return [place.size for place in self._places or ()]

    def patch(self, view: memoryview, first: int, log_offset: int, stamped: bytes) -> None:
        """Set the store's fields of all records in VIEW, a copy of them, and in the columns.

        They get queue offsets from FIRST on, and log offsets from LOG_OFFSET on, without gaps. STAMPED: see `stamp`.
        """
        self.first, self.end_offset = first, log_offset + len(self.records)
        (self.store_ms, _, _) = _STAMP.unpack(stamped)
        if self._alike is not None:
            self.log_offsets = self._alike.starts + log_offset
            self._alike.stamp(view, first, log_offset, stamped)
            if self._columns is not None:
                self._fill_columns(self.log_offsets)
            return
        if self._places is None:
            self._fill_columns(self.columns.starts + log_offset)
            _patch_columns(view, self.columns, stamped)
            return
        log_offsets = []
        number = first
        for start, _, _, _ in self._places:
            offset = log_offset + start
            log_offsets.append(offset)
            _PAIR.pack_into(view, start + QUEUE_OFFSET_AT, number, offset)
            at = start + STORE_TIMESTAMP_AT
            view[at : at + _STAMP.size] = stamped
            number += 1
        self.log_offsets = np.array(log_offsets, np.int64)
        if self._columns is not None:
            self._fill_columns(self.log_offsets)

    def _fill_columns(self, log_offsets: Longs) -> None:
        columns, count = self.columns, len(log_offsets)
        columns.queue_offset = np.arange(self.first, self.first + count)
        columns.log_offset = self.log_offsets = log_offsets
        columns.store_ms = np.full(count, self.store_ms, np.int64)

    def part(self, begin: int, end: int) -> Run:
        """Return the records from BEGIN up to END as a separate run."""
        sizes = self.sizes
        start = int(sizes[:begin].sum())
        records = memoryview(self.records)[start : start + int(sizes[begin:end].sum())]
        columns = parse_run(records, starts_of(sizes[begin:end]))
        return Run(topic=self.topic, queue=self.queue, records=records, columns=columns)


def stamp_all(
    runs: Sequence[Run], view: memoryview, firsts: Sequence[int], log_offset: int, stamped: bytes
) -> RunColumns | None:
    """Patch RUNS, of which VIEW is a copy without gaps; each gets queue offsets from its entry in FIRSTS on.

    Return columns of all of them, if it was cheaper to patch all by columns; None if they were patched one by one.
    """
    if len(runs) > 1 and _are_joined(runs):
        return patch_together(runs, view, firsts, log_offset, stamped)
    at = 0
    for run, first in zip(runs, firsts, strict=True):
        end = at + len(run.records)
        run.patch(view[at:end], first, log_offset + at, stamped)
        at = end
    return None


def _are_joined(runs: Sequence[Run]) -> bool:
    """Is it cheaper to process the records of RUNS together?"""
    few = sum([len(run) for run in runs if run.is_small])
    return few >= _JOINED_LEAST or not all([run.is_standard for run in runs])


def patch_together(
    runs: Sequence[Run], view: memoryview, firsts: Sequence[int], log_offset: int, stamped: bytes
) -> RunColumns:
    """Patch RUNS, of which VIEW is a copy without gaps, by columns of all records; return these.

    Each run gets queue offsets from its entry in FIRSTS on. The columns of single runs are not changed.
    """
    sizes = np.concatenate([run.sizes for run in runs])
    columns = parse_run(view, starts_of(sizes))
    numbers = [np.arange(at, at + len(run)) for run, at in zip(runs, firsts, strict=True)]
    columns.queue_offset = np.concatenate(numbers)
    columns.log_offset = log_offsets = columns.starts + log_offset
    (store_ms, _, _) = _STAMP.unpack(stamped)
    columns.store_ms = np.full(len(sizes), store_ms, np.int64)
    _patch_columns(view, columns, stamped)
    row, end = 0, log_offset
    for run, first in zip(runs, firsts, strict=True):
        end += len(run.records)
        run.first, run.end_offset, run.store_ms = first, end, store_ms
        run.log_offsets = log_offsets[row : row + len(run)]
        row += len(run)
    return columns


def stamp(store_timestamp_ms: int, host: Host) -> bytes:
    """Return the 16 bytes of store time and store host."""
    return _STAMP.pack(store_timestamp_ms, host.address, host.port)


def _patch_columns(view: memoryview, columns: RunColumns, stamped: bytes) -> None:
    """Set the store's fields of the records in VIEW, and in COLUMNS, which describe them."""
    data = np.frombuffer(view, np.uint8)
    count, starts, sizes = len(columns), columns.starts, columns.sizes
    born_v6 = columns.sys_flag & SYS_BORN_V6
    any_v6 = bool(born_v6.any())
    of_one_size = count > 1 and bool((sizes == sizes[0]).all())
    if of_one_size and (not any_v6 or born_v6.all()):
        size, stamp_at = int(sizes[0]), STORE_TIMESTAMP_AT + HOST_V6_EXTRA * any_v6
        offsets: NDArray[np.void] = np.ndarray(
            (count,), _OFFSETS, data, offset=QUEUE_OFFSET_AT, strides=(size,)
        )
        offsets["queue_offset"] = columns.queue_offset
        offsets["log_offset"] = columns.log_offset
        stamps = np.ndarray(
            (count, _STAMP.size), np.uint8, data, offset=stamp_at, strides=(size, 1)
        )
        stamps[:] = np.frombuffer(stamped, np.uint8)
        return
    behind_hosts = starts + np.where(born_v6, HOST_V6_EXTRA, 0) if any_v6 else starts
    _patch_at(view, starts, behind_hosts, columns.queue_offset, columns.log_offset, stamped)


def _patch_at(
    view: memoryview,
    starts: Longs,
    behind_hosts: Longs,
    queue_offsets: Longs,
    log_offsets: Longs,
    stamped: bytes,
) -> None:
    """Set the store's fields of the records at STARTS in VIEW. BEHIND_HOSTS: offset of the fields after the hosts."""
    # As plain bytes: a structured array would be written field by field.
    pairs = np.empty(len(starts), _OFFSETS)
    pairs["queue_offset"] = queue_offsets
    pairs["log_offset"] = log_offsets
    anywhere = np.ndarray((len(view) - _STAMP.size + 1,), _SIXTEEN, view, strides=(1,))
    anywhere[starts + QUEUE_OFFSET_AT] = pairs.view(_SIXTEEN)
    anywhere[behind_hosts + STORE_TIMESTAMP_AT] = np.frombuffer(stamped, _SIXTEEN)


def tags_code(properties: Mapping[bytes, bytes]) -> int:
    """Return the tags code of a record with these PROPERTIES: the Java hash of TAGS, 0 without tags."""
    tags = properties.get(b"TAGS")
    return 0 if tags is None else java_hash(tags.decode("utf-8", "replace"))


def _pairs(string: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for pair in string.split(b"\x02"):
        name, separator, value = pair.partition(b"\x01")
        if separator and name and value:
            found[name] = value
    return found


def check_run(data: bytes, sizes: Sequence[int], topic: str, queue: int) -> Run:
    """Return the run that a client sent for TOPIC and QUEUE, or raise an error.

    Raises InvalidRecord (with field, index and value) or MessageTooLarge. Fields that the broker sets are not checked:
    they are overwritten.
    """
    # The Python code reads a single record faster.
    scanned = scan(data, sizes, topic, queue) if len(sizes) > 1 else None
    if scanned is not None:
        return Run(topic=topic, queue=queue, records=data, alike=scanned)
    sizes = list(sizes)
    places = _read_few(data, sizes, topic, queue)
    if places is not None:
        return Run(topic=topic, queue=queue, records=data, places=places)
    alike = _read_alike(data, sizes, topic, queue)
    if alike is not None:
        return Run(topic=topic, queue=queue, records=data, alike=alike)
    columns = _check_columns(data, sizes, topic, queue)
    return Run(topic=topic, queue=queue, records=data, columns=columns)


def _read_few(
    data: bytes, sizes: Sequence[int], topic: str, queue: int
) -> list[RecordPlace] | None:
    """Return the places of the records of SIZES in DATA, for TOPIC and QUEUE.

    None: there are none or too many, or one is invalid or not standard.
    """
    if not 0 < len(sizes) <= FEW_MAX or not _make_up(sizes, data):
        return None
    magic, topic_part = topic_field(topic)
    if magic != MAGIC_V1:
        return None
    places = []
    start = 0
    for size in sizes:
        place = _read_usual(data, start, size, topic_part, queue)
        if place is None:
            return None
        places.append(place)
        start += size
    return places


def _make_up(sizes: Sequence[int], data: bytes) -> bool:
    """Can DATA be records of SIZES, of which there is at least one?"""
    return min(sizes) >= LEAST_SIZE and sum(sizes) == len(data)


def _read_usual(
    data: bytes, start: int, size: int, topic_part: bytes, queue: int
) -> RecordPlace | None:
    """Return the place of the record of SIZE bytes at START, inside DATA, if it is valid and standard."""
    total_size, magic, crc, queue_id, sys_flag, body_size = _HEAD.unpack_from(data, start)
    if (total_size, magic, queue_id) != (size, MAGIC_V1, queue) or sys_flag & UNUSUAL:
        return None
    if not 0 < body_size <= MESSAGE_SIZE_MAX or size > RECORD_SIZE_MAX:
        return None
    body_start, end = start + _HEAD.size, start + size
    topic_start = body_start + body_size
    properties_start = topic_start + len(topic_part) + _SHORT.size
    if properties_start > end or not data.startswith(topic_part, topic_start):
        return None
    (properties_size,) = _SHORT.unpack_from(data, properties_start - _SHORT.size)
    if properties_start + properties_size != end:
        return None
    if zlib.crc32(memoryview(data)[body_start:topic_start]) & CRC_MASK != crc:
        return None
    return RecordPlace(start, size, properties_start, properties_size)


def _read_alike(data: bytes, sizes: Sequence[int], topic: str, queue: int) -> UniformRecords | None:
    """Return the records of SIZES in DATA, for TOPIC and QUEUE, if they are valid, standard, and alike."""
    count = len(sizes)
    if not 1 < count <= _ALIKE_MAX or not _make_up(sizes, data):
        return None
    magic, topic_part = topic_field(topic)
    first = _read_usual(data, 0, sizes[0], topic_part, queue) if magic == MAGIC_V1 else None
    second = first and _read_usual(data, sizes[0], sizes[1], topic_part, queue)
    if first is None or second is None:
        return None
    tail_size = len(topic_part) + _SHORT.size + second.properties_size
    others = sizes[1:]
    least, most = min(others) - HEAD_SIZE - tail_size, max(others)
    if least <= 0 or most - HEAD_SIZE - tail_size > MESSAGE_SIZE_MAX or most > RECORD_SIZE_MAX:
        return None
    if count * tail_size > _ALIKE_BYTES_MAX:
        return None
    all_sizes = np.array(sizes, np.int64)
    ends = all_sizes.cumsum()
    starts = ends - all_sizes
    if not _heads_alike(data, starts[1:], all_sizes[1:], tail_size, even=least == most):
        return None
    tails = windows(np.frombuffer(data, np.uint8), ends[1:] - tail_size, tail_size)
    strings = _string_at(data, first), _string_at(data, second)
    own = _own_values(tails, strings[1])
    if own is None:
        return None
    size_range = min(sizes[0], min(others)), max(sizes[0], most)
    return UniformRecords(starts, all_sizes, size_range, strings, own)


def _string_at(data: bytes, place: RecordPlace) -> bytes:
    return data[place.properties_start : place.properties_start + place.properties_size]


def _heads_alike(data: bytes, starts: Longs, sizes: Longs, tail_size: int, *, even: bool) -> bool:
    """Do the heads of the records at STARTS in DATA match SIZES and bodies, and do they otherwise equal the first one?

    TAIL_SIZE is the size of the part after each body; EVEN: all records have one size. The store's own fields may
    differ in records that were stored before; those are processed in another way.
    """
    start, count = int(starts[0]), len(starts)
    wanted = np.empty(count, _OWN_FIELDS)
    wanted.view(_HEAD_BYTES)[:] = np.void(data[start : start + HEAD_SIZE])
    if even:
        size = int(sizes[0])
        crcs = even_crcs(data, start + HEAD_SIZE, size - HEAD_SIZE - tail_size, size, count)
    else:
        body_sizes = sizes - (HEAD_SIZE + tail_size)
        wanted["total_size"] = sizes
        wanted["body_size"] = body_sizes
        crcs = body_crcs(data, starts + HEAD_SIZE, body_sizes)
    wanted["body_crc"] = crcs
    heads = windows(np.frombuffer(data, np.uint8), starts, HEAD_SIZE)
    return heads.tobytes() == wanted.tobytes()


def _own_values(tails: Bytes, string: bytes) -> dict[bytes, Bytes] | None:
    """Return the values of the properties that differ between records, by name.

    TAILS are the parts after the bodies, one row each; the first ends with the property STRING. None: something else
    differs, or a value is not ASCII without spaces.
    """
    width = tails.shape[1]
    at = width - len(string)
    fixed = np.full(width, 0xFF, np.uint8)
    own: dict[bytes, Bytes] = {}
    for name, start, size in pairs_of(string):
        if name in _OWN_NAMES:
            values = tails[:, at + start : at + start + size]
            fixed[at + start : at + start + size] = 0
            # Wraps below the first.
            is_plain = size <= HASHED_WIDTH_MAX and bool(
                (values - _PLAIN_FIRST < _PLAIN_COUNT).all()
            )
            if name in own or not is_plain:
                return None
            own[name] = values
    odd = tails ^ tails[0]
    odd &= fixed
    return None if odd.any() else own


def stored_runs(data: bytes, log_offset: int) -> list[Run] | None:
    """Return the records of DATA, the bytes at LOG_OFFSET of a log, as runs in their order.

    None: there are none or many, one is invalid or not standard, or DATA does not end with a record.
    """
    found: list[_Stored] = []
    start = 0
    while start < len(data):
        record = _read_stored(data, start, log_offset) if len(found) < FEW_MAX else None
        if record is None:
            return None
        found.append(record)
        start += record.place.size
    runs = []
    row = 0
    for (topic, queue, _, store_ms), records in groupby(enumerate(found), _of_one_run):
        places = [record.place for _, record in records]
        run = Run(topic=topic, queue=queue, records=data, places=places)
        run.first, run.store_ms = found[row].queue_offset, store_ms
        run.log_offsets = np.array([log_offset + place.start for place in places], np.int64)
        run.end_offset = log_offset + places[-1].start + places[-1].size
        runs.append(run)
        row += len(places)
    return runs or None


class _Stored(NamedTuple):
    """The fields of a record in the log."""

    topic: str
    queue: int
    queue_offset: int
    store_ms: int
    place: RecordPlace


def _of_one_run(numbered: tuple[int, _Stored]) -> tuple[str, int, int, int]:
    """Return the key that records of one run share. NUMBERED is a record and its index in the log."""
    row, record = numbered
    return record.topic, record.queue, record.queue_offset - row, record.store_ms


def _read_stored(data: bytes, start: int, log_offset: int) -> _Stored | None:
    """Return the record at START of DATA, the bytes at LOG_OFFSET, if it is standard."""
    body_start = start + _STORED_HEAD.size
    if body_start > len(data):
        return None
    size, magic, queue, queue_offset, offset, sys_flag, store_ms, body_size = (
        _STORED_HEAD.unpack_from(data, start)
    )
    topic_start, end = body_start + body_size, start + size
    if magic != MAGIC_V1 or sys_flag & UNUSUAL or offset != log_offset + start:
        return None
    if body_size < 0 or not topic_start < end <= len(data):
        return None
    topic_end = topic_start + 1 + data[topic_start]
    properties_start = topic_end + _SHORT.size
    if properties_start > end:
        return None
    (properties_size,) = _SHORT.unpack_from(data, topic_end)
    if properties_start + properties_size != end:
        return None
    topic = data[topic_start + 1 : topic_end].decode("utf-8", "replace")
    place = RecordPlace(start, size, properties_start, properties_size)
    return _Stored(topic, queue, queue_offset, store_ms, place)


def _check_columns(data: bytes, sizes: Sequence[int], topic: str, queue: int) -> RunColumns:
    wanted_sizes = np.asarray(sizes, np.int64)
    total = int(wanted_sizes.sum())
    if not len(sizes) or int(wanted_sizes.min()) < LEAST_SIZE or total != len(data):
        raise InvalidRecord(
            f"sizes: {len(sizes)} records with {total} bytes in all, at least {LEAST_SIZE} each, "
            f"but records has {len(data)} bytes",
            field="sizes",
        )
    columns = parse_run(data, starts_of(wanted_sizes))
    magic_ok = (columns.magic == MAGIC_V1) | (columns.magic == MAGIC_V2)
    _require(magic_ok, "magicCode", columns.magic, "is neither DAA320A7 nor DAA320AB")
    _require(columns.sizes == wanted_sizes, "totalSize", columns.sizes, "is not the size given")
    _require(columns.body_size > 0, "bodyLength", columns.body_size, "but a body is never empty")
    _require_small(columns.body_size, "body", MESSAGE_SIZE_MAX)
    _require_small(columns.sizes, "record", RECORD_SIZE_MAX)
    _require(
        columns.properties_size >= 0,
        "propertiesLength",
        columns.properties_size,
        f"must be between 0 and {PROPERTIES_SIZE_MAX}",
    )
    _require(columns.well_formed, "totalSize", columns.sizes, "contradicts the record's lengths")
    _require(columns.queue_id == queue, "queueId", columns.queue_id, f"but the run is for {queue}")
    _require(topic_is(data, columns, topic), "topic", columns.topic_size, f"is not {topic!r}")
    crc_ok = ~crc_mismatches(data, columns)
    _require(crc_ok, "bodyCRC", columns.body_crc, "does not match the body")
    return columns


def _require(
    good: NDArray[np.bool_], name: str, values: NDArray[np.int64] | Ints, sentence: str
) -> None:
    if good.all():
        return
    index = int(good.argmin())
    value = int(values[index])
    raise InvalidRecord(
        f"record {index} of the run: {name} {value} {sentence}",
        field=name,
        index=index,
        value=value,
    )


def _require_small(sizes: Longs, name: str, limit: int) -> None:
    index = int(sizes.argmax())
    if sizes[index] > limit:
        raise MessageTooLarge(
            f"record {index} of the run: {name} has {sizes[index]} bytes, the limit is {limit}",
            field=name,
            index=index,
            limit=limit,
            value=int(sizes[index]),
        )
