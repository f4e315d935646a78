"""The small files of a store, its tables and those of a replica, as a broker would load them: the file, or its backup.

Nothing is raised for damage: a table that cannot be read is empty, and `problems` says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ...proto.errors import CorruptState
from ...store.apache import beans
from ...store.format.java_json import parse
from ...store.format.replica_files import (
    EPOCHS_FILE,
    IDENTITY_FILE,
    BrokerIdentity,
    EpochStarts,
    parse_epochs,
    parse_identity,
)
from ...store.format.state_tables import (
    GROUPS,
    TOPICS,
    ConsumerOffsets,
    DelayOffsets,
    GroupTable,
    TableForm,
    TopicTable,
    parse_consumer_offsets,
    parse_delay_offsets,
    parse_groups,
    parse_topics,
)
from ...store.kept_table import Bean, KeptChanges
from ...store.overlay_disk import OverlayDisk
from ...store.state_files import StateFile
from ...store.view import StoreView

T = TypeVar("T")
E = TypeVar("E", bound=Bean)


@dataclass(slots=True)
class Tables:
    """The tables of one store; `problems` are sentences, `refused` those for which a broker would not start."""

    files: StoreView
    problems: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def topics(self) -> TopicTable:
        """Return topics.json, with what was changed since it was written."""
        changes = self._changes("topics.json", TOPICS)
        table = self._load("topics.json", parse_topics, TopicTable())
        if changes is None:
            return table
        return replace(table, topics=changes.applied(table.version, table.topics))

    def groups(self) -> GroupTable:
        """Return subscriptionGroup.json, likewise."""
        changes = self._changes("subscriptionGroup.json", GROUPS)
        table = self._load("subscriptionGroup.json", parse_groups, GroupTable())
        if changes is None:
            return table
        return replace(table, groups=changes.applied(table.version, table.groups))

    def offsets(self) -> ConsumerOffsets:
        """Return consumerOffset.json."""
        return self._load("consumerOffset.json", parse_consumer_offsets, ConsumerOffsets())

    def delays(self) -> DelayOffsets:
        """Return delayOffset.json."""
        return self._load("delayOffset.json", parse_delay_offsets, DelayOffsets())

    def timers_pending(self) -> dict[str, int]:
        """Return the numbers of timed messages by real topic, as timermetrics has them."""
        return self._load("timermetrics", lambda text: beans.counts(_bean(text)), {})

    def transactions_open(self) -> dict[str, int]:
        """Return the numbers of open half messages by real topic, as transactionMetrics has them."""
        return self._load("transactionMetrics", _transaction_counts, {})

    def identity(self) -> BrokerIdentity | None:
        """Return brokerIdentity; None for a broker without replicas."""
        return self._load(IDENTITY_FILE, parse_identity, None, folder="")

    def epochs(self) -> EpochStarts:
        """Return epochFileCheckpoint: epochs and where they begin."""
        return self._load(EPOCHS_FILE, parse_epochs, (), folder="")

    def _changes(self, name: str, form: TableForm[E]) -> KeptChanges[E] | None:
        try:
            return KeptChanges(self.files.disk, self.files.root, name, form)
        except OSError as error:
            self.problems.append(_told(error))
            return None

    def _load(
        self, name: str, parse_text: Callable[[str], T], empty: T, folder: str = "config"
    ) -> T:
        # On an overlay: loading moves a file aside that does not parse.
        file = StateFile(OverlayDisk(self.files.disk), self.files.root, name, folder)
        try:
            loaded = file.load(lambda text: parse_text(text.strip("\0")))
        except (CorruptState, OSError) as error:
            told = error.message if isinstance(error, CorruptState) else _told(error)
            self.problems.append(told)
            if folder:  # What lies at the root is not read by a broker without replicas.
                self.refused.append(told)
            return empty
        if loaded.problem:
            place = f"{folder}/{name}".lstrip("/")
            self.problems.append(f"{place} does not parse: a broker uses {place}.bak")
        return empty if loaded.value is None else loaded.value


def _told(error: OSError) -> str:
    return f"{error.filename} cannot be read: {error.strerror}"


def _bean(text: str) -> dict[str | int, Any]:
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _transaction_counts(text: str) -> dict[str, int]:
    found = beans.child(_bean(text), "transactionCount").items()
    return {str(topic): int(beans.child({"": one}, "").get("count", 0)) for topic, one in found}
