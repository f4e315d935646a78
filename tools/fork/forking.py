"""Making a fork: the files up to the cut, opened and settled once, so that a broker starts on it at once.

What was verified of the source is verified of the fork, as far as it goes, so nothing is read again. A store that our
broker never had is not verified: after a clean stop its fork is made as fast, but the first start of our broker reads
all of it, as it would the source. After an unclean stop it is read while it is forked.

Nobody writes down when a group committed what. So a committed offset becomes the lesser of what the table says and the
queue's end at the cut: a group is never ahead of the fork, but may be further than it was at that moment. What the
broker itself keeps is set back so that nothing waits for ever: a delay level to the first message due behind the
moment, timers to the moment, transactions to the beginning of their queues (the outcomes in the log tell which are
over).

`pocketmq fork STORE --at TIME --to DIR`: a store of its own with what STORE held at a moment, in a second.

Exit codes: 0 done, 1 it failed (DIR is as it was), 2 wrong arguments.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import click
import numpy as np

from ...broker.kept_tables import copy_group_tables
from ...proto.clock import SystemClock
from ...proto.time_text import format_instant
from ...proto.topics import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from ...store.apache.settings import ApacheSettings
from ...store.checkpoints import CHECKPOINT_SIZE, read_timer_checkpoint
from ...store.commit_log import CommitLog
from ...store.disk import Disk
from ...store.file_copies import sync_tree
from ...store.file_sizes import settings_of
from ...store.format.state_tables import (
    parse_consumer_offsets,
    parse_delay_offsets,
    render_consumer_offsets,
    render_delay_offsets,
)
from ...store.message_store import MessageStore
from ...store.offsets_file import OffsetsFile
from ...store.open_files import allow_many_files
from ...store.os_disk import OsDisk
from ...store.overlay_disk import OverlayDisk
from ...store.recovery.report import RecoveryReport
from ...store.recovery.verified import Verified
from ...store.state_files import StateFile
from ..counted import counted
from ..instants import past_instant_of
from ..options import TakesStores, broker_settings, broker_settings_option, store_argument
from ..output import print_json
from ..stores.locations import check_store
from . import skeleton

_WHEEL: Final = "timerwheel"


@dataclass(frozen=True, slots=True)
class Clamped:
    """How many committed offsets were beyond the cut, of how many, and how many levels were set back."""

    offsets: int = 0
    of_offsets: int = 0
    levels: int = 0


@dataclass(slots=True)
class Forked:
    """A fork: the log [LOG_BEGIN, LOG_END) up to CUT. WAS_RUNNING: the source had a broker, or it crashed."""

    cut: skeleton.Cut
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
    """Make TARGET a store with what SOURCE held at TIME_MS; GIVEN are settings by Apache's names.

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
        self._config = settings.store_config(target)

    def run(self) -> Forked:
        disk = OverlayDisk()
        running = disk.exists(os.path.join(self._source, "abort"))
        copied = skeleton.Copied()
        skeleton.copy_small_files(self._source, self._target, copied, without=[_WHEEL])
        cut = skeleton.find_cut(disk, os.path.join(self._source, "commitlog"), self._time_ms)
        rows = skeleton.CutRows(
            OsDisk(), self._source, self._target, self._settings, cut.log_offset
        )
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
        skeleton.limit_checkpoint(store)
        forked.recovery = store.recovery
        forked.log_begin, forked.log_end = store.min_log_offset, store.max_log_offset
        store.close()
        if not forked.verified:
            Verified.forget(overlay, self._config.own_folder)
        skeleton.settle(overlay, self._target)
        skeleton.own_open_files(store)
        sync_tree(self._target)

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


# ---------------------------------------------------------------- progress as of the cut

_TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
_CHUNK: Final = 10_000

Offsets = dict[str, dict[int, int]]


def wind_back_timers(disk: Disk, root: str, cut: skeleton.Cut) -> bool:
    """Let the timers of ROOT go on from the cut's time: their messages are entered again when the store is opened.

    Return whether there are any. Wheel and timer log must not be there.
    """
    path = posixpath.join(root, "config", "timercheck")
    known = read_timer_checkpoint(disk, path)
    if known.is_empty:
        return False
    read_ms = min(known.last_read_ms, max(0, cut.time_ms) // 1000 * 1000)
    # A position beyond the end of the timer log, which is empty, says that it lost its records.
    values = replace(known, last_read_ms=read_ms, log_flushed=max(1, known.log_flushed))
    disk.write_file(path, values.pack().ljust(CHECKPOINT_SIZE, b"\0"))
    return True


def clamp_tables(disk: Disk, root: str, store: MessageStore, cut: skeleton.Cut) -> Clamped:
    """Write the tables of the fork ROOT as of CUT; STORE is the fork, opened on DISK."""
    beyond, total = _clamp_offsets(disk, root, store)
    return Clamped(beyond, total, _clamp_levels(disk, root, store, cut))


def _clamp_offsets(disk: Disk, root: str, store: MessageStore) -> tuple[int, int]:
    file = OffsetsFile(disk, root)
    table = file.load(parse_consumer_offsets).value
    if table is None:
        return 0, 0
    beyond = _clamped(table.offsets, store)
    _clamped(table.pull_offsets, store)
    file.save(render_consumer_offsets(table))
    return beyond, sum(map(len, table.offsets.values()))


def _clamped(offsets: Offsets, store: MessageStore) -> int:
    """Clamp OFFSETS in place; return how many were beyond the end of their queue."""
    beyond = 0
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        for queue, offset in queues.items():
            least, most = store.queue_bounds(topic, queue)
            beyond += offset > most
            queues[queue] = min(offset, most)
            if group == _TRANSACTION_GROUP and topic in (HALF_TOPIC, OP_HALF_TOPIC):
                queues[queue] = least
    return beyond


def _clamp_levels(disk: Disk, root: str, store: MessageStore, cut: skeleton.Cut) -> int:
    file = StateFile(disk, root, "delayOffset.json")
    table = file.load(parse_delay_offsets).value
    if table is None:
        return 0
    back = 0
    for level, offset in table.offsets.items():
        due = min(offset, _due_by(store, level - 1, cut.time_ms))
        back += due < offset
        table.offsets[level] = due
    file.save(render_delay_offsets(table))
    return back


def _due_by(store: MessageStore, queue: int, time_ms: int) -> int:
    """Return the first queue offset of a delay level that is due behind TIME_MS; its tags code is when it is due."""
    found = store.queues.get(SCHEDULE_TOPIC, queue)
    if found is None:
        return 0
    offset = found.min_offset
    while offset < found.max_offset:
        codes = found.entries(offset, _CHUNK)[2]
        late = np.flatnonzero(codes > time_ms)
        if len(late):
            return offset + int(late[0])
        offset = offset + len(codes) if len(codes) else found.offset_behind_hole(offset)
    return found.max_offset


# ---------------------------------------------------------------- `pocketmq fork STORE --at TIME --to DIR`


@click.command(cls=TakesStores)
@store_argument
@click.option(
    "--at",
    "at_time",
    metavar="TIME",
    default="now",
    show_default=True,
    help="The moment: ISO 8601 or Unix milliseconds, by the messages' store time.",
)
@click.option("--to", "target", metavar="DIR", required=True, help="A new or empty folder.")
@broker_settings_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
def fork(*, store: str, at_time: str, target: str, settings: Sequence[str], as_json: bool) -> None:
    """Make DIR a store with everything that STORE held at TIME, ready to be served.

    Closed files are linked, so on one file system it costs little room and time; the files that a broker writes to are
    copied. STORE may be live; it is only read, and stays as it is whatever becomes of the fork.
    """
    allow_many_files()
    time_ms = skeleton.END_OF_TIME_MS if at_time == "now" else past_instant_of(at_time)
    forked = make_fork(store, target, time_ms, broker_settings(settings), SystemClock().unix_ms)
    if as_json:
        print_json(to_json(store, target, forked))
        return
    for line in lines_of(store, target, forked):
        click.echo(line)


def to_json(store: str, target: str, forked: Forked) -> dict[str, Any]:
    """Return FORKED as plain values."""
    cut, copied = forked.cut, forked.copied
    return {
        "store": store,
        "fork": target,
        "cutTime": None if cut.time_ms == skeleton.END_OF_TIME_MS else cut.time_ms,
        "cutOffset": cut.log_offset,
        "isEnd": cut.is_end,
        "logBegin": forked.log_begin,
        "logEnd": forked.log_end,
        "newestStoreTimestamp": cut.last_ms or None,
        "linkedFiles": copied.linked_files,
        "linkedBytes": copied.linked_bytes,
        "copiedFiles": copied.copied_files,
        "copiedBytes": copied.copied_bytes,
        "committedOffsetsClamped": forked.clamped.offsets,
        "committedOffsets": forked.clamped.of_offsets,
        "verified": forked.verified,
        "unknown": forked.unknown(),
        "recovery": None if forked.recovery is None else forked.recovery.to_json(),
    }


def lines_of(store: str, target: str, forked: Forked) -> list[str]:
    """Return FORKED for people."""
    cut, copied = forked.cut, forked.copied
    when = "its end" if cut.is_end else format_instant(cut.time_ms)
    newest = f", newest message stored {format_instant(cut.last_ms)}" if cut.last_ms else ""
    lines = [
        f"{target}: {store} at {when}",
        f"log {forked.log_begin:,}–{forked.log_end:,}{newest}",
        f"{counted(copied.linked_files, 'file')} linked ({copied.linked_bytes:,} bytes),"
        f" {copied.copied_files:,} copied ({copied.copied_bytes:,} bytes)",
    ]
    if forked.clamped.of_offsets:
        lines.append(
            f"{forked.clamped.offsets:,} of {forked.clamped.of_offsets:,} committed offsets were beyond the moment: cut"
            " back to the fork's end"
        )
    findings = forked.recovery.findings if forked.recovery is not None else []
    lines += [f"found: {finding.text()}" for finding in findings[:10]]
    lines += [f"not known: {sentence}" for sentence in forked.unknown()]
    return [*lines, f"serve it: pocketmq serve --store {target}"]
