"""The protocol by which a slave of Apache RocketMQ copies its master's log: frames and reports, in both directions.

Classic. The slave sends the end of its log, in 8 bytes, at the start and after each frame. The master sends frames of
raw bytes, and frames without bytes as heartbeats:

    slave   i64  end of its log
    master  i64  offset of the first byte;  i32 size, 0: heartbeat;  bytes

Auto-switch, in controller mode, has a handshake first, and epochs:

    slave   i32  1;  i16  1: begin with the newest file;  i16  1: learner;  i64  broker id
    master  i32  1;  i32  size of the entries;  i64 end of its log;  i32 last epoch;  per entry i32 epoch, i64 start
    slave   i32  2;  i64  end of its log
    master  i32  2;  i32  size;  i64 offset;  i32 epoch;  i64 its start;  i64 confirm offset;  bytes

Frames may end inside a record, and are inside one file. All integers are big-endian and signed. An impossible size or
offset raises ValueError. No more than one frame is buffered. Source: replication.md §2 and §4.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

#: The buffer size of a RocketMQ slave. Masters send 32 KiB by default (haTransferBatchSize).
FRAME_MAX: Final = (4 << 20) - 36
#: The handshake buffer of RocketMQ has no space for more.
EPOCHS_MAX: Final = 1_000

_HANDSHAKE, _TRANSFER = 1, 2
_REPORT: Final = struct.Struct(">q")
_CLASSIC: Final = struct.Struct(">qi")
_GREETING: Final = struct.Struct(">ihhq")
_LATER_REPORT: Final = struct.Struct(">iq")
_STATE_AND_SIZE: Final = struct.Struct(">ii")
_HANDSHAKE_HEAD: Final = struct.Struct(">iiqi")
_EPOCH: Final = struct.Struct(">iq")
_TRANSFER_HEAD: Final = struct.Struct(">iiqiqq")


class LogFrame(NamedTuple):
    """DATA of the master's log from OFFSET on; without data, a heartbeat. The other fields are for auto-switch."""

    offset: int
    data: bytes
    epoch: int = 0
    epoch_start: int = 0
    confirm: int = -1


class Handshake(NamedTuple):
    """The first answer of a master in controller mode: the end of its log, and the start of each epoch."""

    end: int
    last_epoch: int
    epochs: tuple[tuple[int, int], ...]


def classic_report(end: int) -> bytes:
    """Return the report that the slave's log ends at END."""
    return _REPORT.pack(end)


def greeting(broker_id: int, *, learner: bool, newest_file: bool = False) -> bytes:
    """Return the handshake of slave BROKER_ID; send it in one piece.

    LEARNER: it is never part of the in-sync set. NEWEST_FILE: if its log is empty, it copies only the newest file.
    """
    return _GREETING.pack(_HANDSHAKE, newest_file, learner, broker_id)


def report(end: int) -> bytes:
    """Return auto-switch's report that the slave's log ends at END."""
    return _LATER_REPORT.pack(_TRANSFER, end)


def classic_frame(offset: int, data: bytes | memoryview = b"") -> bytes:
    """Return the frame of DATA at OFFSET, or a heartbeat."""
    return b"".join((_CLASSIC.pack(offset, len(data)), data))


def handshake_answer(answer: Handshake) -> bytes:
    """Return the master's handshake."""
    entries = b"".join(_EPOCH.pack(*one) for one in answer.epochs)
    return _HANDSHAKE_HEAD.pack(_HANDSHAKE, len(entries), answer.end, answer.last_epoch) + entries


def transfer_frame(frame: LogFrame) -> bytes:
    """Return auto-switch's FRAME."""
    head = (frame.offset, frame.epoch, frame.epoch_start, frame.confirm)
    return _TRANSFER_HEAD.pack(_TRANSFER, len(frame.data), *head) + frame.data


class ClassicReports:
    """Reads the reports of a slave. Only the last complete one counts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """Add DATA; return the newest reported end, None: there is none. Raises ValueError for a negative one."""
        data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        if not whole:
            return None
        end: int = _REPORT.unpack_from(data, whole - _REPORT.size)[0]
        if end < 0:
            raise ValueError(f"a slave reports {end} as the end of its log")
        return end


class ClassicFrames:
    """Reads the frames of a classic master."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[LogFrame]:
        """Add DATA; return the frames that are now complete. Raises ValueError for an impossible one."""
        self._buffer += data
        frames: list[LogFrame] = []
        at, have = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while have - at >= _CLASSIC.size:
                offset, size = _CLASSIC.unpack_from(view, at)
                _check(offset, size, FRAME_MAX)
                begin = at + _CLASSIC.size
                if have - begin < size:
                    break
                frames.append(LogFrame(offset, bytes(view[begin : begin + size])))
                at = begin + size
        del self._buffer[:at]
        return frames


class AutoSwitchFrames:
    """Reads the handshake and the frames of a master in controller mode."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[LogFrame | Handshake]:
        """Add DATA; return what is now complete. Raises ValueError for an impossible frame."""
        self._buffer += data
        found: list[LogFrame | Handshake] = []
        at, have = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while have - at >= _STATE_AND_SIZE.size:
                one = self._one(view[at:])
                if one is None:
                    break
                found.append(one[0])
                at += one[1]
        del self._buffer[:at]
        return found

    def _one(self, view: memoryview) -> tuple[LogFrame | Handshake, int] | None:
        """Return the first item of VIEW and its length; None: it is incomplete."""
        state, size = _STATE_AND_SIZE.unpack_from(view)
        if state == _HANDSHAKE:
            if size % _EPOCH.size:
                raise ValueError(f"a master's handshake has {size} bytes of epochs of 12 each")
            _check(0, size, EPOCHS_MAX * _EPOCH.size)
            if len(view) < _HANDSHAKE_HEAD.size + size:
                return None
            _, _, end, last = _HANDSHAKE_HEAD.unpack_from(view)
            begin = _HANDSHAKE_HEAD.size
            entries = tuple(_EPOCH.iter_unpack(view[begin : begin + size]))
            _check(end, size, FRAME_MAX)
            return Handshake(end, last, entries), begin + size
        if state != _TRANSFER:
            raise ValueError(f"a master's frame begins with state {state}, not 1 or 2")
        _check(0, size, FRAME_MAX)
        if len(view) < _TRANSFER_HEAD.size + size:
            return None
        _, _, offset, epoch, epoch_start, confirm = _TRANSFER_HEAD.unpack_from(view)
        _check(offset, size, FRAME_MAX)
        begin = _TRANSFER_HEAD.size
        data = bytes(view[begin : begin + size])
        return LogFrame(offset, data, epoch, epoch_start, confirm), begin + size


def _check(offset: int, size: int, most: int) -> None:
    if not 0 <= size <= most:
        raise ValueError(
            f"a master's frame of {size:,} bytes, the limit is {most:,}: lower haTransferBatchSize on the master"
        )
    if offset < 0:
        raise ValueError(f"a master's frame has the offset {offset}")


def consistent_end(
    mine: tuple[tuple[int, int], ...],
    my_end: int,
    theirs: tuple[tuple[int, int], ...],
    their_end: int,
) -> int | None:
    """Return the offset up to which two logs are equal, by the epochs of each; None: they have no epoch in common.

    From the newest epoch of MINE down, the first that THEIRS has with the same start, and there the lesser of both
    ends. The same as RocketMQ's `findConsistentPoint`.
    """
    ends = _ends(theirs, their_end)
    for number in range(len(mine) - 1, -1, -1):
        if (end := ends.get(mine[number])) is not None:
            own = mine[number + 1][1] if number + 1 < len(mine) else my_end
            return min(own, end)
    return None


def _ends(epochs: tuple[tuple[int, int], ...], end: int) -> dict[tuple[int, int], int]:
    """Return where each of EPOCHS ends, the last with END."""
    nexts = [start for _, start in epochs[1:]] + [end]
    return dict(zip(epochs, nexts, strict=True))
