"""The description of a store after our own recovery, in the form of document.py.

The files of the store are read as Apache's broker reads them, within the bounds that our recovery found
(store/view.py). So the document shows what our broker would serve. Differences in form:
`oracle` is "PocketMQ"; `recovery` is the report; a record that recovery skipped stands among `records` as it was,
with `crcOk` false, or among `broken` where no record can be made of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Final

from ...proto.errors import StoreError
from ...proto.record import SYS_ROLLBACK, SYS_TRANSACTION
from ...store.apache.files import Refused
from ...store.apache.records import decode
from ...store.apache.settings import ApacheSettings
from ...store.apache.store import JavaReading
from ...store.disk import Disk
from ...store.overlay_disk import OverlayDisk
from ...store.view import NO_FILE, OpenedStore
from .document import (
    Description,
    Document,
    checkpoint_before,
    files,
    head,
    record_document,
    side_tables,
)

OURS: Final = "PocketMQ"


def describe_ours(
    root: str,
    given: Mapping[str, str],
    settings: ApacheSettings,
    now_ms: int,
    *,
    lookups: bool = True,
) -> Document:
    """Return the description of the store ROOT after our recovery; GIVEN are the settings by Apache's names.

    Without LOOKUPS, half of the work in a large store, that key is an empty list.
    """
    disk = OverlayDisk()
    document = head(disk, root, given, OURS)
    try:
        before = checkpoint_before(disk, root)
        ours = OpenedStore.as_ours(disk, root, settings, now_ms)
    except Refused:
        text = f"a file in {root}/config and its .bak cannot be read: repair one of them"
        return document | {"accepted": False, "refusal": text}
    except StoreError as error:
        return document | {"accepted": False, "refusal": error.message}
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        text = (
            f"{error.filename or root} is, or holds, a folder where a file should be: move it away"
        )
        return document | {"accepted": False, "refusal": text}
    document |= {"filesAfter": files(disk, root), "checkpointBefore": before}
    document |= _OurDescription(ours.reading, disk).parts(lookups=lookups)
    document |= side_tables(ours.config, ours.timers)
    assert ours.report is not None, "our recovery reports"
    return document | {"recovery": ours.report.to_json()}


class _OurDescription(Description):
    """Shows what recovery skipped as it was before."""

    def __init__(self, store: JavaReading, disk: Disk) -> None:
        super().__init__(store)
        self._disk = disk
        self._broken = posixpath.join(store.root, "pocketmq/broken")

    def record(self, data: memoryview, at: int, crc_ok: bool) -> Document:
        now = decode(data)
        path = posixpath.join(self._broken, f"log-{at:020d}")
        if (
            now is None
            or now.sys_flag & SYS_TRANSACTION != SYS_ROLLBACK
            or not self._disk.exists(path)
        ):
            return super().record(data, at, crc_ok)
        saved = decode(memoryview(self._disk.read(path)))
        if saved is None:
            return {
                "offset": at,
                "why": f"{len(data)} bytes were damaged; they are in pocketmq/broken",
            }
        return record_document(saved, at, crc_ok=False)
