"""Faults of the files of one store: names, lengths, headers, and tables that cannot be read."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ....proto.errors import CorruptIndex
from ....store.apache.settings import ApacheSettings
from ....store.checkpoints import CHECKPOINT_SIZE
from ....store.disk import Disk
from ....store.file_sizes import settings_of
from ....store.format.index import index_file_size
from ....store.format.log import is_blank
from ....store.format.state_tables import parse_consumer_offsets, parse_groups, parse_topics
from ....store.index_check import check_index_file
from ....store.index_file import IndexFile
from ....store.listing import missing_between, queue_folders, row_files, zeros_from
from ....store.log_range import log_end
from ....store.offsets_file import LMQ_OFFSETS_FILE, OFFSETS_FILE
from ....store.overlay_disk import OverlayDisk
from ...stores.locations import StoreLocation

_LOOKED_AT_BYTES: Final = 16 << 20
_TABLES: Final[Mapping[str, Callable[[str], Any]]] = {
    "topics.json": parse_topics,
    OFFSETS_FILE: parse_consumer_offsets,
    LMQ_OFFSETS_FILE: parse_consumer_offsets,
    "subscriptionGroup.json": parse_groups,
}


class Fault(NamedTuple):
    """One thing that is wrong: FAULT is its kind, OFFSET where it begins, None where that means nothing."""

    fault: str
    path: str
    offset: int | None
    why: str
    topic: str | None = None
    queue_id: int | None = None


def file_faults(location: StoreLocation, given: Mapping[str, str]) -> Iterator[Fault]:
    """Yield what is wrong with the files of the store at LOCATION; GIVEN are settings by RocketMQ's names."""
    disk = location.open_disk()
    settings = settings_of(disk, location.root, given)
    log = posixpath.join(location.root, "commitlog")
    yield from _row_faults(disk, log, settings.log_file_size)
    yield from _behind_end(disk, log)
    for topic, queue_id, folder in queue_folders(
        disk, posixpath.join(location.root, "consumequeue")
    ):
        for fault in _row_faults(disk, folder, settings.queue_file_bytes):
            yield fault._replace(topic=topic, queue_id=queue_id)
    overlay = OverlayDisk(disk, on_this_machine=location.is_local)
    yield from _index(overlay, posixpath.join(location.root, "index"), settings)
    yield from _tables(disk, location.root)
    yield from _checkpoint(disk, posixpath.join(location.root, "checkpoint"))


def _row_faults(disk: Disk, folder: str, size: int) -> Iterator[Fault]:
    """Yield files of FOLDER of a length other than SIZE, and what is missing between files."""
    for entry in disk.list(folder):
        if not entry.is_folder and entry.name.isdigit() and entry.size != size:
            path = posixpath.join(folder, entry.name)
            why = f"{entry.size:,} bytes long, not {size:,}"
            yield Fault("length of a file", path, int(entry.name), why)
    for start, end in missing_between(row_files(disk, folder)):
        yield Fault("missing file", folder, start, f"bytes {start:,} to {end:,} are in no file")


def _behind_end(disk: Disk, folder: str) -> Iterator[Fault]:
    """Yield the bytes after the last record of the log: a record cut short, or a rest of earlier content."""
    files = row_files(disk, folder)
    if not files:
        return
    file = files[-1]
    end, zeros = log_end(disk, file), zeros_from(disk, file)
    data = disk.read_at(file.path, end - file.start, min(zeros - end, _LOOKED_AT_BYTES))
    used = len(data.rstrip(b"\0"))
    if used and not is_blank(data, 0, file.end - end):
        yield Fault("bytes past the end", file.path, end, f"{used:,} bytes that are no record")


def _index(disk: Disk, folder: str, settings: ApacheSettings) -> Iterator[Fault]:
    slots, entries = settings.index_slots, settings.index_entries
    wanted = index_file_size(slots, entries)
    files = [one for one in disk.list(folder) if not one.is_folder and one.name.isdigit()]
    usual = Counter(one.size for one in files).most_common(1)
    for one in files:
        path = posixpath.join(folder, one.name)
        if one.size != usual[0][0]:
            yield Fault("length of a file", path, None, f"{one.size:,} bytes long, not {wanted:,}")
        elif one.size == wanted:
            try:
                check_index_file(IndexFile(disk, path, slots, entries, create=False))
            except CorruptIndex as error:
                yield Fault("index file", path, None, error.message)


def _tables(disk: Disk, root: str) -> Iterator[Fault]:
    """Yield config files that do not parse, and missing topics where there are queues."""
    for name, parse in _TABLES.items():
        path = posixpath.join(root, "config", name)
        if not disk.exists(path):
            if name == "topics.json" and disk.list(posixpath.join(root, "consumequeue")):
                yield Fault("missing file", path, None, "there are queues, and no table of topics")
            continue
        try:
            parse(disk.read(path).decode("utf-8"))
        except ValueError as error:
            yield Fault("table", path, None, f"does not parse: {error}")


def _checkpoint(disk: Disk, path: str) -> Iterator[Fault]:
    if not disk.exists(path):
        yield Fault("missing file", path, None, "it is not known how much is on disk")
    elif disk.size(path) != CHECKPOINT_SIZE:
        why = f"{disk.size(path):,} bytes long, not {CHECKPOINT_SIZE:,}"
        yield Fault("length of a file", path, None, why)
