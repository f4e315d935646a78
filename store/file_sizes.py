"""Finds the file sizes of a store from the lengths of its files, if no setting gives them.

All files of one kind have the same length. Where lengths differ, the most frequent is used, and of equally frequent
ones the longest, because damage cuts files short. The length of an index file is 40 + 4 × slots + 20 × entries, which
does not determine both numbers: RocketMQ's default and its usual ratio of four entries per slot are tried.

`settings_of` is for readers of a store, `config_of_files` for the start of a broker. `config_of` uses the size of the
first file, and only the default shape of the index.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping as Settings
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from ..proto.errors import ConfigError
from .apache.settings import ApacheSettings
from .config import APACHE_NAMES, StoreConfig, apply_apache_settings
from .disk import Disk
from .files import equal_file_size
from .format.index import ENTRY, HEADER_SIZE, SLOT

_ENTRIES_A_SLOT: Final = 4
_BYTES_A_SLOT: Final = SLOT.size + _ENTRIES_A_SLOT * ENTRY.size
#: Queues whose files are examined. All have files of one length, unless the store is damaged; some have ten thousands.
_QUEUES_ASKED_MAX = 1_000


def config_of(disk: Disk, path: str, settings: Settings[str, str] | None = None) -> StoreConfig:
    """Return the settings of the store at PATH: RocketMQ's SETTINGS, then the sizes of its files, then defaults.

    ConfigError if the index files have a length that only maxHashSlotNum and maxIndexNum can explain.
    """
    settings = settings or {}
    config = apply_apache_settings(StoreConfig(path=path), settings)
    given = {APACHE_NAMES[name] for name in settings if name in APACHE_NAMES}
    found: dict[str, int] = {}
    for name, folders in _rows(disk, config):
        if name not in given and (size := _first_size(disk, folders)):
            found[name] = size
    if not given & {"index_slots", "index_entries"}:
        _check_index(disk, config)
    return replace(config, **found)  # type: ignore[arg-type]


def _rows(disk: Disk, config: StoreConfig) -> Iterator[tuple[str, Iterator[str]]]:
    yield "log_file_size_bytes", iter((config.log_folder,))
    yield "queue_file_size_bytes", _queue_folders(disk, config.queue_folder)
    yield "batch_queue_file_size_bytes", _queue_folders(disk, config.batch_queue_folder)
    yield "timer_log_file_size_bytes", iter((config.timer_log_folder,))


def _first_size(disk: Disk, folders: Iterator[str]) -> int | None:
    """Return the length of the first file found in FOLDERS."""
    return next((size for folder in folders if (size := equal_file_size(disk, folder))), None)


def _check_index(disk: Disk, config: StoreConfig) -> None:
    sizes = {entry.size for entry in disk.list(config.index_folder) if not entry.is_folder}
    if sizes and config.index_file_size_bytes not in sizes:
        raise ConfigError(
            f"the files in {config.index_folder} are {', '.join(f'{size:,}' for size in sorted(sizes))} bytes long,"
            f" but the default is {config.index_file_size_bytes:,}: give --broker-conf maxHashSlotNum=… and"
            " --broker-conf maxIndexNum=… as in the broker's configuration",
            field="maxHashSlotNum",
        )


def settings_of(disk: Disk, root: str, given: Settings[str, str]) -> ApacheSettings:
    """Return the settings GIVEN by RocketMQ's names, and the sizes of the files of the store ROOT for the others."""
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


def index_shape(disk: Disk, root: str, given: Settings[str, str]) -> dict[str, int]:
    """Return the numbers of slots and entries of the index files; nothing if GIVEN has one, or no file fits."""
    size = _usual_size(disk, [posixpath.join(root, "index")])
    if {"maxHashSlotNum", "maxIndexNum"} & set(given):
        return {}
    if not size or (size - HEADER_SIZE) % _BYTES_A_SLOT:
        return {}
    slots = (size - HEADER_SIZE) // _BYTES_A_SLOT
    return {"index_slots": slots, "index_entries": slots * _ENTRIES_A_SLOT}


def _queue_folders(disk: Disk, root: str) -> Iterator[str]:
    for topic in disk.list(root):
        for queue in disk.list(posixpath.join(root, topic.name)) if topic.is_folder else ():
            yield posixpath.join(root, topic.name, queue.name)


def _usual_size(disk: Disk, folders: Iterable[str]) -> int:
    sizes = _sizes(disk, folders)
    return _most_usual(sizes) if sizes else 0


def _sizes(disk: Disk, folders: Iterable[str]) -> Counter[int]:
    return Counter(
        entry.size
        for folder in islice(folders, _QUEUES_ASKED_MAX)
        for entry in disk.list(folder)
        if entry.size and not entry.is_folder and entry.name.isdigit()
    )


def _most_usual(sizes: Counter[int]) -> int:
    return max(sizes, key=lambda size: (sizes[size], size))


def config_of_files(disk: Disk, config: StoreConfig) -> StoreConfig:
    """Return CONFIG with the sizes of the files of its store in place of defaults, for the start of a broker.

    A broker continues to write files of these sizes, so this requires more than reading a store does: two files of one
    length, or, for a log of one file, a power of two, which no cut leaves.
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
    """Return the most frequent length of files in FOLDERS, if several have it or ALONE accepts a single one; else 0."""
    sizes = _sizes(disk, folders)
    if not sizes:
        return 0
    size = _most_usual(sizes)
    return size if sizes[size] > 1 or alone(size) else 0


def _is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0
