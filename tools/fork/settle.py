"""Writing down what an overlay holds: a folder becomes what recovery made of it in memory.

Only for folders that this program made itself. A file that is linked to another store is replaced, never changed.
"""

from __future__ import annotations

import os
from typing import Final

from ...store.copies import has_other_names, make_own
from ...store.log_writer import store_time_ms
from ...store.message_store import MessageStore
from ...store.os_disk import OsDisk
from ...store.overlay_disk import OverlayDisk
from ...store.private_mapping import PrivateMapping

_CHUNK: Final = 1 << 20


def settle(overlay: OverlayDisk, root: str) -> None:
    """Make the folder ROOT hold what OVERLAY shows there; nothing is synced."""
    disk = OsDisk()
    inside = os.path.join(os.path.abspath(root), "")
    for path in overlay.gone():
        if path.startswith(inside):
            _remove(disk, path)
    for folder in overlay.made_folders():
        if folder.startswith(inside):
            disk.make_folders(folder)
    for path, file in overlay.changed_files().items():
        if path.startswith(inside):
            _write(disk, path, file)


def _remove(disk: OsDisk, path: str) -> None:
    if disk.is_folder(path):
        disk.delete_folder(path)
    elif disk.exists(path):
        disk.delete(path)


def _write(disk: OsDisk, path: str, file: PrivateMapping) -> None:
    """Make the file PATH contain what FILE shows; parts that are the same already are not written."""
    disk.make_folders(os.path.dirname(path))
    in_place = disk.exists(path) and disk.size(path) == file.size and not has_other_names(path)
    if in_place:
        _fill(disk, path, file)
        return
    draft = f"{path}.settled"  # FILE still reads what did not change from PATH.
    _fill(disk, draft, file)
    disk.rename(draft, path)


def _fill(disk: OsDisk, path: str, file: PrivateMapping) -> None:
    target = disk.open_map(path, size=file.size, create=True)
    try:
        for at in range(0, file.size, _CHUNK):
            end = min(at + _CHUNK, file.size)
            if not file.extents(at, end) and target.data_end(at, end) == at:
                continue
            data = file.view[at:end]
            if target.read(at, end - at) != data:
                target.write(at, data)
    finally:
        target.close()


def limit_checkpoint(store: MessageStore) -> None:
    """Let the checkpoint of STORE claim no more than its log holds: what follows is not on the device yet."""
    values = store.parts.checkpoint.values
    newest_ms = store_time_ms(store.log, values.confirm_offset) or 0
    values.log_time_ms = min(values.log_time_ms, newest_ms)
    values.queues_time_ms = min(values.queues_time_ms, newest_ms)
    values.index_time_ms = min(values.index_time_ms, newest_ms)
    values.queues_log_offset = min(values.queues_log_offset, values.confirm_offset)
    values.master_flushed_offset = min(values.master_flushed_offset, store.max_log_offset)


def own_open_files(store: MessageStore) -> None:
    """See that no file that a broker will write to, the last one of each row, is another store's, too.

    Closed files are only ever read, and deleted.
    """
    rows = [store.log.files, store.timers.log.files, *(queue.files for queue in store.queues)]
    paths = [row.last.path for row in rows if row.last is not None]
    if store.index is not None and store.index.files:
        paths.append(store.index.files[-1].path)
    for path in paths:
        if os.path.exists(path):
            make_own(path)
