"""The metrics of a replica in either role: `pocketmq_replica_…` on `/metrics` of the port for clients.

A replica that restarts shows its identity and the changes that it has seen, and that it is not live. Only the master
knows the lag of the other replicas, also of those that do not follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..metrics.page import PageFigure, gauges
from .in_sync import ReplicaSettings


class CellChanges(NamedTuple):
    """What a replica has seen change in its set's record: another epoch, another in-sync set."""

    masters: int = 0
    sets: int = 0

    def plus(self, other: CellChanges) -> CellChanges:
        """Return these and OTHER."""
        return CellChanges(self.masters + other.masters, self.sets + other.sets)


class Behind(NamedTuple):
    """What a replica is not known to have of its master's log, and since when it has not caught up."""

    size_bytes: int
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLook:
    """A replica at one moment. Without EPOCH it begins again from its device."""

    settings: ReplicaSettings
    changes: CellChanges
    is_master: bool = False
    is_live: bool = False
    epoch: int | None = None
    #: The ids of those in sync, as far as is known here.
    in_sync: Collection[int] = ()
    confirm: int = 0
    end: int = 0
    synced: int = 0
    #: Places of the log that are known to be damaged, and those that were healed since its process started.
    damaged: tuple[int, int] = (0, 0)
    #: By id, the master's own left out; of a follower nothing.
    behind: Mapping[int, Behind] = field(default_factory=dict)


def replica_figures(look: ReplicaLook) -> Iterator[PageFigure]:
    """Yield the metrics of LOOK."""
    mine = look.settings
    who = (("cluster", mine.cluster), ("set", mine.set_name), ("replica", str(mine.replica_id)))
    yield PageFigure("gauge", "pocketmq_replica_info", "Which replica this is.", 1, who)
    rows: list[tuple[str, str, float]] = [
        ("master", "Is it the master of its set?", look.is_master),
        ("live", "Whether its live node exists in ZooKeeper.", look.is_live),
    ]
    if look.epoch is not None:
        rows += [
            ("epoch", "The epoch of the master that it is, else the highest seen.", look.epoch),
            (
                "in_sync_replicas",
                "Replicas in the in-sync set, the master among them, as far as is known here.",
                len(look.in_sync),
            ),
            (
                "confirmed_bytes",
                "Log offset up to which all that may be in sync have the log, as far as is known here.",
                look.confirm,
            ),
            ("end_bytes", "Log offset at which its log ends.", look.end),
            ("synced_bytes", "Log offset up to which its log is on its device.", look.synced),
            (
                "damaged_records",
                "Places of its log that are known to be damaged, and not replaced yet.",
                look.damaged[0],
            ),
        ]
    yield from gauges("pocketmq_replica_", rows)
    for replica in sorted(look.behind):
        yield PageFigure(
            "gauge",
            "pocketmq_replica_in_sync",
            "Is another replica in the in-sync set?",
            replica in look.in_sync,
            (("replica", str(replica)),),
        )
    for at, name, what in (
        (0, "behind_bytes", "Bytes of the master's log that another replica is not known to have."),
        (1, "behind_seconds", "How long ago another replica had all that its master had then."),
    ):
        for replica, behind in sorted(look.behind.items()):
            value = behind[at] / (1000 if at else 1)
            labels = (("replica", str(replica)),)
            yield PageFigure("gauge", f"pocketmq_replica_{name}", what, value, labels)
    for name, what, value in (
        (
            "master_changes",
            "Changes of the master, or its epoch, seen since it started.",
            look.changes[0],
        ),
        ("in_sync_changes", "Changes of the in-sync set seen since it started.", look.changes[1]),
        (
            "healed_records",
            "Damaged places of its log replaced from another replica since its store was opened.",
            look.damaged[1],
        ),
    ):
        yield PageFigure("counter", f"pocketmq_replica_{name}_total", what, value)
