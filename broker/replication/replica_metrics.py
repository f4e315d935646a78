"""The metrics of a replica in either role: `pocketmq_replica_…` on `/metrics` of the port for clients.

A replica that restarts shows its identity, the changes that it has seen, and that it is not live. Only the master knows
the lag of the other replicas, also of those that do not follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..metrics.page import PageFigure, gauges
from .in_sync import ReplicaSettings


class CellChanges(NamedTuple):
    """Changes in its set's metadata that a replica has seen: another epoch or master, another in-sync set."""

    masters: int = 0
    sets: int = 0

    def plus(self, other: CellChanges) -> CellChanges:
        """Return the sums of these and OTHER."""
        return CellChanges(self.masters + other.masters, self.sets + other.sets)


class Behind(NamedTuple):
    """How much of its master's log a replica is not known to have, and since when it has not caught up."""

    size_bytes: int
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """The status of a replica at one moment. Without EPOCH, it restarts from its disk."""

    settings: ReplicaSettings
    changes: CellChanges
    is_master: bool = False
    is_live: bool = False
    epoch: int | None = None
    #: Ids of the replicas in sync, as far as this replica knows.
    in_sync: Collection[int] = ()
    confirm: int = 0
    end: int = 0
    synced: int = 0
    #: Number of damaged places in the log, and of those that were repaired since the start of the
    #: process.
    damaged: tuple[int, int] = (0, 0)
    #: By replica id, without the master itself; empty on a follower.
    behind: Mapping[int, Behind] = field(default_factory=dict)


def replica_figures(look: ReplicaStatus) -> Iterator[PageFigure]:
    """Yield the metrics of LOOK."""
    mine = look.settings
    who = (("cluster", mine.cluster), ("set", mine.set_name), ("replica", str(mine.replica_id)))
    yield PageFigure("gauge", "pocketmq_replica_info", "Identity of the replica.", 1, who)
    rows: list[tuple[str, str, float]] = [
        ("master", "1 if the replica is the master of its set, else 0.", look.is_master),
        ("live", "Whether its live node exists in ZooKeeper.", look.is_live),
    ]
    if look.epoch is not None:
        rows += [
            ("epoch", "Epoch of the master that it is, else the highest epoch seen.", look.epoch),
            (
                "in_sync_replicas",
                "Replicas in the in-sync set, including the master, as far as this replica knows.",
                len(look.in_sync),
            ),
            (
                "confirmed_bytes",
                "Log offset up to which all members of the in-sync set have the log, as far as this replica knows.",
                look.confirm,
            ),
            ("end_bytes", "Log offset of the end of its log.", look.end),
            ("synced_bytes", "Log offset up to which its log is on disk.", look.synced),
            (
                "damaged_records",
                "Damaged places of its log that are not repaired yet.",
                look.damaged[0],
            ),
        ]
    yield from gauges("pocketmq_replica_", rows)
    for replica in sorted(look.behind):
        yield PageFigure(
            "gauge",
            "pocketmq_replica_in_sync",
            "1 if another replica is in the in-sync set, else 0.",
            replica in look.in_sync,
            (("replica", str(replica)),),
        )
    for at, name, what in (
        (0, "behind_bytes", "Bytes of the master's log that another replica is not known to have."),
        (
            1,
            "behind_seconds",
            "How long ago another replica last had the complete log of its master.",
        ),
    ):
        for replica, behind in sorted(look.behind.items()):
            value = behind[at] / (1000 if at else 1)
            labels = (("replica", str(replica)),)
            yield PageFigure("gauge", f"pocketmq_replica_{name}", what, value, labels)
    for name, what, value in (
        (
            "master_changes",
            "Changes of the master, or its epoch, since the replica started.",
            look.changes[0],
        ),
        (
            "in_sync_changes",
            "Changes of the in-sync set since the replica started.",
            look.changes[1],
        ),
        (
            "healed_records",
            "Damaged places of its log repaired from another replica since its store was opened.",
            look.damaged[1],
        ),
    ):
        yield PageFigure("counter", f"pocketmq_replica_{name}_total", what, value)
