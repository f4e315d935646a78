"""Recovery after a stop, clean or not: finds the valid records of the log, and makes everything else agree with them.

The policy of PocketMQ (`RecoveryPolicy.OURS`), in this order:

1. Read the log: all of it, or only what is newer than the last verified point (verified.py).
2. Find its end: the last valid record, or the blank after it. Later bytes are cut and zeroed, even if they look like
   records: such stale records have other offsets, or are older than the records before them.
3. Quarantine damage between valid records (store/log_repair.py), keep the rest.
4. Complete queues and index from the log (derive.py).

Recovery can be repeated without a change. In a replica's log, nothing is kept after a missing file, or after the first
damage that a power cut may have caused. Damage before a record that was on disk is only noted (known_damage.py).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np

from ...proto.errors import CorruptState
from ...proto.record import Record, decode_record
from ...proto.record_run import walk
from ..commit_log import CommitLog
from ..consume_queues import ConsumeQueues, Queue
from ..disk import Disk
from ..files import MappedFile
from ..format.replica_files import EPOCHS_FILE, parse_epochs, render_epochs
from ..index_check import LogPlaces
from ..log_repair import LogRepair
from ..parts import StoreParts
from ..rows_by_queue import by_queue
from ..state_files import StateFile
from .derive import ContradictionFound, Derivation
from .report import FindingKind, RecoveryFinding, RecoveryReport
from .scan import FileDamage, FileScan, ScannedFile
from .verified import Verified

#: Records whose parsed fields are kept for the steps after reading (about 150 bytes each). Those of older files are
#: parsed again. Each record takes about 35 bytes until the end.
_COLUMNS_KEPT_MAX: Final = 1_500_000


def recover(
    parts: StoreParts,
    *,
    clean: bool,
    replica: bool = False,
    cut_at: int | None = None,
    before_repair: Callable[[int], None],
) -> RecoveryReport:
    """Recover the store of PARTS, which were just loaded; return the findings and repairs.

    Args:
        clean: The last owner left no `abort` file.
        replica: The store belongs to a replica set.
        cut_at: The log must end there, whatever it holds, where a record begins (`LogCut`).
        before_repair: Called with the log offset of the first damage between valid records, before any is repaired.

    Raises:
        StoreFull, DiskFailure: The next opening then continues.
    """
    recovery = _Recovery(
        parts, clean=clean, replica=replica, cut_at=cut_at, before_repair=before_repair
    )
    return recovery.run()


class LogCut:
    """The request to end the log at an offset: the file `log-cut` in FOLDER, PocketMQ's of a store, with the offset.

    Recovery cuts the log there before it reads it, makes the rest agree with it, and removes the request last. So a
    crash at any moment leaves the log unchanged, or is followed by another cut at the same offset.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/log-cut"

    @property
    def offset(self) -> int | None:
        """Where the log must end; None: there is no request. Raises CorruptState if it cannot be read."""
        if not self._disk.exists(self._path):
            return None
        text = self._disk.read(self._path)
        if not text.strip().isdigit():
            raise CorruptState(
                f"{self._path} contains no log offset: {text[:40]!r}. Move the file away, and start the replica again",
                path=self._path,
            )
        return int(text)

    def set(self, offset: int) -> None:
        """Request that the next opening cuts the log at OFFSET."""
        self._disk.make_folders(self._folder)
        self._disk.write_atomically(self._path, b"%d\n" % offset)

    def remove(self) -> None:
        """Remove the request: the log was cut, and everything derived from it is on disk."""
        self._disk.delete(self._path)
        self._disk.sync_folder(self._folder)


class _Recovery:
    """One recovery."""

    def __init__(
        self,
        parts: StoreParts,
        *,
        clean: bool,
        replica: bool,
        cut_at: int | None,
        before_repair: Callable[[int], None],
    ) -> None:
        self._clean = clean
        self._replica = replica
        self._cut_at = cut_at
        self._before_repair = before_repair
        self._config = parts.config
        self._disk = parts.disk
        self._parts = parts
        self._log = parts.log
        self._checkpoint = parts.checkpoint.values
        self._findings: list[RecoveryFinding] = []
        #: Start and end of damage in a replica's log that was not changed.
        self._damaged: list[tuple[int, int]] = []
        self._repair = LogRepair(parts.disk, f"{parts.config.own_folder}/broken")

    def run(self) -> RecoveryReport:
        if not self._log.files.files:
            return self._without_log()
        known = Verified.load(self._disk, self._config.own_folder)
        changed = self._parts.queues.recover(None, None if known is None else known.sums_of)
        is_cut = self._note_cut_files()
        if self._parts.queues.lite.unusable:
            known = None
        if known is not None and (is_cut or changed or not known.holds(self._parts)):
            known = None
        if self._cut_at is not None:
            known = self._cut_log(self._cut_at, known)
        try:
            return self._recover_from(known, changed)
        except ContradictionFound:
            return self._recover_from(None, changed)

    def _recover_from(self, known: Verified | None, changed: list[Queue]) -> RecoveryReport:
        """Recover without reading the part that is KNOWN (None: nothing). The entries of CHANGED are not trusted."""
        if known is None:
            Verified.forget(self._disk, self._config.own_folder)
        files = self._scan(known)
        if self._replica:
            _keep_whole(files, self._checkpoint.log_time_ms)
        self._end_log(files, known)
        self._note_log_holes()
        voided = self._repair_damage(files)
        derivation = Derivation(
            self._parts, files, self._findings, clean=self._clean, known=known, changed=changed
        )
        derivation.derive(voided)
        self._note_end(files, known)
        return RecoveryReport(
            clean=self._clean,
            log_begin=self._log.min_offset,
            log_end=self._log.max_offset,
            scanned_records=sum(map(len, files)),
            scanned_bytes=sum(one.end for one in files),
            findings=self._findings,
            damaged=self._damaged,
        )

    def _scan(self, known: Verified | None) -> list[ScannedFile]:
        files: list[ScannedFile] = []
        kept = 0
        begin, newest_ms = (0, 0) if known is None else (known.log_end, known.newest_ms)
        for file in self._log.files.files:
            if file.end <= begin:
                continue
            at = max(0, begin - file.start)
            check_crc = self._config.check_crc_on_recover
            scanned = FileScan(file, at=at, check_crc=check_crc, oldest_ms=newest_ms).scan()
            newest_ms = max(newest_ms, scanned.newest_ms)
            files.append(scanned)
            kept += len(scanned)
            if kept > _COLUMNS_KEPT_MAX:
                for one in files[:-1]:
                    one.release()
                kept = len(scanned)
        return files

    def _end_log(self, files: list[ScannedFile], known: Verified | None) -> None:
        """Set the end of the log after the last valid record; forget the files after it."""
        last = max((n for n, one in enumerate(files) if len(one)), default=-1)
        if last < 0:
            self._cut(self._log.min_offset if known is None else known.log_end)
            files.clear()
            return
        newest = files[last]
        before_ms = max((one.newest_ms for one in files[:last]), default=0)
        stale = stale_begin(newest, before_ms, self._parts.queues)
        if stale is not None:
            newest.cut_to(int(newest.log_offsets[stale]) - newest.file.start)
        end = newest.file.start + newest.end
        if newest.has_blank:
            end = newest.file.end
        self._cut(end)
        del files[last + 1 :]

    def _cut_log(self, end: int, known: Verified | None) -> Verified | None:
        """End the log at END, on disk; return what is KNOWN of the rest, None if all of it must be read."""
        why = "cut as requested: the master's log differs from here on"
        self._note(FindingKind.CUT, self._config.log_folder, why, offset=end)
        # From here on queues and index may be incomplete: after a crash, the whole log must be read again.
        self._disk.write_atomically(self._config.abort_path, b"")
        Verified.forget(self._disk, self._config.own_folder)
        self._log.truncate(end)
        for part in self._log.take_dirty():
            part.sync()
        self._cut_epochs(end)
        last = _last_record(self._log)
        if known is None or not self._clean or last is None:
            return None
        return Verified.claimed(
            self._log, end, last_offset=last, newest_ms=known.newest_ms, index=list(known.index)
        )

    def _cut_epochs(self, end: int) -> None:
        """Forget the epochs that begin after END. One that begins at END stays, without a record."""
        file = StateFile(self._disk, self._config.path, EPOCHS_FILE, "")
        known = file.load(parse_epochs).value or ()
        kept = [(epoch, start) for epoch, start in known if start <= end]
        if len(kept) < len(known):
            file.save(render_epochs(kept))

    def _cut(self, end: int) -> None:
        files = self._log.files.files
        lost = sum(_used_behind(file, end) for file in files)
        if lost:
            why = "no valid record follows: cut, and the bytes were zeroed"
            self._note(FindingKind.CUT, self._config.log_folder, why, offset=end, size_bytes=lost)
        self._log.truncate(end)

    def _note_cut_files(self) -> bool:
        """Note the files that another program shortened; return whether there are any."""
        log = f"{self._config.log_folder}/"
        for path, size in self._parts.cut:
            lost = (
                "the bytes after that are lost" if path.startswith(log) else "rebuilt from the log"
            )
            why = f"the file had been cut to {size:,} bytes: {lost}"
            self._note(
                FindingKind.CUT if path.startswith(log) else FindingKind.REBUILT,
                path,
                why,
                offset=None,
            )
        return bool(self._parts.cut)

    def _note_log_holes(self) -> None:
        files = self._log.files.files
        for before, after in pairwise(files):
            if before.end != after.start:
                why = f"log files up to {after.start:,} are missing: their records are lost"
                size = after.start - before.end
                self._note(
                    FindingKind.HOLE,
                    self._config.log_folder,
                    why,
                    offset=before.end,
                    size_bytes=size,
                )

    def _repair_damage(self, files: list[ScannedFile]) -> list[Record]:
        """Repair the damage in FILES; return the records whose bodies were wrong."""
        damaged = [one.file.start + damage.start for one in files for damage in one.damages]
        damaged += [one.file.start + one.end for one in files[:-1] if not one.has_blank]
        if damaged:
            self._before_repair(min(damaged))
        voided: list[Record] = []
        newest_ms = 0
        for number, scanned in enumerate(files):
            for damage in scanned.damages:
                if damage.is_framed:
                    voided.append(decode_record(scanned.file.view, damage.start))
                if self._replica:
                    self._leave(scanned.file, damage.start, damage.end)
                    fate = "it will be requested from another replica"
                else:
                    self._repair.replace(scanned.file, damage, newest_ms)
                    fate = "quarantined in pocketmq/broken, readers skip it"
                self._note(
                    FindingKind.SKIPPED,
                    scanned.file.path,
                    f"{damage.why}: {fate}",
                    offset=scanned.file.start + damage.start,
                    records=1 if damage.is_framed else 0,
                    size_bytes=damage.end - damage.start,
                )
            if not scanned.has_blank and number < len(files) - 1:
                self._close_file(scanned)
            newest_ms = max(newest_ms, scanned.newest_ms)
        return voided

    def _leave(self, file: MappedFile, start: int, end: int) -> None:
        """Note the damage [START, END) of FILE without changing it: another replica has the original bytes."""
        self._damaged.append((file.start + start, file.start + end))

    def _close_file(self, scanned: ScannedFile) -> None:
        if self._replica:
            self._leave(scanned.file, scanned.end, scanned.file.size)
            fate = "it will be requested from another replica"
        else:
            self._repair.close_file(scanned.file, scanned.end)
            fate = "closed with a blank"
        self._note(
            FindingKind.SKIPPED,
            scanned.file.path,
            f"neither a record nor a blank from here to the file's end: {fate}",
            offset=scanned.file.start + scanned.end,
            size_bytes=scanned.file.size - scanned.end,
        )

    def _without_log(self) -> RecoveryReport:
        """Continue after the last entries of the queues, so that no queue offset is used twice."""
        queues = self._parts.queues
        queues.recover(None)
        end = queues.max_log_end
        if end > 0:
            files = self._log.files
            file = files.start_at(-(-end // files.file_size) * files.file_size)
            why = f"there are no log files: all messages are lost, the log continues at {file.start:,}"
            self._note(FindingKind.HOLE, self._config.log_folder, why, offset=0)
            queues.correct_min_offsets(file.start)
        self._delete_damaged_index()
        end = self._log.max_offset
        return RecoveryReport(
            clean=self._clean, log_begin=end, log_end=end, findings=self._findings
        )

    def _delete_damaged_index(self) -> None:
        """Delete index files that contradict themselves, in a store without a log to compare them with."""
        index = self._parts.index
        nowhere = LogPlaces(self._log.min_offset, np.zeros(0, np.int64), lambda offset: True)
        damage = None if index is None else index.delete_damaged(nowhere)
        if index is not None and damage is not None:
            self._note(FindingKind.REBUILT, index.folder, damage.message, offset=None)

    def _note_end(self, files: list[ScannedFile], known: Verified | None) -> None:
        """Set the last record in the checkpoint."""
        checkpoint = self._checkpoint
        if files and len(files[-1]):
            checkpoint.confirm(files[-1].last_log_offset)
            checkpoint.note_log(max(checkpoint.log_time_ms, files[-1].newest_ms))
        elif known is not None:
            checkpoint.confirm(known.last_offset)

    def _note(
        self,
        kind: FindingKind,
        path: str,
        why: str,
        *,
        offset: int | None,
        records: int = 0,
        size_bytes: int = 0,
    ) -> None:
        finding = RecoveryFinding(
            kind=kind, path=path, why=why, offset=offset, records=records, size_bytes=size_bytes
        )
        self._findings.append(finding)


def _last_record(log: CommitLog) -> int | None:
    """Return the log offset of the last record; None if the last file with bytes has no record."""
    file = next((one for one in reversed(log.files.files) if one.position), None)
    starts = () if file is None else walk(file.view[: file.position])[0].tolist()
    return file.start + starts[-1] if file is not None and starts else None


def _keep_whole(files: list[ScannedFile], flushed_ms: int) -> None:
    """Keep only the part of FILES before the first damage, or before a missing file.

    Damage before records stored before FLUSHED_MS is ignored: those records were on disk.
    """
    for number, scanned in enumerate(files):
        following = files[number + 1] if number + 1 < len(files) else None
        is_flushed = following is not None and bool((following.columns.store_ms < flushed_ms).any())
        doubtful = [] if is_flushed else _behind_flushed(scanned, flushed_ms)
        if doubtful:
            scanned.cut_to(doubtful[0].start)
        elif following is None or (
            (scanned.has_blank or is_flushed) and scanned.file.end == following.file.start
        ):
            continue
        del files[number + 1 :]


def _behind_flushed(scanned: ScannedFile, flushed_ms: int) -> list[FileDamage]:
    """Return the damage of SCANNED after all of its records stored before FLUSHED_MS."""
    if not scanned.damages:
        return []
    columns = scanned.columns
    flushed = columns.starts[columns.store_ms < flushed_ms]
    last = int(flushed[-1]) if len(flushed) else -1
    return [damage for damage in scanned.damages if damage.start > last]


def _used_behind(file: MappedFile, end: int) -> int:
    """Return how many bytes of FILE would be cut: from log offset END on, up to the last that is not zero."""
    start = max(0, end - file.start)
    if start >= file.size:
        return 0
    stop = file.mapping.data_end(start, file.size)
    chunk = 1 << 20
    while stop > start:
        begin = max(start, stop - chunk)
        used = np.flatnonzero(file.data[begin:stop])
        if len(used):
            return begin + int(used[-1]) + 1 - start
        stop = begin
    return 0


def stale_begin(scanned: ScannedFile, oldest_ms: int, queues: ConsumeQueues) -> int | None:
    """Return the row of the first stale record of the log's last file; None if there is none.

    Stale records are old bytes of the file that happen to follow the new end. A broker that cuts its log without
    zeroing (Apache RocketMQ) and then appends leaves them after the new end, with correct log offsets of their own.
    Records are stale if none from the first of them on is as young as the record before it, and their queue offsets do
    not continue those before. A single one is no proof: clocks are set back, and acknowledged messages must not be
    dropped for that. OLDEST_MS is the store time of the newest record before the file. QUEUES have the queue offsets
    before it. A record is older if two before it are newer: no CRC covers a store time, so a single one may be damaged.
    """
    columns = scanned.columns
    if not len(columns):
        return None
    times = columns.store_ms
    newest = np.maximum(np.maximum.accumulate(times), oldest_ms)
    before = np.concatenate((np.array([oldest_ms]), newest[:-1]))
    second = np.maximum.accumulate(np.maximum(np.minimum(before, times), oldest_ms))
    is_alone = not oldest_ms and len(times) > 1 and int(times[0]) > int(times[1:].max())
    older = times < (newest if is_alone else second)
    if not older[-1]:
        return None
    first = len(older) - int(older[::-1].argmin()) if not older.all() else 0
    return None if _continues(scanned, first, queues) else first


def _continues(scanned: ScannedFile, first: int, queues: ConsumeQueues) -> bool:
    """Do the queue offsets from the record FIRST on continue those of the records before it?"""
    columns, data = scanned.columns, scanned.file.data
    following: dict[tuple[str, int], int] = {}
    for topic, queue, rows in by_queue(data, columns, np.arange(first)):
        following[topic, queue] = int(columns.queue_offset[rows[-1]]) + 1
    begin = int(columns.log_offset[first])
    for topic, queue, rows in by_queue(data, columns, np.arange(first, len(columns))):
        wanted = following.get((topic, queue))
        if wanted is None:
            known = queues.get(topic, queue)
            wanted = 0 if known is None else known.first_from(begin)
        if int(columns.queue_offset[rows[0]]) != wanted:
            return False
    return True
