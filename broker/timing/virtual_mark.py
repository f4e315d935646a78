"""The mark of a store that was written under a virtual clock: `<root>/pocketmq/clock.json`.

Such a store has store times, due times and offsets of a time that no other broker uses. The mark is
{"clock":"virtual","now_ms":N}. N is never before a time in the store, because a move of the clock writes its end before
it begins. A broker on the machine's clock refuses the store unless it is forced to open it, which removes the mark.

If the folder `pocketmq` is lost, the store is like any other: its newest messages may be of the future, and a virtual
broker continues from the newest.

    begin(clock, disk, store_config)               # before the store is opened
    mark = keep_mark(clock, disk, store_config)    # once it is open and locked
    …
    mark.close()                                   # before it is closed
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

from ...proto.clock import Clock, VirtualClock
from ...proto.errors import PocketMQError, StoreMismatch
from ...store.checkpoints import read_checkpoint
from ...store.config import StoreConfig
from ...store.disk import Disk
from .virtual_time import is_virtual

logger = logging.getLogger(__name__)

_NAME: Final = "clock.json"


def check_clock(
    disk: Disk, config: StoreConfig, *, virtual: bool, now_ms: int, force: bool = False
) -> int:
    """Return the time at which a broker on the store of CONFIG starts. NOW_MS is the machine's.

    VIRTUAL: the last time of the store, or NOW_MS for a store without the mark; never before its newest message.
    Otherwise NOW_MS. Raises StoreMismatch for a marked store and the machine's clock, unless FORCE, which removes the
    mark. Nothing else is written.
    """
    path = _path(config)
    stood_ms = _read(disk, path)
    if virtual:
        newest_ms = read_checkpoint(disk, config.checkpoint_path).log_time_ms
        return max(now_ms if stood_ms is None else stood_ms, newest_ms)
    if stood_ms is None:
        return now_ms
    if not force:
        stood = _instant(stood_ms) if stood_ms else "at an unknown time"
        raise StoreMismatch(
            f"the store {config.path} was written under a virtual clock, which stopped {stood}:"
            " open it with --clock virtual, or with --force-clock if its times may be wrong from now on",
            path=path,
            now_ms=stood_ms,
        )
    disk.delete(path)
    disk.sync_folder(config.own_folder)
    logger.warning("mark of the virtual clock removed path=%s now_ms=%d", path, stood_ms)
    return now_ms


def begin(clock: Clock, disk: Disk, config: StoreConfig) -> None:
    """If CLOCK is a virtual one, set it to the last time of the store of CONFIG, if that is later.

    Raises StoreMismatch for a marked store and the machine's clock.
    """
    start_ms = check_clock(disk, config, virtual=is_virtual(clock), now_ms=clock.unix_ms())
    if isinstance(clock, VirtualClock):
        clock.start_at(start_ms)


class ClockMarker:
    """The mark of an open store while CLOCK moves. `close` writes it once more, and detaches it from the clock."""

    def __init__(self, clock: Clock, disk: Disk, config: StoreConfig) -> None:
        self._clock = clock
        self._disk = disk
        self._folder = config.own_folder
        self._path = _path(config)

    def write(self, now_ms: int) -> None:
        """Write NOW_MS as the time of the store; it is on disk when this returns."""
        self._disk.make_folders(self._folder)
        text = json.dumps({"clock": "virtual", "now_ms": now_ms}, separators=(",", ":"))
        self._disk.write_atomically(self._path, text.encode())

    def open(self) -> None:
        if isinstance(self._clock, VirtualClock):
            self.write(self._clock.unix_ms())
            self._clock.before_move.append(self._move)

    def close(self) -> None:
        """Write the present time, and detach from the clock. Idempotent."""
        if isinstance(self._clock, VirtualClock) and self._move in self._clock.before_move:
            self._clock.before_move.remove(self._move)
            self._move(self._clock.unix_ms())

    def _move(self, target_ms: int) -> None:
        """Write the end of a move. A full disk does not stop the clock: the mark keeps an older time."""
        try:
            self.write(target_ms)
        except PocketMQError as error:
            logger.error("mark of the virtual clock not written reason=%s", error.message)


def keep_mark(clock: Clock, disk: Disk, config: StoreConfig) -> ClockMarker:
    """Mark the store of CONFIG, which is open, if CLOCK is a virtual one. The mark is updated with its moves until
    `close`.

    Raises StoreFull or DiskFailure if the mark cannot be written.
    """
    mark = ClockMarker(clock, disk, config)
    mark.open()
    return mark


def _path(config: StoreConfig) -> str:
    return f"{config.own_folder}/{_NAME}"


def _read(disk: Disk, path: str) -> int | None:
    """Return the time in the mark at PATH, 0 if it cannot be read; None: there is no mark."""
    try:
        found = json.loads(disk.read(path))
    except FileNotFoundError:
        return None
    except ValueError:
        return 0
    now_ms = found.get("now_ms") if isinstance(found, dict) else None
    return now_ms if isinstance(now_ms, int) and now_ms >= 0 else 0


def _instant(timestamp_ms: int) -> str:
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"at {timestamp_ms} ms"
    return f"at {when.isoformat(sep=' ', timespec='milliseconds').replace('+00:00', 'Z')}"
