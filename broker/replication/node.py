"""A node of a replica set: one replica for as long as the process runs, and the requests of others at its port.

A replica that fails (running.py) restarts from its disk `AGAIN_MS` later, again and again. Meanwhile the others see
that its live node is gone. The port and its methods, `pocketmq.v1.Replication`, stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from itertools import count
from typing import Final

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.request_bounds import bounded
from ...proto.rpc import Call, MethodTable, Receiver, Stream, bidi, service, unary
from .follower_view import FollowerView
from .in_sync import ReplicaSettings
from .registry import LiveNode, VersionedCell
from .registry_sessions import RateLimitedWarning, first_look
from .replica_metrics import Behind, CellChanges, ReplicaStatus
from .replica_state import ReplicaRole
from .running import ReplicaParts, RunningReplica

logger = logging.getLogger(__name__)

#: Time limit of a transfer of leadership.
HAND_OVER_MS: Final = 5_000
HAND_OVER_MS_MAX: Final = 600_000
#: With fewer missing bytes, the next master has the complete log almost at once.
_NEARLY_ALL_BYTES: Final = 1_048_576
#: How long a transfer waits for the replicated tables. If they take longer, messages may be redelivered.
_STATE_MS: Final = 150
_LOOK_S: Final = 0.002
#: How long a stop waits for another master.
_LEAVE_MS: Final = 2_000
#: Delay before a replica restarts from its disk after a failure.
AGAIN_MS: Final = 1_000


class ReplicaNode:
    """The replica of SETTINGS, with PARTS."""

    def __init__(self, settings: ReplicaSettings, parts: ReplicaParts) -> None:
        self.settings = settings
        self._parts = parts
        self._links = count(1)
        self._running: RunningReplica | None = None
        self._task: asyncio.Task[None] | None = None
        #: Changes that were seen before this replica restarted from its disk.
        self._changed_before = CellChanges()
        self._silent = RateLimitedWarning("replica failed, it restarts from its disk", parts.clock)

    async def start(self) -> None:
        """Start; return once the metadata store has answered and the store is open.

        Raises ConfigError if the cluster has no such set or replica, or the store belongs to another replica; and
        errors of opening a store.
        """
        self._parts.device.check_identity()
        cell, live = await first_look(self._parts.open_session, self._parts.clock)
        self._check_place(cell, live)
        running = await self._begin(was_led=cell is not None and cell.cell.epoch > 0)
        self._task = asyncio.get_running_loop().create_task(self._run(running), name="replica")

    def _check_place(self, found: VersionedCell | None, live: Mapping[int, LiveNode]) -> None:
        """Raise ConfigError unless the metadata has this replica, and no other process has taken its id."""
        mine, me = self.settings, self.settings.replica_id
        if found is None:
            raise errors.ConfigError(
                f"there is no replica set {mine.set_name!r} in cluster {mine.cluster!r}: make it with"
                f" `pocketmq replicas init {mine.set_name} {me}={mine.address} …`, or check the names",
                field="replica_set",
                value=mine.set_name,
            )
        replicas = found.cell.replicas
        if me not in replicas:
            known = ", ".join(map(str, sorted(replicas)))
            raise errors.ConfigError(
                f"replica set {mine.set_name!r} has the replicas {known}, and no replica {me}: start with one of these"
                f" --replica-id, or add it with `pocketmq replicas change {mine.set_name} {me}={mine.address}`",
                field="replica_id",
                value=me,
            )
        if replicas[me] != mine.address:
            raise errors.ConfigError(
                f"replica {me} of {mine.set_name!r} is at {replicas[me]} in the metadata of the set, but this one is at"
                f" {mine.address}: set replication.listen or replication.address to the address that the others dial,"
                f" or change the metadata with `pocketmq replicas change {mine.set_name} {me}={mine.address}`",
                field="address",
                value=mine.address,
            )
        taken = live.get(me)
        # A store that was never started has announced nothing.
        own = (mine.reached_at, self._parts.device.store_id)
        if taken and (taken.address, taken.store_id or own[1]) != own:
            raise errors.ConfigError(
                f"replica {me} of {mine.set_name!r} runs already, at {live[me].address}: stop it, wait"
                " some seconds if it was killed, or start with another --replica-id",
                field="replica_id",
                value=me,
            )

    async def _begin(self, *, was_led: bool) -> RunningReplica:
        device = self._parts.device
        opening = asyncio.ensure_future(asyncio.to_thread(device.open, was_led=was_led))
        try:
            state = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait((opening,))  # The thread continues, and its store must be closed.
            if device.is_open:
                await asyncio.to_thread(device.close)
            raise
        running = RunningReplica(self.settings, state, self._parts, self._links.__next__)
        self._changed_before, self._running = self._changes(), running
        running.begin()
        return running

    async def _run(self, running: RunningReplica) -> None:
        """Restart the replica whenever it fails."""
        while True:
            error = await asyncio.shield(running.failed)
            self._silent.tell(str(error))
            await self._end(running, str(error))
            while True:
                await asyncio.sleep(AGAIN_MS / 1000)
                try:
                    running = await self._begin(was_led=True)
                    break
                except Exception as again:  # Whatever the error is, it is retried.
                    self._silent.tell(str(again))

    async def _end(self, running: RunningReplica, reason: str) -> None:
        try:
            await running.end(reason)
        except Exception as error:  # Whatever the error is, the replica restarts.
            logger.warning("replica not ended cleanly reason=%s", error)

    async def stop(self) -> None:
        """Stop everything; close the store cleanly. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        await self.transfer_leadership()
        task.cancel()
        await asyncio.wait((task,))
        if self._running is not None:
            running, self._running = self._running, None
            await running.end("the replica was stopped")

    async def transfer_leadership(self) -> bool:
        """Transfer leadership to the follower in sync with the longest log, if there is one. Call `stop` afterwards.

        Returns whether the next master is known now, so that clients can be redirected to it.
        """
        leadership = self._running.leadership if self._running else None
        successor = leadership.best_successor() if leadership is not None else 0
        if not successor:
            return False
        try:
            await self.hand_over(successor, _LEAVE_MS, leaving=True)
            async with asyncio.timeout(_LEAVE_MS / 1000):
                while self.known_master is None:  # noqa: ASYNC110 (a state of many causes, looked at for a moment)
                    await asyncio.sleep(_LOOK_S)
        except errors.PocketMQError as error:
            logger.warning("leadership not transferred to=%d reason=%s", successor, error.message)
        except TimeoutError:
            logger.warning(
                "leadership transferred to=%d, no answer from the new master ms=%d",
                successor,
                _LEAVE_MS,
            )
        return self.known_master is not None

    @property
    def role(self) -> ReplicaRole:
        running = self._running
        return running.core.role if running and not running.failed.done() else ReplicaRole.FOLLOWER

    @property
    def master(self) -> int:
        """The id of the master; 0: none is known."""
        return self._running.core.master if self._running else 0

    @property
    def epoch(self) -> int:
        """The epoch of the master that this replica is, else the highest epoch seen; 0: none, or it restarts."""
        return self._running.core.epoch if self._running else 0

    @property
    def is_live(self) -> bool:
        """Return whether its live node exists."""
        return self._running is not None and self._running.core.is_live

    @property
    def refused(self) -> errors.ConfigError | None:
        """Why the live node was refused; None: it was accepted, or not announced yet."""
        return self._running.refused if self._running else None

    @property
    def known_master(self) -> tuple[str, int] | None:
        """The master's address for clients, and its epoch; None: this replica is the master, or it follows none."""
        if self._running is None or not self._running.is_connected_to_master:
            return None
        core = self._running.core
        node = core.live.get(core.master)
        return (node.address, core.seen.cell.epoch) if core.seen and node else None

    @property
    def takes_calls(self) -> bool:
        """Return whether it is a master that takes requests: not during a transfer, nor after stepping down."""
        leadership = self._running.leadership if self._running else None
        if leadership is None:
            return False
        try:
            leadership.check_open()
        except errors.MasterFenced:
            return False
        return True

    @property
    def follower_view(self) -> FollowerView | None:
        """The log and tables of the set that this replica has; None: it is master, or they are not available."""
        running = self._running
        if running is None or self.role is ReplicaRole.MASTER:
            return None
        return running.follower_view

    def _changes(self) -> CellChanges:
        if self._running is None:
            return self._changed_before
        core = self._running.core
        return self._changed_before.plus(CellChanges(core.master_changes, core.set_changes))

    def look(self) -> ReplicaStatus:
        """Return its status, for metrics and commands."""
        running = self._running
        if running is None or running.failed.done():
            return ReplicaStatus(settings=self.settings, changes=self._changes())
        core, in_sync = running.core, running.core.in_sync
        cell, now_ms = core.seen.cell if core.seen else None, running.now_ms()
        others = cell.replicas.keys() - {self.settings.replica_id} if cell else ()
        known = in_sync.maximal_set if in_sync else cell.in_sync if cell else ()
        return ReplicaStatus(
            settings=self.settings,
            changes=self._changes(),
            is_master=self.role is ReplicaRole.MASTER,
            is_live=core.is_live,
            epoch=core.epoch,
            in_sync=known,
            confirm=core.confirm,
            end=core.end,
            synced=core.synced,
            damaged=running.damaged,
            behind={one: Behind(*in_sync.behind(one, now_ms)) for one in others} if in_sync else {},
        )

    @property
    def client_addresses(self) -> list[str]:
        """Addresses for clients of all live replicas, by replica id."""
        live = self._running.core.live if self._running else {}
        return [node.address for _, node in sorted(live.items())]

    def methods(self) -> MethodTable:
        """Return the methods of the replication port."""
        entries = {
            "Follow": bidi(pb.FollowRequest, pb.FollowReply, self._followed),
            "Status": unary(pb.ReplicaStatusRequest, pb.ReplicaStatusReply, self._status),
            "ReadLog": unary(pb.ReadLogRequest, pb.ReadLogReply, self._read_log),
            "MoveMaster": unary(pb.MoveMasterRequest, pb.MoveMasterReply, self._move_master),
            "AcceptLoss": unary(pb.AcceptLossRequest, pb.AcceptLossReply, self._accept_loss),
        }
        return bounded(service("pocketmq.v1.Replication", entries))

    def _followed(self, stream: Stream) -> Receiver[pb.FollowRequest]:
        return self._alive.followed(stream)

    @property
    def _alive(self) -> RunningReplica:
        if self._running is None or self._running.failed.done():
            raise errors.ShuttingDown(
                f"replica {self.settings.replica_id} is restarting or stopping"
            )
        return self._running

    def _status(self, request: pb.ReplicaStatusRequest, call: Call) -> pb.ReplicaStatusReply:
        return self._alive.status()

    def _read_log(self, request: pb.ReadLogRequest, call: Call) -> pb.ReadLogReply:
        return self._alive.healer.answer(request)

    async def _move_master(self, request: pb.MoveMasterRequest, call: Call) -> pb.MoveMasterReply:
        self._check_asked(request.set)
        if not 0 <= request.timeout_ms <= HAND_OVER_MS_MAX:
            raise errors.InvalidArgument(
                f"timeout_ms is {request.timeout_ms}: must be from 0 to {HAND_OVER_MS_MAX}",
                field="timeout_ms",
                value=request.timeout_ms,
                limit=HAND_OVER_MS_MAX,
            )
        refused_ms = await self.hand_over(request.to, request.timeout_ms or HAND_OVER_MS)
        return pb.MoveMasterReply(epoch=self.epoch, refused_ms=refused_ms)

    def _accept_loss(self, request: pb.AcceptLossRequest, call: Call) -> pb.AcceptLossReply:
        self._check_asked(request.set, request.replica_id)
        logger.warning("forced election requested, acknowledged messages may be lost")
        self._alive.accept_loss()
        return pb.AcceptLossReply()

    def _check_asked(self, name: str, replica_id: int | None = None) -> None:
        """Raise InvalidArgument if the request is for another set or another replica."""
        mine = self.settings
        for field, asked, own in (
            ("set", name, mine.set_name),
            ("replica_id", replica_id, mine.replica_id),
        ):
            if asked is not None and asked != own:
                raise errors.InvalidArgument(
                    f"{field} is {asked!r:.80}, but this replica's is {own!r}: use another address",
                    field=field,
                    value=asked,
                )

    async def hand_over(self, to: int, timeout_ms: int, *, leaving: bool = False) -> int:
        """Make replica TO the master within TIMEOUT_MS. LEAVING: this replica is about to stop.

        Once TO is in sync and has nearly the complete log, this master accepts no new requests; returns for how many
        ms. Requests that it accepted before are still answered, until TO is named in the set's metadata.

        Raises:
            MasterFenced: This replica is not the master.
            InvalidArgument: TO is not another replica of the set, or its log is damaged.
            NotEnoughReplicas: TO did not catch up; this replica stays master.
        """
        running, clock = self._alive, self._parts.clock
        leadership = running.leadership
        if leadership is None:
            raise errors.MasterFenced(f"replica {self.settings.replica_id} is not the master")
        if to == self.settings.replica_id or to not in running.replicas:
            others = sorted(running.replicas - {self.settings.replica_id})
            raise errors.InvalidArgument(
                f"to is {to}: must be one of the other replicas of {self.settings.set_name!r}, {others}",
                field="to",
                value=to,
            )
        node = running.core.live.get(to)
        if node is not None and node.damaged:
            raise errors.NotEnoughReplicas(
                f"the log of replica {to} is damaged in {node.damaged} places: wait until they are repaired from"
                " another replica (`pocketmq replicas status` shows them)",
                damaged=node.damaged,
            )
        began_ms = clock.now_ms()
        refused_ms = began_ms
        try:
            while running.leadership is leadership:
                now_ms = clock.now_ms()
                if now_ms - began_ms > timeout_ms:
                    raise errors.NotEnoughReplicas(
                        f"replica {to} was not in sync with all of the log within {timeout_ms} ms: replica"
                        f" {self.settings.replica_id} continues as master",
                        timeout_ms=timeout_ms,
                    )
                is_near = leadership.may_be_next(to) and leadership.behind(to) <= _NEARLY_ALL_BYTES
                if not leadership.transfer_to and is_near:
                    leadership.transfer_to, refused_ms = to, now_ms
                if leadership.transfer_to and not leadership.is_transferred:
                    is_replicated = running.has_state(to) and not leadership.is_awaited
                    is_late = now_ms - refused_ms > _STATE_MS
                    leadership.is_transferred = (is_replicated or is_late) and running.hand_over(
                        to, leaving=leaving
                    )
                await asyncio.sleep(_LOOK_S)
        finally:
            leadership.transfer_to, leadership.is_transferred = 0, False
        return clock.now_ms() - refused_ms
