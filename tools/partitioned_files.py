"""Writing rows to Parquet files in folders by topic and day, with bounded memory.

    TARGET/topic=Orders/day=2026-11-21/broker-a-00000.parquet
    TARGET/_SUCCESS

The folders are Hive's, which Spark, pyarrow, DuckDB and others read as columns: `topic`, escaped as in a URL where a
file name must not have it, and `day`, of the store time in UTC. A file appears under its name when it is complete;
_SUCCESS when all are. Rows of a file are in the order in which they came.

Memory: rows wait until there are enough of a kind for a row group, all together up to BUFFER_BYTES; up to WRITERS_MAX
files are open, of which the one that was not written to for longest is closed for another.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import numpy as np

from ..proto.errors import ConfigError, DiskFailure
from ..proto.topics import is_system_topic
from .stores.schemas import arrow

if TYPE_CHECKING:
    import pyarrow

BUFFER_BYTES: Final = 96 << 20
WRITERS_MAX: Final = 64
ROW_GROUP_BYTES: Final = 16 << 20
ROW_GROUP_ROWS: Final = 128 << 10
_DAY_US: Final = 86_400_000_000
_UNKNOWN_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")

#: Topic and day: what a file is of.
Key = tuple[str, str]


@dataclass(slots=True)
class Written:
    """What was written so far."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Waiting:
    """Rows that wait for their row group."""

    batches: list[Any] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class PartitionedFiles:
    """The files below TARGET, which must not exist or be empty. Close it with `finish`, or `give_up`."""

    def __init__(self, target: Path, compression: str = "zstd", *, with_system: bool) -> None:
        """WITH_SYSTEM: system topics too. Raises ConfigError for a folder that holds something."""
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(
                f"--output {target}: the folder is not empty. Give a new folder, or empty this one",
                field="to",
                value=target,
            )
        self._target = target
        self._compression = compression
        self._with_system = with_system
        self._waiting: dict[tuple[str, Key], _Waiting] = {}
        self._bytes = 0
        self._writers: OrderedDict[tuple[str, Key], _File] = OrderedDict()
        self._counts: dict[tuple[str, Key], int] = {}
        self.written = Written()
        #: Of all rows.
        self.topics: set[str] = set()

    def add(self, broker: str, batch: pyarrow.RecordBatch) -> None:
        """Take the rows of BATCH, which has the columns topic and store_timestamp, of BROKER."""
        for key, rows in _by_partition(batch):
            if not self._with_system and is_system_topic(key[0]):
                continue
            self.topics.add(key[0])
            waiting = self._waiting.setdefault((broker, key), _Waiting())
            waiting.batches.append(rows)
            waiting.rows += rows.num_rows
            waiting.bytes += rows.nbytes
            self._bytes += rows.nbytes
            self.written.rows += rows.num_rows
            if waiting.bytes >= ROW_GROUP_BYTES or waiting.rows >= ROW_GROUP_ROWS:
                self._write((broker, key))
        while self._bytes > BUFFER_BYTES:
            self._write(max(self._waiting, key=lambda one: self._waiting[one].bytes))

    def _write(self, place: tuple[str, Key]) -> None:
        """Write what waits for PLACE as one row group."""
        waiting = self._waiting.pop(place)
        self._bytes -= waiting.bytes
        table = arrow().Table.from_batches(waiting.batches)
        self._writer(place, table.schema).write(table)

    def _writer(self, place: tuple[str, Key], schema: Any) -> _File:
        file = self._writers.get(place)
        if file is not None:
            self._writers.move_to_end(place)
            return file
        while len(self._writers) >= WRITERS_MAX:
            _, oldest = self._writers.popitem(last=False)
            self._close(oldest)
        broker, (topic, day) = place
        number = self._counts.get(place, 0)
        self._counts[place] = number + 1
        folder = self._target / f"topic={_escaped(topic)}" / f"day={day}"
        file = _File(folder, f"{_escaped(broker)}-{number:05d}.parquet", schema, self._compression)
        self._writers[place] = file
        return file

    def _close(self, file: _File) -> None:
        self.written.bytes += file.close()
        self.written.files += 1

    def finish(self) -> Written:
        """Write what waits, complete all files, and mark the folder as complete; return what was written."""
        for place in list(self._waiting):
            self._write(place)
        for file in self._writers.values():
            self._close(file)
        self._writers.clear()
        self._target.mkdir(parents=True, exist_ok=True)
        (self._target / "_SUCCESS").touch()
        return self.written

    def give_up(self) -> None:
        """Leave the files that are complete, without the mark, and nothing half-written."""
        for file in self._writers.values():
            file.drop()
        self._writers.clear()


class _File:
    """One Parquet file: hidden under another name until it is complete."""

    def __init__(self, folder: Path, name: str, schema: Any, compression: str) -> None:
        from pyarrow import parquet

        self._path = folder / name
        self._draft = folder / f".{name}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = parquet.ParquetWriter(self._draft, schema, compression=compression)
        except OSError as error:
            raise _failed(self._path, error) from error

    def write(self, table: Any) -> None:
        try:
            self._writer.write_table(table)
        except OSError as error:
            raise _failed(self._path, error) from error

    def close(self) -> int:
        """Complete the file; return its length."""
        try:
            self._writer.close()
            os.replace(self._draft, self._path)
            return self._path.stat().st_size
        except OSError as error:
            raise _failed(self._path, error) from error

    def drop(self) -> None:
        """Remove it."""
        with suppress(OSError):  # What is on the disk goes anyway.
            self._writer.close()
        self._draft.unlink(missing_ok=True)


def _failed(path: Path, error: OSError) -> DiskFailure:
    return DiskFailure(f"{path} cannot be written: {error.strerror or error}", path=path)


def _escaped(name: str) -> str:
    return quote(name, safe="-_.~@+ ")


def _by_partition(batch: pyarrow.RecordBatch) -> list[tuple[Key, pyarrow.RecordBatch]]:
    """Return the rows of BATCH of each topic and day, without the column topic, which the folder says."""
    if not batch.num_rows:
        return []
    topics = batch.column("topic").dictionary_encode()
    days = _days(batch.column("store_timestamp"))
    codes = topics.indices.to_numpy().astype(np.int64)
    kinds, which = np.unique(np.stack([codes, days]), axis=1, return_inverse=True)
    rows = batch.drop_columns(["topic"])
    found = []
    for number, (code, day) in enumerate(kinds.T.tolist()):
        key = topics.dictionary[code].as_py(), _day_text(day)
        if kinds.shape[1] == 1:
            return [(key, rows)]
        (own,) = np.nonzero(which.reshape(-1) == number)
        found.append((key, rows.take(arrow().array(own))))
    return found


#: No day of a calendar.
_NO_DAY: Final = np.iinfo(np.int64).min


def _days(times: Any) -> Any:
    """Return the day since 1970 of each of TIMES; _NO_DAY for null."""
    micros = times.cast(arrow().int64())
    days = micros.fill_null(0).to_numpy(zero_copy_only=False) // _DAY_US
    if micros.null_count:
        days = np.where(micros.is_null().to_numpy(zero_copy_only=False), _NO_DAY, days)
    return days


def _day_text(day: int) -> str:
    return _UNKNOWN_DAY if day == _NO_DAY else str(np.datetime64(day, "D"))
