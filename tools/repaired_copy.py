"""Making a repaired copy: the files of the store, fitted, recovered from beginning to end, and settled.

The whole log is read, with every CRC; what recovery changes is worked out in memory and then written to the copy, so
the store itself, whose closed files the copy links to, keeps every byte.

Fitting brings the files of the copy into the forms that a broker accepts, before recovery judges what is in them:

    a file of a row with another length   is cut, or grown with zeros, to the length of the others
    a foreign name, a folder for a file   is moved to pocketmq/broken
    a table that does not parse           is moved to pocketmq/broken; its `.bak` takes its place
    no readable topics.json               is made again from the queues' folders

It works in place, on a copy alone: a linked file is copied before its length is changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..proto.errors import StoreError
from ..store.apache.config_beans import counts, filters, orders, queue_mappings, request_modes
from ..store.apache.settings import ApacheSettings
from ..store.file_copies import copy_file, sync_tree
from ..store.file_sizes import settings_of
from ..store.format import state_tables
from ..store.format.java_json import parse_object
from ..store.format.queues import LIGHT_PREFIX
from ..store.message_store import MessageStore
from ..store.offsets_file import LMQ_OFFSETS_FILE, OFFSETS_FILE
from ..store.os_disk import OsDisk
from ..store.overlay_disk import OverlayDisk
from ..store.recovery.report import RecoveryReport
from ..store.state_files import BROKEN_FOLDER, StateFile
from .counted import counted
from .doctor.evidence import StoreEvidence, gather
from .doctor.losses import StartLosses, find_losses
from .doctor.start_outcome import outcome_of
from .fork import skeleton
from .stores.locations import check_store

_BATCH_ATTRIBUTE: Final = {"queue.type": "BatchCQ"}
_TOPICS: Final = "topics.json"
#: What must be a file at the store's root, or under config/.
_SINGLE_FILES: Final = ("checkpoint", "timerwheel", "abort", "lock", "config/timercheck")
_NOT_BELIEVED = ("pocketmq/verified.json",)


@dataclass(slots=True)
class Fitted:
    """What was changed, a sentence each."""

    sentences: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        """Remember SENTENCE."""
        self.sentences.append(sentence)


class Fitting:
    """Fits the copy ROOT; NOW_MS is the time of day."""

    def __init__(self, root: str, settings: ApacheSettings, now_ms: int) -> None:
        self._root = root
        self._settings = settings
        self._now_ms = now_ms
        self._disk = OsDisk()
        self.fitted = Fitted()

    def run(self) -> Fitted:
        """Do all of it."""
        for name in ("config", *skeleton.ROWS):
            self._require_folder(name)
        for name in _SINGLE_FILES:
            if os.path.isdir(self._path(name)):
                self._set_aside(name, "there is a folder instead of a file")
        self._fit_rows()
        for name, parse_text in self._tables().items():
            self._fit_table(name, parse_text)
        self._fit_topics()
        return self.fitted

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def _set_aside(self, name: str, why: str) -> None:
        folder = self._path(BROKEN_FOLDER)
        os.makedirs(folder, exist_ok=True)
        taken = set(os.listdir(folder))
        plain = name.replace("/", "-")
        number = next(n for n in range(1, len(taken) + 2) if f"{plain}.{n}" not in taken)
        os.rename(self._path(name), os.path.join(folder, f"{plain}.{number}"))
        self.fitted.add(f"{name}: {why}: moved to {BROKEN_FOLDER}")

    def _require_folder(self, name: str) -> None:
        if os.path.lexists(self._path(name)) and not os.path.isdir(self._path(name)):
            self._set_aside(name, "there is a file instead of a folder")

    def _fit_rows(self) -> None:
        settings = self._settings
        self._fit_row("commitlog", settings.log_file_size)
        self._fit_row("timerlog", settings.timer_log_file_size)
        self._fit_index()
        for kind, size in (
            ("consumequeue", settings.queue_file_bytes),
            ("batchconsumequeue", settings.batch_queue_file_size),
        ):
            for topic in self._folders(kind):
                for queue in self._folders(f"{kind}/{topic}"):
                    self._fit_row(f"{kind}/{topic}/{queue}", size)
        plain = set(self._folders("consumequeue"))
        for topic in self._folders("batchconsumequeue"):
            if topic in plain:
                self._set_aside(
                    f"batchconsumequeue/{topic}", "the topic has queues of the other kind, too"
                )

    def _folders(self, name: str) -> list[str]:
        return [entry.name for entry in self._disk.list(self._path(name)) if entry.is_folder]

    def _fit_row(self, folder: str, size: int) -> None:
        """Fit the files of one row; a last file of length 0 is what an interrupted creation leaves."""
        entries = [e for e in self._disk.list(self._path(folder)) if not e.is_folder]
        for number, entry in enumerate(entries):
            name = f"{folder}/{entry.name}"
            if not (entry.name.isascii() and entry.name.isdigit()):
                self._set_aside(name, "its name is not an offset")
            elif int(entry.name) % size:
                self._set_aside(name, f"its name is not a multiple of {size:,}")
            elif entry.size != size and (entry.size or number < len(entries) - 1):
                self._resize(self._path(name), size)
                verb = "cut" if entry.size > size else "grown with zeros"
                self.fitted.add(f"{name}: {entry.size:,} bytes long: {verb} to {size:,}")

    def _resize(self, path: str, size: int) -> None:
        """Replace the file PATH by one of SIZE. A process that has mapped the old one keeps it."""
        draft = f"{path}.fit"
        copy_file(path, draft)
        os.truncate(draft, size)
        os.replace(draft, path)

    def _fit_index(self) -> None:
        size = self._settings.index_file_bytes
        for entry in self._disk.list(self._path("index")):
            name = f"index/{entry.name}"
            if entry.is_folder or not (entry.name.isascii() and entry.name.isdigit()):
                self._set_aside(name, "it is not an index file")
            elif entry.size > size:
                self._set_aside(name, f"{entry.size:,} bytes long instead of {size:,}")

    def _tables(self) -> dict[str, Callable[[str], Any]]:
        return {
            _TOPICS: state_tables.parse_topics,
            OFFSETS_FILE: state_tables.parse_consumer_offsets,
            LMQ_OFFSETS_FILE: state_tables.parse_consumer_offsets,
            "subscriptionGroup.json": state_tables.parse_groups,
            "delayOffset.json": state_tables.parse_delay_offsets,
            "topicQueueMapping.json": lambda text: queue_mappings(parse_object(text)),
            "consumerFilter.json": lambda text: filters(parse_object(text), self._now_ms),
            "consumerOrderInfo.json": lambda text: orders(parse_object(text)),
            "messageRequestMode.json": lambda text: request_modes(parse_object(text)),
            "timermetrics": lambda text: counts(parse_object(text)),
            "transactionMetrics": parse_object,
        }

    def _fit_table(self, name: str, parse_text: Callable[[str], Any]) -> None:
        """Let the backup of a broken table take its place; without one the table begins empty."""
        sound: dict[str, bool] = {}
        for file in (f"config/{name}", f"config/{name}.bak"):
            path = self._path(file)
            if os.path.isdir(path):
                self._set_aside(file, "there is a folder instead of a file")
            if not os.path.exists(path) or not os.path.getsize(path):
                continue
            fault = _fault(self._disk.read(path), parse_text)
            sound[file] = fault is None
            if fault is not None:
                self._set_aside(file, f"it does not parse ({fault})")
        main, backup = f"config/{name}", f"config/{name}.bak"
        if sound.get(main):
            return
        if sound.get(backup):
            self._disk.write_atomically(self._path(main), self._disk.read(self._path(backup)))
            self.fitted.add(f"{main}: its backup takes its place")
        elif sound:
            self.fitted.add(f"{main}: neither it nor its backup can be read: what it held is lost")

    def _fit_topics(self) -> None:
        """See that every topic with queues is in topics.json if that is missing, and is of its queues' kind."""
        file = StateFile(self._disk, self._root, _TOPICS)
        try:
            table = file.load(state_tables.parse_topics).value
        except StoreError:
            table = None
        topics = {} if table is None else dict(table.topics)
        made: list[str] = []
        for kind in ("consumequeue", "batchconsumequeue"):
            is_batch = kind.startswith("batch")
            for topic in self._folders(kind):
                if topic.startswith(LIGHT_PREFIX):
                    continue  # These are in no table.
                known = topics.get(topic)
                if known is None and table is not None and not is_batch:
                    continue
                if known is not None and _is_batch(known) == is_batch:
                    continue
                topics[topic] = self._topic(topic, kind, known)
                made.append(topic)
        if made:
            version = state_tables.DataVersion() if table is None else table.version
            file.save(
                state_tables.render_topics(
                    state_tables.TopicTable(version.next(self._now_ms), topics)
                )
            )
            self.fitted.add(
                f"config/{_TOPICS}: {counted(len(made), 'topic')} made again from their queues: {_some(made)}"
            )

    def _topic(
        self, name: str, kind: str, known: state_tables.TopicConfig | None
    ) -> state_tables.TopicConfig:
        """Return the configuration of the topic NAME, which has queues of KIND."""
        attributes = {} if known is None else dict(known.attributes)
        attributes.pop("queue.type", None)
        if kind.startswith("batch"):
            attributes |= _BATCH_ATTRIBUTE
        if known is not None:
            return replace(known, attributes=attributes)
        count = _queue_count(self._folders(f"{kind}/{name}"))
        return state_tables.TopicConfig(
            name=name, read_queues=count, write_queues=count, attributes=attributes
        )


def _fault(data: bytes, parse_text: Callable[[str], Any]) -> str | None:
    """Return what is wrong with the table in DATA; None for nothing."""
    try:
        parse_text(data.decode("utf-8"))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        return str(error)[:120]
    return None


def _is_batch(topic: state_tables.TopicConfig) -> bool:
    return topic.attributes.get("queue.type") == _BATCH_ATTRIBUTE["queue.type"]


def _queue_count(names: Iterable[str]) -> int:
    return max((int(name) + 1 for name in names if name.isascii() and name.isdigit()), default=1)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


@dataclass(slots=True)
class Repaired:
    """What was found in the store, what was changed in the copy, and what is lost."""

    evidence: StoreEvidence
    fitted: Fitted
    recovery: RecoveryReport
    losses: StartLosses
    copied: skeleton.Copied = field(default_factory=skeleton.Copied)


def make_repaired_copy(
    source: str, target: str, given: Mapping[str, str], now_ms: Callable[[], int]
) -> Repaired:
    """Make TARGET a repaired copy of the store SOURCE; GIVEN are settings by RocketMQ's names.

    Raises InvalidArgument (TARGET is there), StoreMismatch (no store), StoreFull, DiskFailure; then TARGET is as it
    was.
    """
    check_store(source)
    skeleton.require_new_folder(target, source)
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
    copied = skeleton.Copied()
    skeleton.copy_small_files(source, target, copied, without=_NOT_BELIEVED)
    skeleton.copy_rows(source, target, copied)
    evidence = gather(OverlayDisk(), target, settings)
    fitted = Fitting(target, settings, now_ms()).run()
    overlay = OverlayDisk()
    config = settings.store_config(target)
    if running:
        overlay.write_file(config.abort_path, b"")
    store = MessageStore.open(config, disk=overlay, now_ms=now_ms)
    _forget_deleted(store, evidence)
    skeleton.limit_checkpoint(store)
    losses = find_losses(evidence, outcome_of(store, {}))
    recovery = store.recovery
    store.close()
    skeleton.settle(overlay, target)
    skeleton.own_open_files(store)
    sync_tree(target)
    return Repaired(evidence, fitted, recovery, losses, copied)


def _forget_deleted(store: MessageStore, evidence: StoreEvidence) -> None:
    """Delete the queues of STORE that its opening made again, of topics that were deleted before."""
    had = {topic for topic, _ in evidence.entries}
    for topic in {queue.topic for queue in store.queues}:
        if topic not in had and evidence.is_deleted(topic):
            store.delete_topic(topic)
