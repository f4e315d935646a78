"""The in-sync set of a master in one epoch: what is acknowledged, and which replicas leave or join.

Records are acknowledged, and visible to consumers (the confirm offset), when every member of the *maximal set* has
them: the set in the set's metadata, plus the set that was proposed last. A proposal counts until the metadata has a
later version, because it may still be applied. So each replica that can be elected has everything acknowledged.

    leaves   not caught up for `replica_lag_ms`, its live node gone, or unclean; not by a lost connection alone
    enters   connected in this epoch, live, clean, with all below the confirm offset and the start of the epoch, and
             with the replicated tables (`has_state`)

Caught up means, as in Kafka: it has reached the end that the log had at its last ack but one. Pure, not thread-safe;
times are CLOCK_BOOTTIME, in ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ...proto.errors import ConfigError, NotEnoughReplicas
from .registry import LiveNode, ReplicaSetState, VersionedCell

RUNS_MAX: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """The identity of a replica, and the guarantees of its set."""

    cluster: str
    set_name: str
    replica_id: int
    #: Address "host:port" for the other replicas.
    address: str
    #: Address "host:port" for clients; "": the same.
    client_address: str = ""
    #: Size of a log file in bytes: it must be the same on all replicas.
    file_size: int
    #: How many replicas must have a message before acks="replicas" acknowledges it, including the
    #: master.
    min_in_sync: int = 1
    replica_ack: Literal["disk", "memory"] = "disk"
    #: The store syncs before it acknowledges anything.
    flush_sync: bool = False
    #: A follower that has not caught up for this time leaves the set.
    replica_lag_ms: int = 10_000
    #: The session timeout: ZooKeeper ends a session without requests after this time.
    session_ms: int = 2_000
    #: How long each candidate waits for each better one.
    election_delay_ms: int = 200
    #: When the mark (how far acknowledged records reach) is written: once per second, or before
    #: each acknowledgement.
    mark: Literal["second", "each"] = "second"

    def __post_init__(self) -> None:
        for name in ("replica_id", "file_size", "min_in_sync", "replica_lag_ms", "session_ms"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}: it must be 1 or more")
        if self.replica_ack not in ("disk", "memory"):
            raise ConfigError(f'replica_ack is {self.replica_ack!r}: it must be "disk" or "memory"')

    @property
    def reached_at(self) -> str:
        """The address that its live node announces to clients."""
        return self.client_address or self.address

    @property
    def acks_need_sync(self) -> bool:
        return self.flush_sync or self.replica_ack == "disk"


@dataclass(slots=True)
class _Follower:
    """The progress that a follower reported over connection LINK."""

    link: int
    written: int
    synced: int
    #: When it had everything that the log had then.
    caught_up_ms: int
    #: The end of the log at its last ack, and the time of that ack.
    mark_end: int
    mark_ms: int


class InSync:
    """The set of the master SETTINGS.replica_id, which started EPOCH at START with the log flushed up to SYNCED.

    CELL is the metadata that made it master, CONFIRM the confirm offset that it knew as a follower.

    A follower counts only by its latest connection, in this epoch. For acks counts what it has on disk, unless the
    setting `replica_ack` is "memory". For the confirm offset counts what is written, unless the store flushes before
    it acknowledges (`flush_sync`). Limit: `RUNS_MAX` unconfirmed ends of batches; beyond it the confirm offset moves in
    larger steps.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        cell: VersionedCell,
        start: int,
        synced: int,
        confirm: int,
        now_ms: int,
        has_state: Callable[[int], bool] = lambda replica: True,
    ) -> None:
        self._settings = settings
        self._has_state = has_state
        self._me = settings.replica_id
        self.epoch = cell.cell.epoch
        self.start = start
        self.end = start
        self.synced = synced
        self.confirm = confirm
        #: Everything below is acknowledged with acks="replicas".
        self.acknowledged = 0
        #: Everything below is on the disks of the maximal set; it is the end of a record.
        self.synced_everywhere = 0
        self._next_synced = start
        self.confirmed_set = cell.cell.in_sync
        #: The set that the metadata may have after `version`; None: none is proposed.
        self.proposed_set: frozenset[int] | None = None
        self.version = cell.version
        self._cell = cell.cell
        self._followers: dict[int, _Follower] = {}
        #: Ends of unconfirmed batches: the confirm offset is always the end of a record.
        self._runs: deque[int] = deque([start])
        self._began_ms = now_ms

    @property
    def maximal_set(self) -> frozenset[int]:
        """All replicas that may be in the set of the metadata, as far as this master can know."""
        return self.confirmed_set | (self.proposed_set or frozenset())

    @property
    def suffices(self) -> bool:
        """Whether there are enough replicas for acks="replicas"."""
        least = self._settings.min_in_sync
        return len(self.confirmed_set) >= least and len(self.maximal_set) >= least

    def appended(self, end: int, now_ms: int) -> None:
        """Record a batch of complete records that ends at END of the log."""
        for follower in self._followers.values():
            if follower.written >= self.end:
                follower.caught_up_ms = now_ms
        self.end = end
        if len(self._runs) == RUNS_MAX:
            self._runs.pop()
        self._runs.append(end)

    def log_synced(self, synced: int) -> None:
        """Record that the master's own log is on disk up to SYNCED."""
        self.synced = synced

    def attach(self, follower: int, link: int, written: int, synced: int, now_ms: int) -> None:
        """Record that FOLLOWER follows over LINK from WRITTEN on. Its earlier connections do not count any more."""
        known = self._followers.get(follower)
        caught_up_ms = known.caught_up_ms if known else self._began_ms
        self._followers[follower] = _Follower(
            link, written, synced, caught_up_ms, mark_end=self.end, mark_ms=now_ms
        )
        self._note_caught_up(self._followers[follower], now_ms)

    def detach(self, link: int) -> None:
        """Record that LINK is lost: the follower keeps what it has, but cannot join the set."""
        for follower in self._followers.values():
            if follower.link == link:
                follower.link = 0

    def ack(
        self, follower_id: int, link: int, epoch: int, written: int, synced: int, now_ms: int
    ) -> None:
        """Record an ack; one of another connection or epoch is ignored."""
        follower = self._followers.get(follower_id)
        if follower is None or not self.counts(follower, link, epoch):
            return
        follower.written = max(follower.written, written)
        follower.synced = max(follower.synced, synced)
        self._note_caught_up(follower, now_ms)

    def counts(self, follower: _Follower, link: int, epoch: int) -> bool:
        """Return whether an ack over LINK in EPOCH is of this FOLLOWER for this master."""
        return epoch == self.epoch and link == follower.link

    def _note_caught_up(self, follower: _Follower, now_ms: int) -> None:
        if follower.written >= self.end:
            follower.caught_up_ms = now_ms
        elif follower.written >= follower.mark_end:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.mark_ms)
        else:
            return
        follower.mark_end, follower.mark_ms = self.end, now_ms

    @property
    def following(self) -> list[tuple[int, int, int]]:
        """The followers by id, each with its written and synced offset."""
        followers = sorted(self._followers.items())
        return [(one, it.written, it.synced) for one, it in followers if it.link]

    def waits_for(self, link: int) -> bool:
        """Return whether the follower on LINK is in the maximal set."""
        return any(
            it.link == link and one in self.maximal_set for one, it in self._followers.items()
        )

    def has(self, replica: int, *, on_device: bool) -> int:
        """Return up to which offset REPLICA is known to have the log in this epoch."""
        if replica == self._me:
            return self.synced if on_device else self.end
        follower = self._followers.get(replica)
        if follower is None:
            return 0
        return follower.synced if on_device else follower.written

    def behind(self, replica: int, now_ms: int) -> tuple[int, int]:
        """Return how many bytes of the log REPLICA is not known to have, and for how many ms it has not caught up."""
        missing = self.end - self.has(replica, on_device=False)
        follower = self._followers.get(replica)
        caught_up_ms = follower.caught_up_ms if follower else self._began_ms
        return missing, max(0, now_ms - caught_up_ms) if missing else 0

    def advance(self) -> None:
        """Raise `acknowledged` and `confirm` to what the maximal set has; neither ever falls."""
        everywhere = min(
            self.has(one, on_device=self._settings.acks_need_sync) for one in self.maximal_set
        )
        if self.suffices and everywhere >= self.start:
            self.acknowledged = max(self.acknowledged, everywhere)
        self._note_synced(min(self.has(one, on_device=True) for one in self.maximal_set))
        shown = min(self.has(one, on_device=self._settings.flush_sync) for one in self.maximal_set)
        # Below the start, nothing is confirmed until all members have it in this epoch.
        while self._runs and self._runs[0] <= shown:
            self.confirm = max(self.confirm, self._runs.popleft())

    def _note_synced(self, everywhere: int) -> None:
        """Raise `synced_everywhere` to the last known end of a record up to EVERYWHERE."""
        if everywhere < min(self.end, self._next_synced):
            return
        reached = self.end if everywhere >= self.end else self._next_synced
        self.synced_everywhere = max(self.synced_everywhere, reached)
        self._next_synced = self.end

    def wanted(self, live: Mapping[int, LiveNode], now_ms: int) -> frozenset[int]:
        """Return the set that should be proposed, for the LIVE nodes."""
        staying = {one for one in self.confirmed_set if not self._leaves(one, live, now_ms)}
        others = self._followers.keys() - self.confirmed_set
        # A replica that would have to leave again must not join, or the set would change forever.
        entering = {
            one
            for one in others
            if self.may_enter(one, live) and not self._leaves(one, live, now_ms)
        }
        return frozenset({self._me, *staying, *entering})

    def _leaves(self, replica: int, live: Mapping[int, LiveNode], now_ms: int) -> bool:
        if replica == self._me:
            return False
        node = live.get(replica)
        if node is None or node.unclean:
            return True
        follower = self._followers.get(replica)
        caught_up_ms = follower.caught_up_ms if follower else self._began_ms
        behind = self.has(replica, on_device=False) < self.end or follower is None
        return behind and now_ms - caught_up_ms > self._settings.replica_lag_ms

    def may_enter(self, replica: int, live: Mapping[int, LiveNode]) -> bool:
        """Return whether REPLICA has everything that may have been acknowledged, and is live."""
        node = live.get(replica)
        if node is None or node.unclean or not self._followers[replica].link:
            return False
        return self.has_enough(replica) and self._has_state(replica)

    def has_enough(self, replica: int) -> bool:
        """Return whether REPLICA has all below the confirm offset, and below the start of this epoch."""
        least = max(self.confirm, self.start, self.acknowledged)
        return self.has(replica, on_device=self._settings.acks_need_sync) >= least

    def propose(self, wanted: frozenset[int]) -> ReplicaSetState:
        """Return the metadata with WANTED as its set. It counts from now on, in addition to the confirmed one."""
        assert self.proposed_set is None, "only one proposal at a time"
        self.proposed_set = wanted
        return self.cell_with(wanted)

    def cell_with(self, in_sync: frozenset[int]) -> ReplicaSetState:
        return ReplicaSetState(
            epoch=self.epoch, master=self._me, in_sync=in_sync, replicas=self._cell.replicas
        )

    def may_be_next(self, to: int, live: Mapping[int, LiveNode]) -> bool:
        """Return whether TO is in the confirmed set, and may be elected once it has the whole log."""
        return (
            to in self.confirmed_set
            and to in self._followers
            and self.may_enter(to, live)
            and not live[to].damaged
        )

    def handed_to(self, to: int, live: Mapping[int, LiveNode], *, leaving: bool) -> ReplicaSetState:
        """Return metadata with master TO. LEAVING: without this master in the set. Raises NotEnoughReplicas."""
        if (
            not self.may_be_next(to, live)
            or self.has(to, on_device=self._settings.acks_need_sync) < self.end
        ):
            raise NotEnoughReplicas(
                f"replica {to} is not in sync, has not all of the log, or its log is damaged: wait until it has"
                " caught up",
                in_sync=str(len(self.confirmed_set)),
            )
        return ReplicaSetState(
            epoch=self.epoch + 1,
            master=to,
            in_sync=self.confirmed_set - ({self._me} if leaving else frozenset()),
            replicas=self._cell.replicas,
        )

    def resolve(self, seen: VersionedCell) -> None:
        """The metadata was read as SEEN, with the same epoch and master: a later version ends the proposal."""
        if seen.version <= self.version:
            return
        self.version = seen.version
        self._cell = seen.cell
        self.confirmed_set = seen.cell.in_sync
        self.proposed_set = None
