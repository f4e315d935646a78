"""Counts the items of an encoded request before it is decoded.

Decoding creates an object for each item, and an empty item takes two bytes. A request of 8 MB would block the event
loop for seconds, and one of 64 MB would take a gigabyte of memory, before any check could count its items. So large
requests are scanned first, field by field, without decoding values. The scan ends at the first exceeded limit.

There are further limits: a field that is not repeated, and all unknown fields together, occur up to OCCURRENCES_MAX
times in a message, and a scan covers up to STEPS_MAX fields. Items of a field whose limit is MANY or more are counted
and not scanned. Groups, which no request here has, are refused.

Text and bytes cost one step: a request with a large body costs a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from .rpc.errors import BadRequest

#: Smaller requests are decoded at once.
WALKED_FROM_BYTES: Final = 16 * 1024
OCCURRENCES_MAX: Final = 1_024
STEPS_MAX: Final = 200_000
MANY: Final = 100_000

_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5

CheckData: TypeAlias = Callable[[bytes], None]


class _Field(NamedTuple):
    name: str
    limit: int
    #: The type of its items, if they have repeated fields themselves.
    inner: _Kind | None


@dataclass(slots=True)
class _Kind:
    """A type of message: its fields by number."""

    name: str
    fields: dict[int, _Field] = field(default_factory=dict)
    has_repeated: bool = False


def check_data_of(kind: type[Message], bounds: Mapping[str, int]) -> CheckData | None:
    """Return a check of encoded messages of KIND by BOUNDS (by type and field); None: they have no repeated fields."""
    found = _kind(cast(Descriptor, kind.DESCRIPTOR), bounds, {})
    if not found.has_repeated:
        return None

    def check(data: bytes) -> None:
        if len(data) >= WALKED_FROM_BYTES:
            _Walk(data).message(0, len(data), found)

    return check


def _kind(kind: Descriptor, bounds: Mapping[str, int], known: dict[str, _Kind]) -> _Kind:
    if kind.full_name in known:
        return known[kind.full_name]
    found = known[kind.full_name] = _Kind(kind.full_name)
    for one in kind.fields:
        limit = bounds[f"{kind.full_name}.{one.name}"] if one.is_repeated else OCCURRENCES_MAX
        inner = None
        if one.message_type is not None and not one.message_type.GetOptions().map_entry:
            inner = _kind(one.message_type, bounds, known)
        has_repeated = inner is not None and inner.has_repeated
        found.has_repeated |= bool(one.is_repeated) or has_repeated
        walked = inner if has_repeated and limit < MANY else None
        found.fields[one.number] = _Field(one.name, limit, walked)
    return found


_UNKNOWN: Final = _Field("unknown fields", OCCURRENCES_MAX, None)


class _Walk:
    """A scan through DATA. It ends at truncated data: decoding reports the error."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._steps = 0

    def message(self, at: int, end: int, kind: _Kind) -> None:
        """Count the fields of the message of KIND from AT to END; raise BadRequest if a limit is exceeded."""
        counts: dict[str, int] = {}
        try:
            while at < end:
                key, at = self._number(at)
                found = kind.fields.get(key >> 3, _UNKNOWN)
                count = counts[found.name] = counts.get(found.name, 0) + 1
                self._check(kind, found, count)
                begin, at = self._behind(key & 7, at)
                if found.inner is not None and begin:
                    self.message(begin, min(at, end), found.inner)
        except IndexError:
            return

    def _check(self, kind: _Kind, found: _Field, count: int) -> None:
        if count > found.limit:
            raise BadRequest(
                f"{kind.name}.{found.name}: {count} in one request, the limit is {found.limit}: send it in parts",
                field=found.name,
                limit=found.limit,
                value=count,
            )
        self._steps += found.limit < MANY
        if self._steps > STEPS_MAX:
            raise BadRequest(
                f"{kind.name}: more than {STEPS_MAX} fields in one request: send it in parts",
                field=found.name,
                limit=STEPS_MAX,
            )

    def _behind(self, wire_type: int, at: int) -> tuple[int, int]:
        """Return where the content of a field with a length begins (0: it has none), and where the field ends."""
        if wire_type == _SIZED:
            size, begin = self._number(at)
            return begin, begin + size
        if wire_type == _VARINT:
            return 0, self._number(at)[1]
        if wire_type in (_EIGHT_BYTES, _FOUR_BYTES):
            return 0, at + (8 if wire_type == _EIGHT_BYTES else 4)
        raise BadRequest("the request contains a group, which no request has", field="group")

    def _number(self, at: int) -> tuple[int, int]:
        """Return the varint at AT, and where it ends."""
        data = self._data
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        value = byte & 0x7F
        for shift in range(7, 70, 7):
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at + 1
        raise IndexError("a varint has no end")
