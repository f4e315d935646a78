"""The tables in the small files of a store, and those of a replica.

They are read as a broker would load them: the file, or its backup. Nothing is raised for damage: a table that cannot be
read is empty, and `problems` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ...proto.errors import CorruptState
from ...store.apache.config_beans import child, counts
from ...store.file_changes import stored_changes, with_changes
from ...store.format import replica_files, state_tables
from ...store.format.java_json import parse_object
from ...store.offsets_file import offsets_file
from ...store.overlay_disk import OverlayDisk
from ...store.state_files import StateFile
from ...store.view import StoreView
from ..stores.names import KnownNames
from .output import Row

T = TypeVar("T")


@dataclass(slots=True)
class Tables:
    """The tables of one store; `problems` are sentences, `refused` those for which a broker would not start."""

    files: StoreView
    problems: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def topics(self) -> state_tables.TopicTable:
        """Return topics.json, with what was changed since it was written."""
        form = state_tables.TOPICS
        changes = stored_changes(self.files.disk, self.files.root, form)
        table = self._load(form.file, state_tables.parse_topics, state_tables.TopicTable())
        return replace(table, topics=with_changes(changes, form, table.version, table.topics))

    def groups(self) -> state_tables.GroupTable:
        """Return subscriptionGroup.json, likewise."""
        form = state_tables.GROUPS
        changes = stored_changes(self.files.disk, self.files.root, form)
        table = self._load(form.file, state_tables.parse_groups, state_tables.GroupTable())
        return replace(table, groups=with_changes(changes, form, table.version, table.groups))

    def offsets(self) -> state_tables.ConsumerOffsets:
        """Return consumerOffset.json, or lmqConsumerOffset.json where that is newer."""
        return self._load(
            offsets_file(self.files.disk, self.files.root),
            state_tables.parse_consumer_offsets,
            state_tables.ConsumerOffsets(),
        )

    def delays(self) -> state_tables.DelayOffsets:
        """Return delayOffset.json."""
        return self._load(
            "delayOffset.json", state_tables.parse_delay_offsets, state_tables.DelayOffsets()
        )

    def timers_pending(self) -> dict[str, int]:
        """Return the numbers of scheduled messages by real topic, as timermetrics has them."""
        return self._load("timermetrics", lambda text: counts(parse_object(text)), {})

    def transactions_open(self) -> dict[str, int]:
        """Return the numbers of open half messages by real topic, as transactionMetrics has them."""
        return self._load("transactionMetrics", _transaction_counts, {})

    def identity(self) -> replica_files.BrokerIdentity | None:
        """Return brokerIdentity; None for a broker without replicas."""
        return self._load(
            replica_files.IDENTITY_FILE, replica_files.parse_identity, None, folder=""
        )

    def epochs(self) -> replica_files.EpochStarts:
        """Return epochFileCheckpoint: epochs and where they begin."""
        return self._load(replica_files.EPOCHS_FILE, replica_files.parse_epochs, (), folder="")

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
            if folder:  # What is at the root is not read by a broker without replicas.
                self.refused.append(told)
            return empty
        if loaded.problem:
            place = f"{folder}/{name}".lstrip("/")
            self.problems.append(f"{place} does not parse: a broker uses {place}.bak")
        self.problems += (
            f"{folder}/{name}: the entry {key[:200]!r} cannot be read: {one.reason}"
            for key, one in getattr(loaded.value, "unread", {}).items()
        )
        return empty if loaded.value is None else loaded.value


def _told(error: OSError) -> str:
    return f"{error.filename} cannot be read: {error.strerror}"


def _transaction_counts(text: str) -> dict[str, int]:
    found = child(parse_object(text), "transactionCount").items()
    return {str(topic): int(child({"": one}, "").get("count", 0)) for topic, one in found}


def or_unknown(
    rows: Iterable[Row], tables: Tables, *, topics: Sequence[str] = (), groups: Sequence[str] = ()
) -> Iterator[Row]:
    """Yield ROWS. If there are none, raise TopicNotFound or GroupNotFound for a name that the store does not know."""
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        keys = [key.partition("@") for key in tables.offsets().offsets]
        known = KnownNames(set(tables.topics().topics), set(tables.groups().groups))
        known.topics.update((one.topic for one in tables.files.queues()), (key[0] for key in keys))
        known.groups.update(key[2] for key in keys)
        known.check(topics=topics, groups=groups)
