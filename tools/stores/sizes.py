"""The file sizes of a store where nobody says them, from the lengths of its files.

All files of a row have one length; where they differ, the most frequent counts, of equally frequent ones the longest:
damage cuts files short. The length of an index file is 40 + 4 × slots + 20 × entries and does not tell both; Apache's
default and its usual ratio of four entries a slot are tried.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

from ...store.apache.settings import ApacheSettings
from ...store.disk import Disk

_INDEX_HEADER = 40
_BYTES_A_SLOT = 4 + 4 * 20
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
    if not size or (size - _INDEX_HEADER) % _BYTES_A_SLOT:
        return {}
    slots = (size - _INDEX_HEADER) // _BYTES_A_SLOT
    return {"index_slots": slots, "index_entries": slots * 4}


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
    sizes = Counter(
        entry.size
        for folder in folders
        for entry in disk.list(folder)
        if entry.size and not entry.is_folder and entry.name.isdigit()
    )
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else 0
