"""The age of the newest log file, after which it is closed even if it has space."""

from __future__ import annotations

from ..proto import errors
from .commit_log import CommitLog, store_time_ms
from .config import StoreConfig
from .files import MappedFile
from .format.log import BLANK_SIZE


class LogAge:
    """The age of the newest file of LOG, and whether it must be closed for it (`store.log_roll_ms`; 0: never).

    The age counts from the store time of the file's first record, in wall time. If the wall clock was set back to
    before that time, the age counts from the first check afterwards.
    """

    def __init__(self, log: CommitLog, config: StoreConfig) -> None:
        self._log = log
        self._config = config
        self._file: MappedFile | None = None
        self._since_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Return whether to close the newest file at NOW_MS: it is neither empty nor closed, and old enough."""
        roll_ms = self._config.log_roll_ms
        file = self._log.files.last if roll_ms else None
        if file is None or file.position == 0 or file.room < BLANK_SIZE:
            self._file = None
            return False
        if file is not self._file:
            self._file = file
            self._since_ms = _first_store_ms(self._log, file) or now_ms
        self._since_ms = min(self._since_ms, now_ms)
        return now_ms - self._since_ms >= roll_ms


def _first_store_ms(log: CommitLog, file: MappedFile) -> int | None:
    """Return the store time of the first record of FILE; None if it cannot be read."""
    try:
        return store_time_ms(log, file.start)
    except errors.DiskFailure:
        return None  # A reader of the record gets the error; appending does not need it.
