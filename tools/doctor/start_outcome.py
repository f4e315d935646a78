"""What a broker would have after its start on a store.

`apache_outcome` runs the model of Apache RocketMQ 5.5.0 (store/apache), `our_outcome` an opening by PocketMQ, each on
an overlay: nothing is written.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...broker.config import BrokerConfig
from ...broker.consumer_groups import Groups
from ...broker.offsets import Offsets
from ...broker.topics import Topics
from ...proto.errors import StoreError
from ...proto.record_run import Longs
from ...store.apache.files import StartRefused
from ...store.apache.queue import JavaQueue
from ...store.apache.settings import ApacheSettings
from ...store.disk import Disk
from ...store.file_changes import stored_changes
from ...store.format.index import TAG_TYPE, index_key
from ...store.format.state_tables import GROUPS, TOPICS, parse_delay_offsets
from ...store.message_store import MessageStore
from ...store.opened_store import OpenedStore, open_ours
from ...store.overlay_disk import OverlayDisk
from ...store.queue_entries import entries_of, reached_entries, reached_lite_entries
from ...store.recovery.report import FindingKind, RecoveryReport
from ...store.state_files import StateFile
from ..inspect.document import ORACLE, OURS, files
from .evidence import Name

_LOOKUP_RESULTS: Final = 64
_NEXT_ENTRY_AT: Final = 36
#: How a key is looked up: topic, key, "" or "T" for tags; the log offsets that are found.
Lookup = Callable[[str, str, str], list[int]]


@dataclass(slots=True)
class StartOutcome:
    """The store as one broker would serve it; REFUSAL says why it would not start at all.

    entries: log offsets of the entries that can be read, by queue;  index: next free entry by index file;
    files: length of every file by its path in the store.
    """

    oracle: str
    refusal: str | None = None
    log_begin: int = 0
    log_end: int = 0
    entries: dict[Name, Longs] = field(default_factory=dict)
    index: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    recovery: RecoveryReport | None = None
    #: What its start would warn of.
    warnings: list[str] = field(default_factory=list)
    lookup: Lookup = lambda *_: []

    def voided(self) -> Longs:
        """Return the log offsets of the damaged records that the broker takes out."""
        findings = self.recovery.findings if self.recovery is not None else []
        offsets = [one.offset for one in findings if one.kind is FindingKind.SKIPPED]
        return np.array([offset for offset in offsets if offset is not None], np.int64)

    def delivered(self) -> Longs:
        """Return the log offsets that some queue delivers, sorted."""
        offsets = [np.zeros(0, np.int64), *self.entries.values()]
        return np.unique(np.concatenate(offsets))


def overlay(root: str, *, crash: bool) -> OverlayDisk:
    """Return a new overlay of the store ROOT; with CRASH as if its broker were killed now."""
    disk = OverlayDisk()
    path = posixpath.join(root, "abort")
    if crash and not disk.exists(path):
        disk.write_file(path, b"")
    return disk


def apache_outcome(
    root: str, settings: ApacheSettings, now_ms: int, *, crash: bool
) -> StartOutcome:
    """Return what Apache RocketMQ's broker would have after its start."""
    disk = overlay(root, crash=crash)
    try:
        java = OpenedStore.as_java(disk, root, settings, now_ms)
    except StartRefused as refusal:
        return StartOutcome(ORACLE, refusal.text, files=files(disk, root))
    store = java.reading
    return StartOutcome(
        oracle=ORACLE,
        log_begin=max(0, store.log_begin),
        log_end=store.log_end,
        entries={key: _java_entries(queue) for key, queue in store.queues.items()},
        index={posixpath.basename(one.path): one.header.next_entry for one in store.index.files},
        files=files(disk, root),
        lookup=lambda topic, key, kind: store.lookup(
            index_key(topic, key, kind), _LOOKUP_RESULTS, typed=kind == TAG_TYPE
        ),
    )


def _java_entries(queue: JavaQueue) -> Longs:
    """Return the log offsets of the entries of QUEUE that a consumer can reach."""
    if queue.kind == "BatchCQ":
        return _units(queue)
    parts = [entries.physical_offset for entries in entries_of(queue, 0, queue.max_offset)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _units(queue: JavaQueue) -> Longs:
    offsets: list[int] = []
    at = queue.min_offset
    while 0 <= at < queue.max_offset:
        before = at
        for unit in queue.units(at):
            offsets.append(unit[1])
            at = unit[0] + max(1, unit[4])
        at = queue.behind_hole(at) if at == before else at
    return np.array(offsets, np.int64)


def our_outcome(root: str, settings: ApacheSettings, now_ms: int, *, crash: bool) -> StartOutcome:
    """Return what our broker would have after its start."""
    disk = overlay(root, crash=crash)
    try:
        warnings = load_tables(disk, root, lambda: now_ms)
        store, _ = open_ours(disk, root, settings, lambda: now_ms)
    except StoreError as error:
        return StartOutcome(OURS, error.message, files=files(disk, root))
    outcome = outcome_of(store, files(disk, root))
    outcome.warnings = warnings
    return outcome


def load_tables(disk: Disk, root: str, now_ms: Callable[[], int]) -> list[str]:
    """Load the tables of the store ROOT by the code of a start; return what that would warn of. Raises CorruptState."""

    def file(name: str) -> StateFile:
        return StateFile(disk, root, name)

    new_topics, new_groups = (stored_changes(disk, root, form) for form in (TOPICS, GROUPS))
    topics = Topics(file(TOPICS.file), BrokerConfig(), now_ms, changes=new_topics)
    groups = Groups(file(GROUPS.file), BrokerConfig(), now_ms, new_groups)
    Offsets(file("consumerOffset.json"), now_ms)
    file("delayOffset.json").load(parse_delay_offsets)
    return [*topics.unusual(), *groups.unusual()]


def _our_entries(store: MessageStore) -> dict[Name, Longs]:
    """Return the log offsets in every queue of STORE that a consumer can reach."""
    plain = {(one.topic, one.queue): reached_entries(one)[1] for one in store.queues}
    return plain | {(one.topic, one.queue): reached_lite_entries(one) for one in store.queues.lite}


def outcome_of(store: MessageStore, paths: dict[str, int]) -> StartOutcome:
    """Return the opened STORE as a result; PATHS are its files with their lengths."""
    return StartOutcome(
        oracle=OURS,
        log_begin=store.min_log_offset,
        log_end=store.max_log_offset,
        entries=_our_entries(store),
        index={
            file.name: file.header.next_entry for file in (store.index.files if store.index else [])
        },
        files=paths,
        recovery=store.recovery,
        lookup=lambda topic, key, kind: store.lookup(
            topic, key, kind="T" if kind else "K", max_results=_LOOKUP_RESULTS
        ),
    )


def index_before(disk: Disk, root: str) -> dict[str, int]:
    """Return the next free entry of each index file as it is now, by name; 0 for a file without a header."""
    folder = posixpath.join(root, "index")
    found: dict[str, int] = {}
    for entry in disk.list(folder):
        if entry.is_folder or not entry.name.isdigit():
            continue
        field = disk.read_at(posixpath.join(folder, entry.name), _NEXT_ENTRY_AT, 4)
        found[entry.name] = max(1, int.from_bytes(field, "big", signed=True)) if field else 0
    return found
