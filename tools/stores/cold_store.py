"""A store at a location, on whatever disk that names, opened as a broker would have it after its recovery.

    location, = locate(["./store"])
    store = open_cold(location, now_ms=clock.unix_ms())

Separate from locations.py, which a broker imports at its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...proto.errors import StoreMismatch
from ...store.apache.files import StartRefused
from ...store.file_sizes import settings_of
from ...store.opened_store import OpenedStore
from ...store.overlay_disk import OverlayDisk
from . import RecoveryName
from .locations import StoreLocation


def open_cold(
    location: StoreLocation,
    *,
    now_ms: int,
    given: Mapping[str, str] | None = None,
    recovery: RecoveryName = "apache",
    index: bool = True,
) -> OpenedStore:
    """Return the store at LOCATION as a broker would open it at NOW_MS.

    GIVEN are settings by RocketMQ's names (mappedFileSizeCommitLog=65536); sizes that are not given are taken from
    the files. Without INDEX the key index is not completed: that takes nearly all of the time when a broker runs or
    was killed. Where an entry of a table cannot be read, the others count, and the store's `warnings` name it. Raises
    StoreMismatch where the broker would not start, ConfigError for a bad setting.
    """
    base = location.open_disk()
    settings = settings_of(base, location.root, given or {})
    if not index:
        settings = replace(settings, index_file_write=False)
    disk = OverlayDisk(base, on_this_machine=location.is_local)
    warnings: list[str] = []
    way_in = OpenedStore.as_java if recovery == "apache" else OpenedStore.as_ours
    try:
        opened = way_in(disk, location.root, settings, now_ms, warnings)
    except StartRefused as refusal:
        raise _refused(location, recovery, refusal.reason or refusal.text) from None
    except StoreMismatch as refusal:
        raise _refused(location, recovery, refusal.message) from None
    opened.broker_name = location.broker_name
    opened.warnings = warnings
    return opened


def _refused(location: StoreLocation, recovery: RecoveryName, why: str) -> StoreMismatch:
    whose = "Apache RocketMQ" if recovery == "apache" else "a broker"
    return StoreMismatch(
        f"{whose} would not start on {location.url}: {why}; `pocketmq doctor` says more",
        path=location.url,
        recovery=recovery,
    )
