"""The metadata of replica sets: a `ReplicaSetState` per set, and a live node per running replica (registry_format.py).

`epoch` is the set's own number (i32 as in RocketMQ's files), so it survives the loss of ZooKeeper's data. `master` 0:
no master yet. `in_sync` lists the replicas that have everything acknowledged. An elected master writes a higher epoch
with its own id, so each epoch has one master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetState:
    """The metadata of a replica set."""

    epoch: int
    #: The replica id of the master; 0 before the first election.
    master: int
    in_sync: frozenset[int]
    #: "host:port" by replica id.
    replicas: Mapping[int, str] = field(default_factory=dict)


class VersionedCell(NamedTuple):
    """Metadata, with the version of its node. Versions of a node only grow."""

    cell: ReplicaSetState
    version: int


class EndMark(NamedTuple):
    """How far acknowledged records reach.

    Every member of the in-sync set had the log on disk up to END, and the record before END was written in EPOCH.
    ACCEPTED is the epoch for which an administrator last accepted a loss; 0: never.
    """

    end: int = 0
    epoch: int = 0
    accepted: int = 0


class VersionedEndMark(NamedTuple):
    """A mark, with the version of its node. Versions of a node only grow."""

    mark: EndMark
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNode:
    """What a running replica announces about itself."""

    address: str
    #: Epoch of its last record. It orders candidates, together with END. Both are hints, and may be
    #: outdated.
    epoch: int
    end: int
    #: It may have lost acknowledged data: it is no candidate, and not in sync, until it has caught
    #: up.
    unclean: bool = False
    #: Identifies its store; "": unknown.
    store_id: str = ""
    #: The highest epoch that it has seen, also after a failed election; hellos of followers are
    #: compared with it.
    epoch_seen: int = 0
    #: Number of damaged places in its log.
    damaged: int = 0

    def may_be(self, address: str, store_id: str) -> bool:
        """Return whether it is of the replica at ADDRESS with STORE_ID; otherwise another process uses its id."""
        return self.address == address and (
            store_id == self.store_id or not store_id or not self.store_id
        )


def better_candidates(
    cell: ReplicaSetState,
    live: Mapping[int, LiveNode],
    replica_id: int,
    epoch: int,
    end: int,
    damaged: int = 0,
) -> int:
    """Return how many replicas may be elected after the master of CELL, and have more of the log than REPLICA_ID.

    A damaged log counts as shorter than one that is not damaged.
    """
    mine = (damaged > 0, -epoch, -end, replica_id)
    return sum(
        (node.damaged > 0, -node.epoch, -node.end, one) < mine
        for one, node in live.items()
        if one in cell.in_sync and one not in (replica_id, cell.master) and not node.unclean
    )


class Registry(Protocol):
    """One session with the metadata store of one replica set.

    An operation raises RegistryUnavailable if no answer came; a change may then have been applied, or be applied later.
    Reads may return outdated data; compare versions. After the end of the session, all operations raise SessionExpired:
    the live node is gone, and a new session must be opened.
    """

    @property
    def answered_ms(self) -> int:
        """The `CLOCK_BOOTTIME`, in ms, at which the latest request that was answered had been sent."""
        ...

    async def read(self) -> VersionedCell | None:
        """Return the set's metadata; None: there is none. Raises ConfigError if it cannot be parsed."""
        ...

    async def create(self, cell: ReplicaSetState) -> int:
        """Create the set's metadata and return its version. Raises MetadataConflict if it exists."""
        ...

    async def compare_and_set(self, cell: ReplicaSetState, version: int) -> int:
        """Replace the metadata of VERSION by CELL; return the new version. Raises MetadataConflict if it changed."""
        ...

    async def announce(self, replica_id: int, node: LiveNode) -> None:
        """Set the live node of REPLICA_ID; it is removed at the end of this session."""
        ...

    async def live(self) -> Mapping[int, LiveNode]:
        """Return the live nodes by replica id, without malformed ones."""
        ...

    async def check_session(self) -> None:
        """Return once a quorum has confirmed, by an empty transaction, that this session has not ended."""
        ...

    async def sync(self) -> None:
        """Ensure that later reads of this session see all writes before this call."""
        ...

    async def read_mark(self) -> VersionedEndMark | None:
        """Return the mark; None: there is none. Raises ConfigError if it is malformed."""
        ...

    async def write_mark(self, mark: EndMark, version: int | None) -> int:
        """Replace the mark of VERSION (None: no mark exists) and return the new version, or raise MetadataConflict."""
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Call CHANGED whenever the set's metadata or a live node may have changed."""
        ...

    async def close(self) -> None:
        """End the session, and with it the live node."""
        ...
