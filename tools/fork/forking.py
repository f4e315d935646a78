"""Making a fork: the files up to the cut, opened and settled once, so that a broker starts on it at once.

What was verified of the source is verified of the fork, as far as it goes, so nothing is read again. A store that
PocketMQ never had is not verified: after a clean stop its fork is made as fast, but PocketMQ's first start reads all of
it, as it would the source. After an unclean stop it is read while it is forked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...broker.broker_tables import copy_group_tables
from ...proto.clock import SystemClock
from ...proto.errors import CorruptState
from ...store.apache.settings import ApacheSettings
from ...store.commit_log import CommitLog
from ...store.file_changes import ChangeTable, stored_changes
from ...store.file_copies import sync_tree
from ...store.file_sizes import settings_of
from ...store.file_table import FileTable
from ...store.format.state_tables import GROUPS, TOPICS, TableForm
from ...store.message_store import MessageStore
from ...store.os_disk import OsDisk
from ...store.overlay_disk import OverlayDisk
from ...store.recovery.report import RecoveryReport
from ...store.recovery.verified import Verified
from ...store.state_files import StateFile
from ..stores.locations import check_store
from . import skeleton
from .cut import Cut, CutRows, find_cut
from .progress import Clamped, clamp_tables, wind_back_timers

_WHEEL: Final = "timerwheel"


@dataclass(slots=True)
class Forked:
    """A fork: the log [LOG_BEGIN, LOG_END) up to CUT. WAS_RUNNING: the source had a broker, or it crashed."""

    cut: Cut
    was_running: bool
    verified: bool = False
    log_begin: int = 0
    log_end: int = 0
    copied: skeleton.Copied = field(default_factory=skeleton.Copied)
    clamped: Clamped = field(default_factory=Clamped)
    has_timers: bool = False
    recovery: RecoveryReport | None = None

    def unknown(self) -> list[str]:
        """Return what the files do not tell about the moment, a sentence each."""
        found = []
        if not self.cut.is_end:
            found.append(
                "when a group committed what: committed offsets are the latest ones, but never beyond the fork's end"
            )
            found.append("topics, groups and their settings are the latest ones")
            if self.has_timers or self.clamped.levels:
                found.append(
                    "which delayed messages were late at the moment: those due before it count as delivered"
                )
        if not self.verified:
            found.append(
                "whether the source is sound: our broker never read it, and reads all of the fork at its first start"
            )
        return found


def make_fork(
    source: str, target: str, time_ms: int, given: Mapping[str, str], now_ms: Callable[[], int]
) -> Forked:
    """Make TARGET a store with what SOURCE held at TIME_MS; GIVEN are settings by RocketMQ's names.

    Raises InvalidArgument (TARGET is there), StoreMismatch (no store, or files that do not belong), StoreFull,
    DiskFailure; then TARGET is as it was.
    """
    check_store(source)
    skeleton.require_new_folder(target, source)
    was_there = os.path.isdir(target)
    try:
        os.makedirs(target, exist_ok=True)
        return _Forking(source, target, time_ms, settings_of(OsDisk(), source, given), now_ms).run()
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        if was_there:
            os.makedirs(target, exist_ok=True)
        raise


class _Forking:
    """One fork."""

    def __init__(
        self,
        source: str,
        target: str,
        time_ms: int,
        settings: ApacheSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._source, self._target = source, target
        self._time_ms = time_ms
        self._settings = settings
        self._now_ms = now_ms
        self._changes: list[tuple[TableForm[Any], ChangeTable]] = []
        self._config = settings.store_config(target)

    def run(self) -> Forked:
        disk = OverlayDisk()
        running = disk.exists(os.path.join(self._source, "abort"))
        copied = skeleton.Copied()
        # First: a broker may run, and forgets changes that are in its files.
        self._changes = [
            (form, stored_changes(disk, self._source, form)) for form in (TOPICS, GROUPS)
        ]
        skeleton.copy_small_files(self._source, self._target, copied, without=[_WHEEL])
        cut = find_cut(disk, os.path.join(self._source, "commitlog"), self._time_ms)
        rows = CutRows(OsDisk(), self._source, self._target, self._settings, cut.log_offset)
        rows.copy(copied)
        rows.copy_others(copied)
        forked = Forked(cut, running, copied=copied)
        self._copy_timers(forked)
        self._open(forked)
        return forked

    def _copy_timers(self, forked: Forked) -> None:
        wheel = os.path.join(self._source, _WHEEL)
        forked.has_timers = os.path.exists(wheel)
        if not forked.cut.is_end:
            forked.has_timers = wind_back_timers(OsDisk(), self._target, forked.cut)
            return
        skeleton.copy_rows(self._source, self._target, forked.copied, only=["timerlog"])
        if forked.has_timers:
            forked.copied.copy(wheel, os.path.join(self._target, _WHEEL))

    def _open(self, forked: Forked) -> None:
        """Open the fork in memory, bring it into line with the cut, and write down what that changed."""
        overlay = OverlayDisk()
        if not overlay.list(
            self._config.index_folder
        ):  # None to cut; making one means to read all.
            self._config = replace(self._config, index=False)
        forked.verified = self._prepare(overlay, forked)
        store = MessageStore.open(self._config, disk=overlay, now_ms=self._now_ms)
        if forked.cut.is_end:  # Else the statistics are about messages that are not there.
            copy_group_tables(OsDisk(), self._source, store, SystemClock())
        else:
            forked.clamped = clamp_tables(overlay, self._target, store, forked.cut)
        self._complete_files(overlay)
        skeleton.limit_checkpoint(store)
        forked.recovery = store.recovery
        forked.log_begin, forked.log_end = store.min_log_offset, store.max_log_offset
        store.close()
        if not forked.verified:
            Verified.forget(overlay, self._config.own_folder)
        skeleton.settle(overlay, self._target)
        skeleton.own_open_files(store)
        sync_tree(self._target)

    def _complete_files(self, overlay: OverlayDisk) -> None:
        """Write the files of topics and groups with the changes that only the source's journal has."""
        for form, changes in self._changes:
            with suppress(CorruptState):  # A start of the fork reports it.
                file = StateFile(overlay, self._target, form.file)
                FileTable(file, form, self._now_ms, changes=changes).close()

    def _prepare(self, overlay: OverlayDisk, forked: Forked) -> bool:
        """Say what of the fork need not be read; return whether all of it was verified, now or before."""
        known = Verified.load(overlay, self._config.own_folder)
        cut = forked.cut
        if known is not None and known.log_end <= cut.log_offset:
            if forked.was_running:
                overlay.write_file(self._config.abort_path, b"")
            return True
        if known is None and forked.was_running:
            overlay.write_file(self._config.abort_path, b"")
            return True
        log = CommitLog.load(overlay, self._config.log_folder, self._config.log_file_size_bytes)
        claim = Verified.claimed(
            log,
            cut.log_offset,
            last_offset=cut.last_offset,
            newest_ms=cut.last_ms,
            index=[entry.name for entry in overlay.list(self._config.index_folder)],
        )
        claim.save(overlay, self._config.own_folder)
        return known is not None
