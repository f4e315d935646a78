"""The state machine of one replica: follower, candidate or master, without clock, disk or sockets.

    FOLLOWER --its master is gone--> CANDIDATE --elected--> STARTING --its log is ready--> MASTER
        ^                                |                    |                             |
        +------ a higher epoch, or another process changed the set's metadata in ZooKeeper -+

Inputs are methods: frames, answers of the metadata store, results of disk work, ticks. Each returns the effects to
carry out, in order (effects.py). Times are CLOCK_BOOTTIME, in ms.

Epochs fence: a replica persists the highest epoch it has seen before it acts in it, and refuses lower ones. Leases only
save work: acks="replicas" relies on in_sync.py instead. A replica that may have lost acknowledged data is *unclean*: it
is no candidate until it has caught up. A follower never cuts acknowledged records; an administrator must accept a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...proto.errors import InvalidArgument, MasterFenced, NotEnoughReplicas
from ...proto.gen import pocketmq_v1_pb2 as pb
from . import effects, frames
from .in_sync import InSync, ReplicaSettings
from .log_epochs import Epochs, consistent_end
from .mark import SetMark
from .registry import (
    EndMark,
    LiveNode,
    ReplicaSetState,
    VersionedCell,
    VersionedEndMark,
    better_candidates,
)
from .registry_format import EPOCH_MAX
from .replica_state import PendingSet, ReplicaRole, ReplicaState, Upstream

#: Delay before a failed request to the metadata store, or a failed connection, is retried.
RETRY_MS: Final = 100
#: A master sends a heartbeat every half second. A link without frames for this time is closed.
SILENT_MS: Final = 5_000
#: A replica with a damaged log waits this long for one without damage, besides its turn.
DAMAGED_DELAY_MS: Final = 2_000
#: Limit of followers from which a master accepts frames, without refused ones.
LINKS_MAX: Final = 64


class ReplicaCore:
    """The replica SETTINGS.replica_id, which starts with STATE.

    HAS_STATE returns whether a follower has the master's replicated tables. Only the event loop uses a replica.
    """

    def __init__(
        self,
        settings: ReplicaSettings,
        state: ReplicaState,
        has_state: Callable[[int], bool] = lambda replica: True,
    ) -> None:
        self._settings = settings
        self._has_state = has_state
        self._me = settings.replica_id
        self.role = ReplicaRole.FOLLOWER
        self.epoch_seen = max(state.epoch_seen, state.epochs.last)
        self.unclean = state.unclean
        self.epochs = state.epochs.cut(state.end)
        self.end = state.end
        self.synced = state.synced
        self.confirm = min(state.confirm, state.end)
        self.confirm_epoch = state.confirm_epoch
        self.min_offset = state.min_offset
        self._store_id = state.store_id
        #: Number of damaged places in the log.
        self.damaged = 0
        self.seen: VersionedCell | None = None
        #: How often the master or its epoch, and the in-sync set, changed in the metadata.
        self.master_changes = self.set_changes = 0
        self.live: Mapping[int, LiveNode] = {}
        #: Only a master has one.
        self.in_sync: InSync | None = None
        self.has_session = False
        self._answered_ms: int | None = None
        self._read_ms: int | None = None
        #: Since when the master has no live node.
        self._gone_ms: int | None = None
        self._set: PendingSet | None = None
        self._campaign: ReplicaSetState | None = None
        self._accepts_loss = False
        #: Whether the mark was lowered for the accepted loss.
        self._has_lowered = False
        self.mark = SetMark()
        #: Why this replica is unclean, and why it does not follow its master; "": no known reason.
        self.unclean_reason = ""
        self.refuses = ""
        #: The log offset up to which sends with acks="replicas" were answered.
        self._answered = 0
        self._upstream: Upstream | None = None
        #: Whether a CutLog or BeginAnew is not answered yet.
        self._cutting = False
        #: Of a master, by follower: link, and the limit of the log after the cut; None: it is cut.
        self._links: dict[int, tuple[int, int | None]] = {}
        #: Hellos that arrived before the epoch had started here. They are answered afterwards.
        self._early: dict[int, pb.FollowHello] = {}
        self._out: list[effects.Effect] = []

    @property
    def replica_id(self) -> int:
        return self._me

    @property
    def epoch(self) -> int:
        """The epoch of the master that this replica is, else the highest epoch seen."""
        return self.in_sync.epoch if self.in_sync else self.epoch_seen

    @property
    def _last_epoch(self) -> int:
        """The newest epoch in the log."""
        return self.epochs.cut(self.end).last

    @property
    def master(self) -> int:
        """The id of the master; 0: none is known."""
        if self.role is ReplicaRole.MASTER:
            return self._me
        if self.seen is None or self.seen.cell.epoch < self.epoch_seen:
            return 0
        return self.seen.cell.master if self.seen.cell.master != self._me else 0

    @property
    def is_live(self) -> bool:
        """Whether the live node of its id is that of this replica, and not of another process."""
        mine = self.live.get(self._me)
        return mine is not None and mine.may_be(self._settings.reached_at, self._store_id)

    def lease_holds(self, now_ms: int) -> bool:
        """Return whether the metadata store answered a request sent less than two thirds of a session ago.

        Without such an answer, another replica may have been elected, and a master refuses what relies on the lease.
        """
        return (
            self._answered_ms is not None
            and (now_ms - self._answered_ms) * 3 < self._settings.session_ms * 2
        )

    def check_master(self, now_ms: int) -> None:
        """Raise MasterFenced unless this replica may answer as master at NOW_MS, in the same turn of the event loop."""
        if self.role is not ReplicaRole.MASTER:
            node = self.live.get(self.master)
            address = node.address if node else ""
            where = (
                f"the master is at {address}" if address else "no master is known, try again later"
            )
            raise MasterFenced(
                f"replica {self._me} of {self._settings.set_name!r} is not the master: {where}",
                address=address,
                epoch=str(self.epoch_seen),
            )
        if not self.lease_holds(now_ms):
            raise MasterFenced(
                f"replica {self._me} of {self._settings.set_name!r} got no answer from ZooKeeper for "
                f"{self._settings.session_ms * 2 // 3} ms, two thirds of session_ms: another may be master",
                epoch=str(self.epoch_seen),
            )

    def check_acks(self) -> None:
        """Raise NotEnoughReplicas if acks="replicas" is not possible now. Call this before the append."""
        assert self.in_sync is not None, "check_master comes first"
        if not self.in_sync.suffices:
            raise NotEnoughReplicas(
                f'acks="replicas" needs min_in_sync={self._settings.min_in_sync} replicas, but only '
                f"{len(self.in_sync.confirmed_set)} are in sync: wait until others have caught up",
                in_sync=str(len(self.in_sync.confirmed_set)),
            )

    def session_began(self, now_ms: int) -> list[effects.Effect]:
        """Input: a session with the metadata store was opened."""
        self.has_session = True
        if self.mark.is_read:  # Before that it may be unclean without knowing it.
            self._announce()
        self._read(now_ms)
        return self._take()

    def session_ended(self) -> list[effects.Effect]:
        """Input: the session has ended and the live node is gone; other replicas may be candidates already.

        A master steps down. It may become a candidate again in the next session: the lease of a new session does not
        show who was elected during the old one.
        """
        self.has_session = False
        if self.role is not ReplicaRole.FOLLOWER:
            self._step_down("the session with the metadata store is over")
        return self._take()

    def registry_answered(self, sent_ms: int) -> None:
        """Note that a request sent at SENT_MS was answered: the session lasts for at least its timeout from then."""
        self._answered_ms = max(self._answered_ms or 0, sent_ms)

    def registry_seen(
        self,
        found: VersionedCell | None,
        live: Mapping[int, LiveNode],
        now_ms: int,
        mark: VersionedEndMark | None = None,
    ) -> list[effects.Effect]:
        """Input: the set's metadata, the live nodes, and the mark, read in this order. None: there is none.

        They may be outdated. The order matters: a master announces itself before the metadata names it. So if it is
        missing in the live nodes, which are read later, it is gone, and the mark, read last, includes its writes.
        """
        self.live = live
        is_first = not self.mark.is_read
        self.mark.see(mark)
        if is_first:
            self._check_mark(found.cell if found else None)
        if found is not None:
            self._see_cell(found, now_ms)
        mine = live.get(self._me)
        told = (self.unclean, self._last_epoch, self.epoch_seen, self.damaged)
        if mine is None or (mine.unclean, mine.epoch, mine.epoch_seen, mine.damaged) != told:
            self._announce()
        self._act(now_ms)
        return self._take()

    def _check_mark(self, cell: ReplicaSetState | None) -> None:
        """Become unclean if the log does not reach the mark. Done once, at the start.

        If CELL has this replica in sync, it once had everything: its folder is an old copy.
        """
        if self._reaches_mark():
            return
        mark = self.mark.mark
        has = min(self.end, mark.end)
        is_in_sync = cell is not None and self._me in cell.in_sync
        why = "its folder is an older copy, or lost its end" if is_in_sync else "it was not in sync"
        self.unclean_reason = (
            f"its log ends at {self.end:,} with a record of epoch {self.epochs.epoch_before(has)}, and acknowledged"
            f" records reach {mark.end:,} in epoch {mark.epoch}: {why}"
        )
        self.unclean = True
        self._keep_state(self.unclean_reason)

    def _reaches_mark(self) -> bool:
        return self.mark.is_reached(self.epochs, self.end)

    def mark_written(self, found: VersionedEndMark | None, now_ms: int) -> list[effects.Effect]:
        """Input: the mark was written; None: the result is unknown, and the mark is read again."""
        if not self.mark.written(found):
            self._read(now_ms)
        elif self._accepts_loss and self.seen is not None:
            self._has_lowered = self.mark.mark.accepted > self.seen.cell.epoch
        if self.in_sync:
            self._advance(now_ms)
        self._act(now_ms)
        return self._take()

    def last_mark(self, now_ms: int) -> list[effects.Effect]:
        """Return the effects before a stop: write the mark, if this replica is master and the mark has moved."""
        if self.in_sync:
            self._raise_mark(now_ms, at_once=True)
        return self._take()

    def _see_cell(self, found: VersionedCell, now_ms: int) -> None:
        if self.seen and found.version < self.seen.version:
            return
        is_new = self.seen is None or found.version > self.seen.version
        if self.seen is not None:
            self.master_changes += found.cell.epoch != self.seen.cell.epoch
            self.set_changes += found.cell.in_sync != self.seen.cell.in_sync
        self.seen = found
        if found.cell.epoch > self.epoch_seen:
            self._see_epoch(found.cell.epoch, "the metadata of the set has it")
        if is_new:
            self._resolve(found, now_ms)
        elif self._set and not self._set.in_flight:
            self._ask_again(now_ms)

    def set_done(self, version: int, now_ms: int) -> list[effects.Effect]:
        """Input: the compare-and-set was applied, and the set's metadata has VERSION now."""
        done = self._set
        assert done is not None, "there is no request"
        done.in_flight = False
        if self.seen is None or version > self.seen.version:
            self._see_cell(VersionedCell(done.cell, version), now_ms)
        else:
            self._set = None
        self._act(now_ms)
        return self._take()

    def set_refused(self, now_ms: int) -> list[effects.Effect]:
        """Input: the set's metadata has another version than the one to replace."""
        refused = self._set
        assert refused is not None, "there is no request"
        refused.in_flight = False
        if self.seen and self.seen.version > refused.version:
            self._set = None
        elif self.role is ReplicaRole.MASTER and not refused.doubtful:
            self._set = None
            self._step_down("another process changed the metadata of the set")
        self._read(now_ms)
        return self._take()

    def set_unknown(self, now_ms: int) -> list[effects.Effect]:
        """Input: no answer to the compare-and-set came; it may have been applied, or be applied later."""
        assert self._set is not None, "there is no request"
        self._set = replace(self._set, in_flight=False, doubtful=True)
        self._read(now_ms)
        return self._take()

    def _resolve(self, found: VersionedCell, now_ms: int) -> None:
        """Handle a new version of the set's metadata: all requests for an older version are decided."""
        if self._set and not self._set.in_flight:
            self._set = None
        stand, self._campaign = self._campaign, None
        if self.role is ReplicaRole.CANDIDATE:
            if found.cell == stand:
                self.role, self._cutting = ReplicaRole.STARTING, True
                self._out.append(effects.CutLog(None))
            else:
                self.role = ReplicaRole.FOLLOWER
        elif found.cell.master != self._me:
            self._step_down("the metadata of the set names another master")
        elif self.in_sync:
            sufficed = self.in_sync.suffices
            self.in_sync.resolve(found)
            if sufficed and not self.in_sync.suffices:
                self._out.append(effects.FailAcks(len(self.in_sync.confirmed_set)))
            self._advance(now_ms)

    def _ask_again(self, now_ms: int) -> None:
        """Ask again: the version of the set's metadata is unchanged, and the last request got no answer.

        A proposal that is no longer wanted is withdrawn by asking for the old set, which changes the version.
        """
        asked = self._set
        assert asked is not None
        if now_ms - asked.asked_ms < RETRY_MS:
            return
        cell = asked.cell
        if self.role is ReplicaRole.CANDIDATE and self._campaign:
            cell = self._campaign
        elif self.role is ReplicaRole.MASTER and self.in_sync:
            wanted = self.in_sync.wanted(self.live, now_ms)
            if wanted != self.in_sync.proposed_set:
                cell = self.in_sync.cell_with(self.in_sync.confirmed_set)
        else:
            # A request in another role may still be applied: then the next change is refused.
            self._set = None
            return
        asked.cell, asked.in_flight, asked.asked_ms = cell, True, now_ms
        self._out.append(effects.CompareAndSet(cell, asked.version))

    def _ask_for(self, cell: ReplicaSetState, now_ms: int) -> None:
        assert self.seen is not None
        self._set = PendingSet(cell, self.seen.version, asked_ms=now_ms)
        self._out.append(effects.CompareAndSet(cell, self.seen.version))

    def _read(self, now_ms: int) -> None:
        self._read_ms = now_ms
        self._out.append(effects.ReadRegistry())

    def _announce(self) -> None:
        if self.has_session:
            self._out.append(
                effects.Announce(
                    LiveNode(
                        address=self._settings.reached_at,
                        epoch=self._last_epoch,
                        end=self.end,
                        unclean=self.unclean,
                        store_id=self._store_id,
                        epoch_seen=self.epoch_seen,
                        damaged=self.damaged,
                    )
                )
            )

    def damage_changed(self, damaged: int) -> list[effects.Effect]:
        """Input: the log is damaged in DAMAGED places."""
        self.damaged = damaged
        self._announce()
        return self._take()

    def tick(self, now_ms: int) -> list[effects.Effect]:
        """Input: time has passed. Call this about every 100 ms."""
        unanswered = self._set and not self._set.in_flight
        if (unanswered or self.master == 0) and now_ms - (self._read_ms or 0) >= RETRY_MS:
            self._read(now_ms)
        self._act(now_ms)
        return self._take()

    def accept_loss(self, now_ms: int) -> list[effects.Effect]:
        """Become a candidate even if unclean or out of sync: an administrator accepted the loss of messages."""
        self._accepts_loss = True
        self._act(now_ms)
        return self._take()

    def hand_over(self, to: int, now_ms: int, *, leaving: bool) -> list[effects.Effect]:
        """Make TO the master in the set's metadata. LEAVING: remove this replica from the in-sync set.

        Raises NotEnoughReplicas unless TO has the whole log and may be elected.
        """
        assert self.in_sync is not None, "check_master comes first"
        if self._set or self.seen is None:
            raise NotEnoughReplicas("the in-sync set is about to change: try again in a moment")
        cell = self.in_sync.handed_to(to, self.live, leaving=leaving)
        self._raise_mark(now_ms, at_once=True)
        self._ask_for(cell, now_ms)
        return self._take()

    def _act(self, now_ms: int) -> None:
        """Do what is due in this role: propose a set, become a candidate, or follow."""
        if self.role is ReplicaRole.MASTER:
            self._propose(now_ms)
            self._raise_mark(now_ms, at_once=False)
        elif self.role is ReplicaRole.FOLLOWER and self.seen is not None:
            cell = self.seen.cell
            if self._is_gone(cell):
                if self._gone_ms is None:
                    self._gone_ms = now_ms
                    self._announce()
                if self.may_be_candidate(cell) and now_ms >= self._gone_ms + self._delay_ms(cell):
                    self._become_candidate(cell, now_ms)
                    return
            else:
                self._gone_ms = None
            # Also connect to a master with an older epoch: the hello shows that its epoch has ended.
            if cell.master not in (0, self._me):
                self._dial(cell, now_ms)

    def _is_gone(self, cell: ReplicaSetState) -> bool:
        """Return whether the master of CELL is dead, or cannot be elected again. A serving master is never unclean."""
        node = self.live.get(cell.master)
        return node is None or node.unclean or cell.master == self._me

    def may_be_candidate(self, cell: ReplicaSetState) -> bool:
        """Return whether this replica may become a candidate to succeed the master of CELL."""
        if not self.has_session or not self.is_live or self._set or self._cutting:
            return False
        if max(cell.epoch, self.epoch_seen) >= EPOCH_MAX:
            return False  # Files and metadata cannot store a higher epoch.
        if self._accepts_loss:
            return True
        if cell.master == 0 and self._last_epoch > cell.epoch and cell.in_sync != {self._me}:
            return False  # The metadata store lost its data, so it is unknown which replica has the complete log.
        return self._me in cell.in_sync and not self.unclean and self._reaches_mark()

    def _delay_ms(self, cell: ReplicaSetState) -> int:
        """Return how long to wait for better candidates: those of a newer epoch, or with more of the log."""
        if cell.master == self._me or self._accepts_loss:
            return 0
        better = better_candidates(
            cell, self.live, self._me, self._last_epoch, self.end, self.damaged
        )
        delay_ms = better * self._settings.election_delay_ms
        return delay_ms + DAMAGED_DELAY_MS if better and self.damaged else delay_ms

    def _become_candidate(self, cell: ReplicaSetState, now_ms: int) -> None:
        """Become a candidate: persist a new epoch, stop following in all lower ones, then ask for it.

        From now on the old master acknowledges without this replica. A replica never uses an epoch that it has seen:
        after a restart, metadata that names it as master does not make it master, because followers may have bytes of
        that epoch that this replica lost.
        """
        epoch = max(cell.epoch, self.epoch_seen) + 1
        if self._accepts_loss and not self._has_lowered:
            self._write_mark(self.mark.lowered(epoch, self.epochs, self.end))
            return
        others = cell.in_sync - {cell.master, self._me}
        kept = {one for one in others if one in self.live and not self.live[one].unclean}
        if self._accepts_loss:
            kept.clear()
            self.unclean = self._accepts_loss = self._has_lowered = False
            self.unclean_reason = ""
        self._unfollow("this replica is a candidate for master")
        self.epoch_seen = epoch
        self._keep_state()
        self.role = ReplicaRole.CANDIDATE
        self._campaign = ReplicaSetState(
            epoch=epoch,
            master=self._me,
            in_sync=frozenset({self._me, *kept}),
            replicas=cell.replicas,
        )
        self._ask_for(self._campaign, now_ms)

    def _start(self, now_ms: int) -> None:
        """Start the epoch at the end of the last valid record, and flush that to disk before the first append."""
        assert self.seen is not None
        self.confirm = min(self.confirm, self.end)
        self.epochs = self.epochs.begin(self.seen.cell.epoch, self.end)
        self._out.append(effects.KeepEpochs(self.epochs))
        self.in_sync = InSync(
            self._settings, self.seen, self.end, self.synced, self.confirm, now_ms, self._has_state
        )
        self.role = ReplicaRole.MASTER
        self._gone_ms = None
        self._answered, self.refuses = 0, ""
        self._announce()
        self._out.append(effects.BecomeMaster(self.in_sync.epoch, self.end))
        self._advance(now_ms)
        early, self._early = self._early, {}
        for link, hello in early.items():
            try:
                self._on_hello(link, hello)
            except InvalidArgument as error:
                self._drop(link, str(error))
        self._propose(now_ms)

    def _see_epoch(self, epoch: int, why: str) -> None:
        """Persist EPOCH, the highest ever seen, before anything else; give up all roles in lower epochs."""
        self.epoch_seen = epoch
        self._keep_state()
        self._step_down(f"epoch {epoch}: {why}")
        self._unfollow(f"epoch {epoch}: {why}")

    def _step_down(self, reason: str) -> None:
        was, self.role = self.role, ReplicaRole.FOLLOWER
        if was in (ReplicaRole.STARTING, ReplicaRole.MASTER):
            self._out.append(effects.StepDown(self.epoch_seen, reason))
        for link in (*self._links, *self._early):
            self._out.append(effects.CloseLink(link, reason))
        self._links.clear()
        self._early.clear()
        self.in_sync = None
        self._campaign = None

    def _keep_state(self, reason: str = "") -> None:
        self._out.append(effects.PersistState(self.epoch_seen, self.unclean, reason))

    def _raise_mark(self, now_ms: int, *, at_once: bool) -> None:
        """Write the mark if the set has more of the log on disk, and a write is due or AT_ONCE."""
        assert self.in_sync is not None
        if self.has_session:
            end, epoch = self.in_sync.synced_everywhere, self.in_sync.epoch
            self._write_mark(self.mark.raised(end, self.epochs, epoch, now_ms, at_once=at_once))

    def _write_mark(self, mark: EndMark | None) -> None:
        if mark is not None:
            self._out.append(effects.WriteMark(mark, self.mark.version))

    def log_cut(self, end: int, synced: int, now_ms: int) -> list[effects.Effect]:
        """Input: the log was cut or replaced: it ends at END, and is on disk up to SYNCED."""
        self._cutting = False
        self.end, self.synced = end, synced
        self.epochs = self.epochs.cut(end)
        upstream = self._upstream
        if self.role is ReplicaRole.STARTING:
            self._start(now_ms)
        elif upstream and upstream.begin and not upstream.cut:
            self._begin_at_end(upstream, upstream.begin)
        self._act(now_ms)
        return self._take()

    def appended(self, end: int, now_ms: int) -> list[effects.Effect]:
        """Input: the master appended a batch of complete records, which ends at END."""
        assert self.in_sync is not None, "call check_master first"
        self.end = end
        self.in_sync.appended(end, now_ms)
        self._advance(now_ms)
        return self._take()

    def log_synced(self, synced: int, now_ms: int) -> list[effects.Effect]:
        """Input: the log is on disk up to SYNCED."""
        self.synced = max(self.synced, min(synced, self.end))
        if self.in_sync:
            self.in_sync.log_synced(self.synced)
            self._advance(now_ms)
        elif self._upstream and self._upstream.cut:
            self._acknowledge(self._upstream)
            self._become_clean(self._upstream)
        return self._take()

    def _advance(self, now_ms: int) -> None:
        """Emit effects for what is newly acknowledged and confirmed."""
        assert self.in_sync is not None
        self.in_sync.advance()
        self._raise_confirm(self.in_sync.confirm, self.in_sync.epoch)
        acknowledged = self.in_sync.acknowledged
        if self._settings.mark == "each":
            self._raise_mark(now_ms, at_once=True)
            acknowledged = min(acknowledged, self.mark.mark.end)
        if acknowledged > self._answered:
            self._answered = acknowledged
            self._out.append(effects.AnswerAcks(acknowledged, len(self.in_sync.maximal_set)))

    def _raise_confirm(self, offset: int, epoch: int) -> None:
        if offset > self.confirm:
            self.confirm, self.confirm_epoch = offset, epoch
            self._out.append(effects.Confirm(offset))

    def _propose(self, now_ms: int) -> None:
        """Propose another set if necessary: one proposal at a time, and none while an old one may still be applied."""
        assert self.in_sync is not None
        if self._set or self.in_sync.proposed_set is not None:
            return
        wanted = self.in_sync.wanted(self.live, now_ms)
        if wanted != self.in_sync.confirmed_set:
            self._ask_for(self.in_sync.propose(wanted), now_ms)

    def _dial(self, cell: ReplicaSetState, now_ms: int) -> None:
        upstream = self._upstream
        if upstream and upstream.master != cell.master:
            self._unfollow("another replica is master")
            upstream = None
        if upstream is None:
            upstream = self._upstream = Upstream(cell.master, dialled_ms=now_ms - RETRY_MS)
        if upstream.link and not self._cutting and now_ms - upstream.heard_ms > SILENT_MS:
            upstream = self._refuse_upstream(f"no frame for {SILENT_MS} ms")
        if not upstream.link and now_ms - upstream.dialled_ms >= RETRY_MS:
            upstream.dialled_ms = now_ms
            self._out.append(effects.Follow(cell.master, cell.replicas[cell.master]))

    def _unfollow(self, reason: str) -> None:
        if self._upstream and self._upstream.link:
            self._out.append(effects.CloseLink(self._upstream.link, reason))
        self._upstream = None

    def connected(self, master: int, link: int, now_ms: int) -> list[effects.Effect]:
        """Input: MASTER is connected over LINK. Numbers of links start at 1 and are never used again."""
        upstream = self._upstream
        if upstream is None or upstream.master != master or upstream.link or self._cutting:
            self._out.append(effects.CloseLink(link, "this replica does not follow any more"))
            return self._take()
        upstream.link, upstream.heard_ms = link, now_ms
        hello = pb.FollowHello(
            cluster=self._settings.cluster,
            set=self._settings.set_name,
            replica_id=self._me,
            epoch_seen=self.epoch_seen,
            epochs=self.epochs.cut(self.end).to_wire(),
            end=self.end,
            synced=self.synced,
            file_size=self._settings.file_size,
        )
        self._out.append(effects.SendFrame(link, pb.FollowRequest(hello=hello)))
        return self._take()

    def link_closed(self, link: int) -> list[effects.Effect]:
        """Input: LINK was closed by either side."""
        self._links.pop(link, None)
        self._early.pop(link, None)
        if self.in_sync:
            self.in_sync.detach(link)
        if self._upstream and self._upstream.link == link:
            self._upstream = Upstream(self._upstream.master, dialled_ms=self._upstream.dialled_ms)
        return self._take()

    def reply(
        self, link: int, frame: pb.FollowReply, now_ms: int, more: Sequence[pb.FollowReply] = ()
    ) -> list[effects.Effect]:
        """Input: the master sent FRAME over LINK, followed by MORE bytes. FollowState is handled elsewhere."""
        upstream = self._upstream
        if upstream is None or upstream.link != link:
            return self._take()
        upstream.heard_ms = now_ms
        try:
            if frame.WhichOneof("frame") == "begin":
                self._begin(upstream, frame.begin)
            elif frame.WhichOneof("frame") == "bytes":
                self._receive(upstream, [one.bytes for one in (frame, *more)])
        except InvalidArgument as error:
            self._refuse_upstream(str(error))
        self._act(now_ms)
        return self._take()

    def _begin(self, upstream: Upstream, begin: pb.FollowBegin) -> None:
        """Cut the log to what it has in common with the master's; do not follow if that would cut confirmed records."""
        frames.check_begin(begin)
        if upstream.begin is not None:
            raise InvalidArgument("begin was sent twice")
        if self.is_fenced(begin.epoch):
            raise InvalidArgument(f"epoch is {begin.epoch}, but {self.epoch_seen} was seen")
        assert self.seen is not None, "the metadata names the master"
        if begin.epoch > self.seen.cell.epoch:
            raise InvalidArgument(
                f"epoch is {begin.epoch}, but the metadata of the set has {self.seen.cell.epoch}: read it again"
            )
        if begin.epoch > self.epoch_seen:
            self.epoch_seen = begin.epoch
            self._keep_state()
        theirs = Epochs.of_wire(begin.epochs)
        common = consistent_end(theirs, begin.end, self.epochs, self.end)
        if begin.truncate_to != (-1 if common is None else common):
            raise InvalidArgument(
                f"truncate_to is {begin.truncate_to}, but the logs differ from {common} on"
            )
        upstream.begin = begin
        # Without epochs (the file was lost), it is unknown what the logs have in common.
        known = self._acknowledged_end() if self.epochs else 0
        if (common or 0) < known:
            self.refuses = (
                f"its log has {common or 0:,} bytes in common with that of master {upstream.master}, and acknowledged"
                f" records reach {known:,} here: nothing is cut; if the master's log is the right one, remove this"
                " replica's folder, else see `pocketmq replicas force-elect`"
            )
            raise InvalidArgument(self.refuses)
        self.refuses = ""
        if common is None or common < max(begin.min_offset, self.confirm):
            why = f"its log has {common} bytes in common with the master's, which begins at {begin.min_offset}"
            self._set_aside(begin.min_offset, f"{why}; {self.confirm} were confirmed")
        elif common < self.end:
            self._cutting = True
            self._out.append(effects.CutLog(common))
        else:
            self._begin_at_end(upstream, begin)

    def _acknowledged_end(self) -> int:
        """Return the offset up to which records in this log are known to be acknowledged.

        What was known in an epoch before an accepted loss does not count.
        """
        mark = self.mark.mark
        known = self.confirm if self.confirm_epoch >= mark.accepted else 0
        return max(known, mark.end) if self._reaches_mark() else known

    def _set_aside(self, begin: int, reason: str) -> None:
        if self.end and not self.unclean:
            self.unclean = True
            self._keep_state()
            self._announce()
        self.confirm = 0
        self.epochs = Epochs()
        self.min_offset = begin
        self._cutting = True
        self._out.append(effects.BeginAnew(begin, reason))

    def _begin_at_end(self, upstream: Upstream, begin: pb.FollowBegin) -> None:
        """The log is a prefix of the master's: take the master's epochs up to its end."""
        # All epochs before the first byte: bytes of an unknown epoch would count as older ones.
        theirs = Epochs.of_wire(begin.epochs)
        if theirs != self.epochs:
            self._out.append(effects.KeepEpochs(theirs))
        self.epochs = theirs
        upstream.cut = True
        cut = pb.FollowCut(end=self.end, synced=self.synced)
        self._out.append(effects.SendFrame(upstream.link, pb.FollowRequest(cut=cut)))

    def _receive(self, upstream: Upstream, sent: Sequence[pb.FollowBytes]) -> None:
        """Append the data of SENT, all of one file at once. A bad frame ends the link after the good ones."""
        if not upstream.cut or upstream.begin is None:
            raise InvalidArgument("bytes were sent before the log was cut")
        pieces: list[bytes] = []
        try:
            for frame in sent:
                data = frames.next_bytes(frame, upstream.begin.epoch, self.end)
                if frame.offset % self._settings.file_size == 0:
                    self._append(upstream, pieces)
                pieces.append(data)
                self.end += len(data)
                upstream.confirm = max(upstream.confirm or 0, frame.confirm)
        finally:
            self._append(upstream, pieces)
        self._raise_confirm(min(upstream.confirm or 0, self.end), upstream.begin.epoch)
        self._acknowledge(upstream)
        self._become_clean(upstream)

    def _append(self, upstream: Upstream, pieces: list[bytes]) -> None:
        if data := b"".join(pieces):
            is_far = (upstream.confirm or 0) - self.end > frames.FAR_BYTES
            self._out.append(effects.AppendRaw(self.end - len(data), data, is_far))
        pieces.clear()

    def _acknowledge(self, upstream: Upstream) -> None:
        assert upstream.begin is not None
        ack = pb.FollowAck(epoch=upstream.begin.epoch, written=self.end, synced=self.synced)
        self._out.append(effects.SendFrame(upstream.link, pb.FollowRequest(ack=ack)))

    def _become_clean(self, upstream: Upstream) -> None:
        """Become clean once everything is here that the master confirmed, and all from before its epoch."""
        if not self.unclean or upstream.begin is None or upstream.confirm is None:
            return
        has = self.synced if self._settings.acks_need_sync else self.end
        if has >= max(upstream.confirm, upstream.begin.epochs[-1].start):
            self.unclean, self.unclean_reason = False, ""
            self._keep_state()
            self._announce()

    def is_fenced(self, epoch: int) -> bool:
        """Return whether EPOCH has ended."""
        return epoch < self.epoch_seen

    def _refuse_upstream(self, reason: str) -> Upstream:
        upstream = self._upstream
        assert upstream is not None
        self._unfollow(reason)
        self._upstream = Upstream(upstream.master, dialled_ms=upstream.dialled_ms)
        return self._upstream

    def log_begins(self, min_offset: int) -> None:
        """Files were deleted: the log begins at MIN_OFFSET."""
        self.min_offset = min_offset

    def request(self, link: int, frame: pb.FollowRequest, now_ms: int) -> list[effects.Effect]:
        """Input: another replica sent FRAME over LINK, which it dialled. FollowStateAck is handled elsewhere."""
        kind = frame.WhichOneof("frame")
        try:
            if kind == "hello":
                self._on_hello(link, frame.hello)
            elif kind == "cut":
                self._on_cut(link, frame.cut, now_ms)
            elif kind == "ack":
                self._on_ack(link, frame.ack, now_ms)
        except InvalidArgument as error:
            self._drop(link, str(error))
        self._act(now_ms)
        return self._take()

    def _on_hello(self, link: int, hello: pb.FollowHello) -> None:
        """Answer a replica that wants to follow: the epochs of the log, and where the replica must cut its own log."""
        frames.check_hello(hello)
        replicas = self.seen.cell.replicas if self.seen else ()
        frames.check_belongs(hello, self._settings, replicas)
        frames.check_epoch_seen(hello, self.epoch_seen, self.live.get(hello.replica_id))
        if hello.epoch_seen > self.epoch_seen:
            self._see_epoch(hello.epoch_seen, f"replica {hello.replica_id} has seen it")
        if self.role is ReplicaRole.STARTING and len(self._early) < LINKS_MAX:
            self._early[link] = hello
            return
        if self.in_sync is None:
            raise InvalidArgument(
                f"replica {self._me} is not the master: read the metadata of the set again"
            )
        for other in [other for other, (one, _) in self._links.items() if one == hello.replica_id]:
            self._drop(other, "the replica has connected again")
        if len(self._links) >= LINKS_MAX:
            raise InvalidArgument(f"{LINKS_MAX} replicas follow already, which is the limit")
        theirs = Epochs.of_wire(hello.epochs)
        common = consistent_end(self.epochs, self.end, theirs, hello.end)
        self._links[link] = (hello.replica_id, max(self.min_offset, common or 0))
        begin = pb.FollowBegin(
            epoch=self.in_sync.epoch,
            epochs=self.epochs.to_wire(),
            end=self.end,
            min_offset=self.min_offset,
            truncate_to=-1 if common is None else common,
        )
        self._out.append(effects.SendFrame(link, pb.FollowReply(begin=begin)))

    def _on_cut(self, link: int, cut: pb.FollowCut, now_ms: int) -> None:
        frames.check_cut(cut)
        follower, most = self._links.get(link, (0, None))
        if self.in_sync is None or most is None:
            raise InvalidArgument("a cut was sent without a hello")
        if not self.min_offset <= cut.end <= most:
            raise InvalidArgument(f"end is {cut.end}, must be {self.min_offset} to {most}")
        self._links[link] = (follower, None)
        self.in_sync.attach(follower, link, cut.end, cut.synced, now_ms)
        self._out.append(effects.SendLogFrom(link, cut.end))
        self._advance(now_ms)

    def _on_ack(self, link: int, ack: pb.FollowAck, now_ms: int) -> None:
        frames.check_ack(ack)
        if ack.epoch > self.epoch_seen:
            raise InvalidArgument(
                f"epoch is {ack.epoch}, but the epoch of the followed master was {self.epoch_seen} or less"
            )
        follower, _ = self._links.get(link, (0, None))
        if self.in_sync is None or not follower:
            return
        if ack.epoch == self.in_sync.epoch and ack.written > self.end:
            raise InvalidArgument(f"written is {ack.written}, but the log ends at {self.end}")
        self.in_sync.ack(follower, link, ack.epoch, ack.written, ack.synced, now_ms)
        self._advance(now_ms)

    def _drop(self, link: int, reason: str) -> None:
        self._links.pop(link, None)
        if self.in_sync:
            self.in_sync.detach(link)
        self._out.append(effects.CloseLink(link, reason))

    def _take(self) -> list[effects.Effect]:
        out, self._out = self._out, []
        return out
