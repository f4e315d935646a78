"""The journal of deliveries: the changes of the tables that it keeps, and their bytes, in frames with a CRC. Pure.

Each change is a record, all of them the tables:

    InFlight   the message at an offset is not finished, and this is how it stands: replaces what was said before
    Finished   the message at an offset is finished: acknowledged, dead, or gone
    Looked     everything below an offset was looked at: what is not in flight there is finished
    Moved      somebody put the group at an offset: nothing below it is looked at, nothing at all is in flight
    Forgotten  the group (topic ""), the topic (group ""), or the group's part of the topic is gone

A record that is lost, as the last ones are in a power cut, costs deliveries that come twice, and never a message.

A file is a head and then frames, one behind the other; zeros behind the last one. Everything is big-endian.

    head    4s "PMPJ"   u16 version (1)   u16 kind: 1 journal, 2 snapshot   u64 number of the file
    frame   4s "PMpf"   u32 size of its changes   u32 its number in the file, from 1 on
            u32 CRC-32 of size, number and changes   then its changes

What was written at once is one frame: it is there as a whole or not at all. A change begins with its kind, a byte:

     1 key        u32 queue   u16 and u16 lengths   group and topic: what the changes behind it, in this frame, are of
     2 owner      u16 and u16 lengths   client id, attempt's id: whose the deliveries behind it are, until the next key
     3 in flight  i64 offset   i32 attempt   i64 until, ms   u64 serial   u8 does it renew?
     4 finished   i64 offset
     5 buried     i64 offset   i64 log offset: finished, if its dead letter lies there
     6 looked     i64 from   i64 offset: [from, offset) was looked at; from -1: everything below offset was
     7 moved      i64 offset
     8 forgotten  u16 and u16 lengths   group and topic, "" for every one
     9 log        i64 log end   u32 CRC-32 of what lies before it, TAIL_BYTES at most: by which the log is known again
    10 end        of a snapshot: it is complete; of a journal: the broker stopped cleanly
    11 clock      i64 instant   i64 Unix ms: an instant as the untils are, and what the wall clock showed at it

The froms make a chain for each key: where a frame was lost, the next one that looked on says so.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol, TypeAlias

from ...proto.errors import PocketMQError

VERSION: Final = 1
JOURNAL: Final = 1
SNAPSHOT: Final = 2

_HEAD: Final = struct.Struct(">4sHHQ")
_HEAD_MAGIC: Final = b"PMPJ"
_FRAME: Final = struct.Struct(">4sIII")
_FRAME_MAGIC: Final = b"PMpf"
_GUARDED: Final = struct.Struct(">II")
HEAD_SIZE: Final = _HEAD.size
FRAME_SIZE: Final = _FRAME.size

_KEY, _OWNER, _IN_FLIGHT, _FINISHED, _BURIED, _LOOKED, _MOVED, _FORGOTTEN, _LOG, _END, _CLOCK = (
    range(1, 12)
)
_KEY_HEAD: Final = struct.Struct(">BIHH")
_OWNER_HEAD: Final = struct.Struct(">BHH")
_IN_FLIGHT_FORM: Final = struct.Struct(">BqiqQ?")
_OFFSET_FORM: Final = struct.Struct(">Bq")
_PAIR_FORM: Final = struct.Struct(">Bqq")
_FORGOTTEN_HEAD: Final = struct.Struct(">BHH")
_LOG_FORM: Final = struct.Struct(">BqI")
_END_FORM: Final = bytes((_END,))
#: Encoded keys that are kept.
_KEYS_MAX: Final = 10_000
#: No client id, no attempt's id.
_NOBODY: Final = ("", "")
#: From: everything below.
_ALL: Final = -1


# --- changes


class PopKey(NamedTuple):
    """A queue of a topic, as a group has it."""

    group: str
    topic: str
    queue: int


class ClockMark(NamedTuple):
    """Once the process that keeps changes was at NOW_MS, the wall clock showed UNIX_MS."""

    now_ms: int
    unix_ms: int


class InFlight(NamedTuple):
    """The message at OFFSET was delivered ATTEMPT times, last as delivery SERIAL, and is OWNER's until UNTIL_MS.

    That is an instant of the process that says so. It comes again then, at once for an UNTIL_MS that has passed;
    RENEWS: not before its owner is gone. ATTEMPT 0: it was looked at, and not delivered yet. ATTEMPT_ID is that of the
    receive that got it.
    """

    key: PopKey
    offset: int
    attempt: int
    until_ms: int
    owner: str
    serial: int
    renews: bool
    attempt_id: str = ""


class Finished(NamedTuple):
    """The message at OFFSET is finished; with a COPY_AT if its dead letter lies there in the log."""

    key: PopKey
    offset: int
    copy_at: int = 0


class Looked(NamedTuple):
    """Everything below OFFSET was looked at."""

    key: PopKey
    offset: int


class Moved(NamedTuple):
    """The group begins anew, at OFFSET."""

    key: PopKey
    offset: int


class Forgotten(NamedTuple):
    """Nothing of GROUP and TOPIC is in flight, nor known, any more; "" is every one."""

    group: str
    topic: str


Change: TypeAlias = InFlight | Finished | Looked | Moved | Forgotten

#: Told of None, or of the error that keeps what was noted from being safe.
Safe: TypeAlias = Callable[[PocketMQError | None], None]


class FoundQueue:
    """What changes say of one queue."""

    __slots__ = ("in_flight", "looked")

    def __init__(self) -> None:
        self.looked = 0
        self.in_flight: dict[int, InFlight] = {}


class FoundDeliveries:
    """What a row of changes comes to. Pure."""

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self.queues: dict[PopKey, FoundQueue] = {}
        #: What the clocks showed when the last of it was kept; None: nobody noted that.
        self.mark: ClockMark | None = None
        for change in changes:
            self.apply(change)

    def apply(self, change: Change | ClockMark) -> None:
        """Take in CHANGE, which is later than all before it."""
        if isinstance(change, ClockMark):
            self.mark = change
            return
        if isinstance(change, Forgotten):
            self._forget(change)
            return
        queue = self.queues.get(change.key)
        if queue is None:
            queue = self.queues[change.key] = FoundQueue()
        if isinstance(change, InFlight):
            queue.in_flight[change.offset] = change
        elif isinstance(change, Finished):
            queue.in_flight.pop(change.offset, None)
        else:
            queue.looked = change.offset
            if isinstance(change, Moved):
                queue.in_flight.clear()

    def rebase(self, instant: Callable[[int], int]) -> None:
        """Have untils be the instants of this process that INSTANT returns for them."""
        for queue in self.queues.values():
            for offset, one in queue.in_flight.items():
                queue.in_flight[offset] = one._replace(until_ms=instant(one.until_ms))

    def _forget(self, change: Forgotten) -> None:
        for key in list(self.queues):
            if change.group in ("", key.group) and change.topic in ("", key.topic):
                del self.queues[key]


class PopJournal(Protocol):
    """Keeps changes over a restart. The event loop owns it."""

    def note(self, change: Change) -> None:
        """Keep CHANGE, soon; in the order of the calls."""
        ...

    def write(self) -> None:
        """Have what was noted outlive this process, now."""
        ...

    def when_safe(self, done: Safe) -> None:
        """Call DONE once what was noted is as safe as the store's setting promises, or with the error."""
        ...

    def replay(self) -> FoundDeliveries:
        """Return what was kept before this start."""
        ...

    def start(self, everything: Callable[[], Iterator[Change]]) -> None:
        """Begin to keep; EVERYTHING returns the changes that make the tables as they are, whenever it is called."""
        ...

    def close(self) -> None:
        """Keep nothing any more; what was noted is kept."""
        ...


# --- frames


class LookedSpan(NamedTuple):
    """Everything in [START, OFFSET) was looked at; START -1: everything below OFFSET."""

    key: PopKey
    start: int
    offset: int


class LogMark(NamedTuple):
    """The log reached to END; TAIL is the CRC of what lay before it."""

    end: int
    tail: int


class JournalEnd(NamedTuple):
    """Nothing follows."""


#: What a frame may say besides changes.
Said: TypeAlias = (
    InFlight | Finished | LookedSpan | Moved | Forgotten | LogMark | ClockMark | JournalEnd
)


def head(kind: int, number: int) -> bytes:
    """Return the head of file NUMBER."""
    return _HEAD.pack(_HEAD_MAGIC, VERSION, kind, number)


def is_readable(data: bytes) -> bool:
    """Does DATA begin as a file that this version reads?"""
    return len(data) >= HEAD_SIZE and _HEAD.unpack_from(data)[:2] == (_HEAD_MAGIC, VERSION)


def frame(number: int, changes: bytes) -> bytes:
    """Return frame NUMBER of its file, of the encoded CHANGES."""
    guarded = _GUARDED.pack(len(changes), number)
    crc = zlib.crc32(changes, zlib.crc32(guarded))
    return _FRAME.pack(_FRAME_MAGIC, len(changes), number, crc) + changes


class JournalDamage(NamedTuple):
    """BYTES that are no frame, at AT; TORN: nothing follows them. LOST: how many frames are missing with them."""

    at: int
    bytes: int
    torn: bool
    lost: int


def frames(data: bytes, damage: list[JournalDamage]) -> Iterator[bytes]:
    """Yield the changes of each sound frame of the file DATA; what lies between them is added to DAMAGE."""
    at, count = HEAD_SIZE, 0
    while at < len(data):
        size = _sound(data, at)
        if size is not None:
            count = int(_FRAME.unpack_from(data, at)[2])
            yield data[at + FRAME_SIZE : at + FRAME_SIZE + size]
            at += FRAME_SIZE + size
            continue
        if data.endswith(bytes(len(data) - at)):
            return  # Nothing was written there: most of a file, which need not be searched.
        following = _next_sound(data, at + 1)
        if following is None:
            damage.append(JournalDamage(at, len(data[at:].rstrip(b"\0")), True, 1))
            return
        lost = max(1, int(_FRAME.unpack_from(data, following)[2]) - count - 1)
        damage.append(JournalDamage(at, following - at, False, lost))
        at = following


def _sound(data: bytes, at: int) -> int | None:
    """Return how long the changes of the frame at AT are; None if there is no sound one."""
    if len(data) - at < FRAME_SIZE or not data.startswith(_FRAME_MAGIC, at):
        return None
    _, size, number, crc = _FRAME.unpack_from(data, at)
    start = at + FRAME_SIZE
    if size > len(data) - start:
        return None
    content = memoryview(data)[start : start + size]
    return size if zlib.crc32(content, zlib.crc32(_GUARDED.pack(size, number))) == crc else None


def _next_sound(data: bytes, at: int) -> int | None:
    while (at := data.find(_FRAME_MAGIC, at)) >= 0:
        if _sound(data, at) is not None:
            return at
        at += 1
    return None


# --- encoding


class Encoder:
    """Changes to bytes. It knows up to where each key was said to be looked at: a journal has one for all its files."""

    def __init__(self) -> None:
        self._looked: dict[PopKey, int] = {}
        self._encoded: dict[PopKey, bytes] = {}
        #: Did the last frame say that a group begins anew somewhere?
        self.has_begun_anew = False

    def encode(self, changes: Iterable[Change], *, absolute: bool = False) -> bytes:
        """Return CHANGES as one frame has them; ABSOLUTE: what was looked at is told without the chain."""
        parts: list[bytes] = []
        add = parts.append
        key: PopKey | None = None
        owner = _NOBODY
        self.has_begun_anew = False
        for change in changes:
            if isinstance(change, Forgotten):
                self._forget(change)
                add(_forgotten(change))
                continue
            if change.key is not key:
                key, owner = change.key, _NOBODY
                add(self._encoded.get(key) or self._key(key))
            if isinstance(change, InFlight):
                _, offset, attempt, until_ms, client_id, serial, renews, attempt_id = change
                if (client_id, attempt_id) != owner:
                    owner = (client_id, attempt_id)
                    add(_owner(*owner))
                add(_IN_FLIGHT_FORM.pack(_IN_FLIGHT, offset, attempt, until_ms, serial, renews))
            elif isinstance(change, Finished):
                add(_finished(change))
            else:
                add(self._reached(change, absolute=absolute))
        return b"".join(parts)

    def _key(self, key: PopKey) -> bytes:
        if len(self._encoded) >= _KEYS_MAX:
            self._encoded.clear()
        data = self._encoded[key] = _key(key)
        return data

    def _reached(self, change: Looked | Moved, *, absolute: bool) -> bytes:
        key, offset = change
        if absolute:
            return _PAIR_FORM.pack(_LOOKED, _ALL, offset)
        start = self._looked.get(key, _ALL)
        self._looked[key] = offset
        if isinstance(change, Moved):
            self.has_begun_anew = True
            return _OFFSET_FORM.pack(_MOVED, offset)
        return _PAIR_FORM.pack(_LOOKED, start, offset)

    def _forget(self, change: Forgotten) -> None:
        self.has_begun_anew = True
        for key in [key for key in self._looked if is_meant(change, key)]:
            del self._looked[key]

    def begin_at(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Yield CHANGES; the chain goes on from where they say that was looked at."""
        for change in changes:
            if isinstance(change, Looked):
                self._looked[change.key] = change.offset
            yield change


def is_meant(change: Forgotten, key: PopKey) -> bool:
    """Is KEY among what CHANGE says is forgotten?"""
    return change.group in ("", key.group) and change.topic in ("", key.topic)


def log_mark(mark: LogMark) -> bytes:
    """Return the change that says where the log stands."""
    return _LOG_FORM.pack(_LOG, *mark)


def clock_mark(mark: ClockMark) -> bytes:
    """Return the change that says what the clocks show."""
    return _PAIR_FORM.pack(_CLOCK, *mark)


def end() -> bytes:
    """Return the change that ends a file."""
    return _END_FORM


def _key(key: PopKey) -> bytes:
    group, topic = key.group.encode(), key.topic.encode()
    return _KEY_HEAD.pack(_KEY, key.queue, len(group), len(topic)) + group + topic


def _owner(client_id: str, attempt_id: str) -> bytes:
    client, attempt = client_id.encode()[:0xFFFF], attempt_id.encode()[:0xFFFF]
    return _OWNER_HEAD.pack(_OWNER, len(client), len(attempt)) + client + attempt


def _finished(change: Finished) -> bytes:
    if change.copy_at:
        return _PAIR_FORM.pack(_BURIED, change.offset, change.copy_at)
    return _OFFSET_FORM.pack(_FINISHED, change.offset)


def _forgotten(change: Forgotten) -> bytes:
    group, topic = change.group.encode(), change.topic.encode()
    return _FORGOTTEN_HEAD.pack(_FORGOTTEN, len(group), len(topic)) + group + topic


# --- decoding


class Decoder:
    """Bytes to changes; equal keys and owners are one object each."""

    def __init__(self) -> None:
        self._keys: dict[PopKey, PopKey] = {}
        self._owners: dict[str, str] = {}

    def decode(self, data: bytes) -> list[Said]:
        """Return what the frame DATA says. Raises ValueError for what no version 1 wrote."""
        try:
            return list(self._decode(data))
        except struct.error as error:
            raise ValueError(str(error)) from error

    def _decode(self, data: bytes) -> Iterator[Said]:
        at = 0
        key = PopKey("", "", 0)
        owner, attempt_id = _NOBODY
        while at < len(data):
            kind = data[at]
            if kind == _IN_FLIGHT:
                _, offset, attempt, until_ms, serial, renews = _IN_FLIGHT_FORM.unpack_from(data, at)
                yield InFlight(key, offset, attempt, until_ms, owner, serial, renews, attempt_id)
                at += _IN_FLIGHT_FORM.size
            elif kind == _KEY:
                _, queue, *sizes = _KEY_HEAD.unpack_from(data, at)
                group, topic, at = _names(data, at + _KEY_HEAD.size, sizes)
                key = PopKey(group, topic, queue)
                key = self._keys.setdefault(key, key)
                owner, attempt_id = _NOBODY
            elif kind == _OWNER:
                _, *sizes = _OWNER_HEAD.unpack_from(data, at)
                owner, attempt_id, at = _names(data, at + _OWNER_HEAD.size, sizes)
                owner = self._owners.setdefault(owner, owner)
            else:
                said, at = _other(kind, key, data, at)
                yield said


def _other(kind: int, key: PopKey, data: bytes, at: int) -> tuple[Said, int]:
    """Return what the change of KIND at AT says, and where the next one is."""
    if kind == _END:
        return JournalEnd(), at + 1
    if kind == _FORGOTTEN:
        _, *sizes = _FORGOTTEN_HEAD.unpack_from(data, at)
        group, topic, at = _names(data, at + _FORGOTTEN_HEAD.size, sizes)
        return Forgotten(group, topic), at
    if kind == _LOG:
        return LogMark(*_LOG_FORM.unpack_from(data, at)[1:]), at + _LOG_FORM.size
    if kind in (_BURIED, _LOOKED):
        _, first, second = _PAIR_FORM.unpack_from(data, at)
        at += _PAIR_FORM.size
        return (Finished if kind == _BURIED else LookedSpan)(key, first, second), at
    if kind == _CLOCK:
        return ClockMark(*_PAIR_FORM.unpack_from(data, at)[1:]), at + _PAIR_FORM.size
    if kind in (_FINISHED, _MOVED):
        offset = _OFFSET_FORM.unpack_from(data, at)[1]
        return (Finished if kind == _FINISHED else Moved)(key, offset), at + _OFFSET_FORM.size
    raise ValueError(f"there is no change of kind {kind}")


def _names(data: bytes, at: int, sizes: list[int]) -> tuple[str, str, int]:
    """Return the two names at AT, of SIZES bytes, and where they end."""
    middle = at + sizes[0]
    stop = middle + sizes[1]
    first, second = data[at:middle], data[middle:stop]
    return first.decode("utf-8", "replace"), second.decode("utf-8", "replace"), stop
