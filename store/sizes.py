"""The file sizes of a store, where its files tell them.

All files of a row have one length, so any of them tells it. An index file's length does not tell how many slots and
entries it has, unless it is the default's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..proto.errors import ConfigError
from .config import APACHE_NAMES, StoreConfig, apply_apache_settings
from .disk import Disk
from .files import equal_file_size


def config_of(disk: Disk, path: str, settings: Mapping[str, str] | None = None) -> StoreConfig:
    """Return the settings of the store at PATH: Apache-style SETTINGS, what its files tell, Apache's defaults.

    ConfigError if the index files have a length that only maxHashSlotNum and maxIndexNum can explain.
    """
    settings = settings or {}
    config = apply_apache_settings(StoreConfig(path=path), settings)
    given = {APACHE_NAMES[name] for name in settings}
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


def _queue_folders(disk: Disk, root: str) -> Iterator[str]:
    for topic in disk.list(root):
        for queue in disk.list(os.path.join(root, topic.name)):
            yield os.path.join(root, topic.name, queue.name)


def _first_size(disk: Disk, folders: Iterator[str]) -> int | None:
    """Return the length of the files in the first of FOLDERS that tells one."""
    return next((size for folder in folders if (size := equal_file_size(disk, folder))), None)


def _check_index(disk: Disk, config: StoreConfig) -> None:
    sizes = {entry.size for entry in disk.list(config.index_folder) if not entry.is_folder}
    if sizes and config.index_file_size_bytes not in sizes:
        raise ConfigError(
            f"the files in {config.index_folder} are {', '.join(f'{size:,}' for size in sorted(sizes))} bytes long,"
            f" not {config.index_file_size_bytes:,} as by default: say --set maxHashSlotNum=… and"
            " --set maxIndexNum=… as in the broker's configuration",
            field="maxHashSlotNum",
        )
