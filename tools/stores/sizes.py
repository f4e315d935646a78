"""The file sizes of a store where nobody says them, from the lengths of its files.

All files of a row have one length; where they differ, the most frequent counts, of equally frequent ones the longest:
damage cuts files short. The length of an index file is 40 + 4 × slots + 20 × entries and does not tell both; Apache's
default and its usual ratio of four entries a slot are tried.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from ...store.apache.settings import ApacheSettings
from ...store.config import StoreConfig
from ...store.disk import Disk
from ...store.format.index import ENTRY, HEADER_SIZE, SLOT

_ENTRIES_A_SLOT: Final = 4
_BYTES_A_SLOT: Final = SLOT.size + _ENTRIES_A_SLOT * ENTRY.size
#: All queues of a store have files of one length, unless it is damaged; some brokers have tens of thousands.
_QUEUES_ASKED_MAX = 1_000


def settings_of(disk: Disk, root: str, given: Mapping[str, str]) -> ApacheSettings:
    """Return the settings GIVEN by Apache's names, with what the files of the store ROOT tell for the rest."""
    found: dict[str, int] = {}
    rows = {
        "log_file_size": [posixpath.join(root, "commitlog")],
        "queue_file_size": _queue_folders(disk, posixpath.join(root, "consumequeue")),
        "batch_queue_file_size": _queue_folders(disk, posixpath.join(root, "batchconsumequeue")),
        "timer_log_file_size": [posixpath.join(root, "timerlog")],
    }
    for name, folders in rows.items():
        size = _usual_size(disk, folders)
        if size:
            found[name] = size
    return ApacheSettings.of(given, **found, **index_shape(disk, root, given))


def index_shape(disk: Disk, root: str, given: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers of slots and entries that the index files tell; nothing if GIVEN says one, or none tells."""
    size = _usual_size(disk, [posixpath.join(root, "index")])
    if {"maxHashSlotNum", "maxIndexNum"} & set(given):
        return {}
    if not size or (size - HEADER_SIZE) % _BYTES_A_SLOT:
        return {}
    slots = (size - HEADER_SIZE) // _BYTES_A_SLOT
    return {"index_slots": slots, "index_entries": slots * _ENTRIES_A_SLOT}


def _queue_folders(disk: Disk, root: str) -> Iterable[str]:
    """Return the folders of queues, as many as are enough to tell."""
    folders = (
        posixpath.join(root, topic.name, queue.name)
        for topic in disk.list(root)
        if topic.is_folder
        for queue in disk.list(posixpath.join(root, topic.name))
    )
    return islice(folders, _QUEUES_ASKED_MAX)


def _usual_size(disk: Disk, folders: Iterable[str]) -> int:
    sizes = _sizes(disk, folders)
    return _most_usual(sizes) if sizes else 0


def _sizes(disk: Disk, folders: Iterable[str]) -> Counter[int]:
    return Counter(
        entry.size
        for folder in folders
        for entry in disk.list(folder)
        if entry.size and not entry.is_folder and entry.name.isdigit()
    )


def _most_usual(sizes: Counter[int]) -> int:
    return max(sizes, key=lambda size: (sizes[size], size))


def config_of_files(disk: Disk, config: StoreConfig) -> StoreConfig:
    """Return CONFIG with the sizes that the files of its store tell, where it has the default; for a broker's start.

    A broker goes on writing files of these sizes, so that more is asked for than where a store is only read: two files
    of one length, or, for a log of one file, a power of two, which no cut leaves.
    """
    logs = [config.log_path or posixpath.join(config.path, "commitlog")]
    found = {
        "log_file_size_bytes": _sure_size(disk, logs, alone=_is_power_of_two),
        "queue_file_size_bytes": _sure_size(
            disk, _queue_folders(disk, posixpath.join(config.path, "consumequeue"))
        ),
        "batch_queue_file_size_bytes": _sure_size(
            disk, _queue_folders(disk, posixpath.join(config.path, "batchconsumequeue"))
        ),
        "timer_log_file_size_bytes": _sure_size(disk, [posixpath.join(config.path, "timerlog")]),
        **index_shape(disk, config.path, {}),
    }
    default = StoreConfig(path=config.path)
    changed: dict[str, Any] = {
        name: size
        for name, size in found.items()
        if size and getattr(config, name) == getattr(default, name)
    }
    return replace(config, **changed)


def _sure_size(
    disk: Disk, folders: Iterable[str], *, alone: Callable[[int], bool] = lambda size: False
) -> int:
    """Return the length that most files in FOLDERS have, if several have it or ALONE trusts it of one; else 0."""
    sizes = _sizes(disk, folders)
    if not sizes:
        return 0
    size = _most_usual(sizes)
    return size if sizes[size] > 1 or alone(size) else 0


def _is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0
