"""The note of the log offset up to which everything was verified: `<root>/pocketmq/verified.json`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Final

from ..commit_log import CommitLog
from ..consume_queue import Sum
from ..disk import Disk
from ..format.index import IndexHeader
from ..message_index import MessageIndex
from ..parts import StoreParts

_NAME: Final = "verified.json"
_VERSION: Final = 2
#: Bytes of the last record of which a digest is stored.
_HEAD_SIZE: Final = 92
#: Queues whose part of the text is made at a time: about 100 µs.
_NAMES_A_PIECE: Final = 500


@dataclass(frozen=True, slots=True)
class Verified:
    """The log offset up to which everything was verified: `<root>/pocketmq/verified.json`.

    All records before LOG_END were read, or appended by this broker, and are in their queues and in the index, all on
    disk. It is saved at the last opening or clean stop, and once per minute while running (after each flush of the
    queues). The next recovery reads only newer records. The note is trusted only if the last record before LOG_END is
    unchanged, and queues and index reach at least as far as then. Otherwise, or without the file, the whole log is
    read, and the file is deleted first. After a power cut, later index entries may be incomplete; the header in the
    note shows where to cut the index.


    QUEUES: next queue offset by `topic/queue`; INDEX: the fields of the header by file.

    SUMS: the CRCs of the files of each queue, as they were at the last clean stop (EntryRow.sums).
    """

    log_end: int
    last_offset: int
    last_digest: str
    newest_ms: int
    queues: dict[str, int] = field(default_factory=dict)
    index: dict[str, list[int]] = field(default_factory=dict)
    sums: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    version: int = _VERSION
    #: The number of lite queues, and the sum of their ends.
    lite: Sequence[int] = (0, 0)

    @classmethod
    def claimed(
        cls, log: CommitLog, log_end: int, *, last_offset: int, newest_ms: int, index: list[str]
    ) -> Verified:
        """Return the claim that everything before LOG_END is verified; the caller guarantees it.

        It has no ends of queues, and of the INDEX only the names of the files.
        """
        return cls(
            log_end=log_end,
            last_offset=last_offset,
            last_digest=_digest(log, last_offset),
            newest_ms=newest_ms,
            index={name: list(astuple(IndexHeader())) for name in index},
        )

    @classmethod
    def load(cls, disk: Disk, folder: str) -> Verified | None:
        """Return the note in FOLDER; None if there is none that can be trusted."""
        path = os.path.join(folder, _NAME)
        if not disk.exists(path):
            return None
        try:
            found = cls(**json.loads(disk.read(path)))
            if found.version != _VERSION:
                return None
            found.index_headers()
            found.sums_of("")
            tuple(map(int, found.lite))
        except (ValueError, TypeError, AttributeError):
            return None
        return found

    @staticmethod
    def forget(disk: Disk, folder: str) -> None:
        """Delete the file in FOLDER, if there is one, and sync the folder."""
        path = os.path.join(folder, _NAME)
        if disk.exists(path):
            disk.delete(path)
            disk.sync_folder(folder)

    def index_headers(self) -> dict[str, IndexHeader]:
        """Return the headers of the index files at that time, by name."""
        return {name: IndexHeader(*fields) for name, fields in self.index.items()}

    def sums_of(self, name: str) -> tuple[Sum, ...]:
        """Return the CRCs of the first entries of the queue NAME, `topic/queue`, by file."""
        return tuple(Sum(*map(int, each)) for each in self.sums.get(name, ()))

    def save(self, disk: Disk, folder: str) -> None:
        """Replace the file in FOLDER."""
        disk.make_folders(folder)
        text = "".join(self._texts())
        disk.write_atomically(os.path.join(folder, _NAME), text.encode())

    def _texts(self) -> Iterator[str]:
        """Yield the text of the file in pieces: with 100,000 queues, one piece would block other threads."""
        tables: dict[str, Mapping[str, object]] = {"queues": self.queues, "sums": self.sums}
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        yield json.dumps({name: values[name] for name in values.keys() - tables.keys()})[:-1]
        for name, table in tables.items():
            yield f', "{name}": {{'
            names, comma = list(table), ""
            for at in range(0, len(names), _NAMES_A_PIECE):
                piece = {each: table[each] for each in names[at : at + _NAMES_A_PIECE]}
                yield comma + json.dumps(piece)[1:-1]
                comma = ", "
            yield "}"
        yield "}"

    def holds(self, parts: StoreParts) -> bool:
        """Is the verified data still there? Call it after loading the parts and finding the ends of the queues."""
        log, index = parts.log, parts.index
        last = log.files.last
        if last is None or not log.min_offset < self.log_end <= last.end:
            return False
        if not self.last_digest or _digest(log, self.last_offset) != self.last_digest:
            return False
        if any(now < then for now, then in zip(parts.queues.lite.extent, self.lite, strict=True)):
            return False
        there = {f"{one.topic}/{one.queue}": one for one in parts.queues}
        for name, end in self.queues.items():
            if end and (name not in there or there[name].max_offset < end):
                return False
        return index is None or self._index_holds(index, log.min_offset)

    def _index_holds(self, index: MessageIndex, log_begin: int) -> bool:
        there = {file.name: file.header for file in index.files}
        for name, then in self.index_headers().items():
            if name not in there:
                if then.end_log_offset >= log_begin:
                    return False
            elif there[name].next_entry < then.next_entry:
                return False
        return bool(self.index)


class VerifiedSnapshot:
    """The present state of PARTS, as their owner sees it. `save` is thread-safe.

    LAST_OFFSET and NEWEST_MS are those of the log's last record.
    """

    def __init__(self, parts: StoreParts, *, last_offset: int, newest_ms: int) -> None:
        index = parts.index.files if parts.index is not None else []
        self._ends = parts.queues.ends()
        self._rest = Verified(
            log_end=parts.log.max_offset,
            last_offset=last_offset,
            last_digest=_digest(parts.log, last_offset),
            newest_ms=newest_ms,
            index={file.name: list(astuple(file.header)) for file in index},
            lite=parts.queues.lite.extent,
        )

    @property
    def log_end(self) -> int:
        return self._rest.log_end

    def save(self, disk: Disk, folder: str) -> None:
        """Replace the file in FOLDER."""
        queues = {f"{one.topic}/{one.queue}": end for one, end in self._ends.items()}
        sums = {f"{one.topic}/{one.queue}": one.sums for one in self._ends if one.sums}
        replace(self._rest, queues=queues, sums=sums).save(disk, folder)


def _digest(log: CommitLog, offset: int) -> str:
    """Return the digest of the head of the record at log OFFSET; empty if there is none."""
    head = log.read(offset, _HEAD_SIZE)
    if head is None or log.record_size(offset) is None:
        return ""
    return hashlib.sha256(head).hexdigest()
