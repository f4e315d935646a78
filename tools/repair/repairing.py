"""Making a repaired copy: the files of the store, fitted, recovered from beginning to end, and settled.

The whole log is read, with every CRC; what recovery changes is worked out in memory and then written to the copy, so
the store itself, whose closed files the copy links to, keeps every byte.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...store.copies import sync_tree
from ...store.message_store import MessageStore
from ...store.os_disk import OsDisk
from ...store.overlay_disk import OverlayDisk
from ...store.recovery import RecoveryReport
from ..doctor.evidence import Evidence, gather
from ..doctor.losses import Losses, find_losses
from ..doctor.outcome import outcome_of
from ..fork.skeleton import (
    Copied,
    copy_rows,
    copy_small_files,
    limit_checkpoint,
    own_open_files,
    require_new_folder,
    settle,
)
from ..stores.locations import check_store
from ..stores.sizes import settings_of
from .fitting import Fitted, Fitting

_NOT_BELIEVED = ("pocketmq/verified.json",)


@dataclass(slots=True)
class Repaired:
    """What was found in the store, what was changed in the copy, and what is lost."""

    evidence: Evidence
    fitted: Fitted
    recovery: RecoveryReport
    losses: Losses
    copied: Copied = field(default_factory=Copied)


def make_repaired_copy(
    source: str, target: str, given: Mapping[str, str], now_ms: Callable[[], int]
) -> Repaired:
    """Make TARGET a repaired copy of the store SOURCE; GIVEN are settings by Apache's names.

    Raises InvalidArgument (TARGET is there), StoreRefused (no store), StoreFull, DiskFailure; then TARGET is as it was.
    """
    check_store(source)
    require_new_folder(target, source)
    was_there = os.path.isdir(target)
    try:
        os.makedirs(target, exist_ok=True)
        return _repair(source, target, given, now_ms)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        if was_there:
            os.makedirs(target, exist_ok=True)
        raise


def _repair(
    source: str, target: str, given: Mapping[str, str], now_ms: Callable[[], int]
) -> Repaired:
    settings = settings_of(OsDisk(), source, given)
    running = os.path.exists(os.path.join(source, "abort"))
    copied = Copied()
    copy_small_files(source, target, copied, without=_NOT_BELIEVED)
    copy_rows(source, target, copied)
    evidence = gather(OverlayDisk(), target, settings)
    fitted = Fitting(target, settings, now_ms()).run()
    overlay = OverlayDisk()
    config = settings.store_config(target)
    if running:
        overlay.write_file(config.abort_path, b"")
    store = MessageStore.open(config, disk=overlay, now_ms=now_ms)
    limit_checkpoint(store)
    losses = find_losses(evidence, outcome_of(store, {}))
    recovery = store.recovery
    store.close()
    settle(overlay, target)
    own_open_files(store)
    sync_tree(target)
    return Repaired(evidence, fitted, recovery, losses, copied)
