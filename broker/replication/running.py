"""A running replica: it passes inputs to its core one at a time, and executes the effects in order.

Inputs come from the metadata store, the links, the store and the broker, on the event loop. All effects of one input
are carried out before the next input. Blocking work (flushing to disk, cutting the log) runs in a thread while inputs
wait. A failed effect ends the replica: `failed` has the error, and the next start continues from the disk.

    follower   the store takes a master's bytes
    master     the broker that `RoleCallbacks.lead` starts has the store. On StepDown it is fenced at once. It is
               stopped before the log is changed, or another master is followed
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from ...proto import errors
from ...proto.clock import Readings
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import Stream
from ...store.message_store import MessageStore
from ..producers.producers import PRODUCERS_TICK_MS
from . import effects
from .device import ReplicaDevice
from .follower_view import FollowerView
from .frames import check_state_ack
from .healing import HealedReplica, LogHealer
from .in_sync import ReplicaSettings
from .leadership import Leadership
from .links import Dial, FollowerLink, MasterLink
from .mastership import Mastership
from .registry import LiveNode, VersionedCell, VersionedEndMark
from .registry_sessions import OpenSession, RateLimitedWarning, RegistrySessions
from .replica import ReplicaCore
from .replica_state import ReplicaRole, ReplicaState
from .state_stream import StateStream

logger = logging.getLogger(__name__)

TICK_MS: Final = 100
#: Interval at which the progress of the log (on disk, confirmed) is written.
_PROGRESS_MS: Final = 5_000
#: How long a master that stops waits for its last write of the mark.
_LAST_MARK_S: Final = 0.5
#: Effects that need the log, which the broker of a former master may still use.
_OF_LOG: Final = (
    effects.AppendRaw,
    effects.CutLog,
    effects.BeginAnew,
    effects.Follow,
    effects.BecomeMaster,
)

_Input = Callable[[ReplicaCore], list[effects.Effect]]
#: Executes a blocking effect; inputs wait meanwhile.
_Blocking = Callable[[], Coroutine[Any, Any, None]]


class RoleCallbacks(Protocol):
    """The services of a replica for clients in each role. One call at a time."""

    async def lead(self, store: MessageStore, mastership: Mastership) -> None:
        """Serve as master over STORE, which accepts records now, until MASTERSHIP ends; then `follow` is called."""
        ...

    async def follow(self) -> None:
        """Serve as a follower: the services of a master have stopped, and left the store open. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaParts:
    """The parts of a replica. CLOCK continues while the machine sleeps, and cannot be set."""

    device: ReplicaDevice
    clock: Readings
    open_session: OpenSession
    dial: Dial
    roles: RoleCallbacks


class _Heard(NamedTuple):
    """The link of the last frame from a master, and the confirm offset in it."""

    link: int = 0
    confirm: int = 0


class RunningReplica:
    """The replica SETTINGS.replica_id with PARTS, which starts with STATE. NEXT_LINK returns unique numbers."""

    def __init__(
        self,
        settings: ReplicaSettings,
        state: ReplicaState,
        parts: ReplicaParts,
        next_link: Callable[[], int],
    ) -> None:
        self.settings = settings
        self._state = StateStream(parts.clock, self._send_over)
        self.core = ReplicaCore(settings, state, self._state.has_state)
        self.leadership: Leadership | None = None
        self._parts = parts
        self._device = parts.device
        self._clock = clock = parts.clock
        self._next_link = next_link
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[Exception] = self._loop.create_future()
        self._sessions = RegistrySessions(
            parts.open_session, self, settings.replica_id, settings.session_ms, clock
        )
        replica = HealedReplica(
            store=lambda: self._store_at_rest,
            epochs=lambda: self.core.epochs.cut(self.core.end),
            is_master=lambda: self.leadership is not None,
            others=lambda: self._others,
        )
        self.healer = LogHealer(settings, replica, parts.dial, clock)
        self._links: dict[int, FollowerLink | MasterLink] = {}
        self._inputs: deque[_Input] = deque()
        self._effects: deque[effects.Effect] = deque()
        self._is_working = False
        #: Waiters until nothing blocks.
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dialled: set[asyncio.Task[None]] = set()
        self._leading: asyncio.Task[None] | None = None
        #: The task that stops the broker of a former master.
        self._stopping: asyncio.Task[None] | None = None
        self._master_min_offset = 0
        self._heard = _Heard()
        self._ticking: asyncio.TimerHandle | None = None
        self._due_ms = {"flush": 0, "clean": 0, "progress": 0, "producers": 0}
        self._not_followed = RateLimitedWarning("cannot follow the master", clock)
        self._not_kept = RateLimitedWarning("progress not written, or old files not deleted", clock)
        self._acts = self._all_acts()

    def begin(self) -> None:
        """Open a session, and act on its answers."""
        self._take_store()
        self._spawn(self._sessions.run())
        self._tick()

    def _take_store(self) -> None:
        """Watch the flushes of the store, which was just opened."""
        store = self.store
        store.start(self._loop.call_soon_threadsafe)
        store.confirm(self.core.confirm)
        self._state.follow(store)
        self.healer.follow(store)

        def synced(offset: int) -> None:
            if self._device.is_open and self._device.store is store:
                self._give(lambda core: core.log_synced(offset, self.now_ms()))

        def flushed(offset: int) -> None:
            self._state.when_kept(partial(synced, offset))

        store.events.flushed.append(flushed)

    async def end(self, reason: str) -> None:
        """End the replica because of REASON. The session ends first, so that others may be candidates; the store is
        closed.
        """
        if not self.failed.done():
            self.failed.set_result(errors.MasterFenced(reason))
        if self._ticking is not None:
            self._ticking.cancel()
        if self.leadership is not None:
            self._end_leadership(reason)
            await self._write_last_mark()
        for link in list(self._links.values()):
            link.close(reason)
        others = [task for task in (self._leading, *self._tasks) if task is not None]
        for task in others:
            task.cancel()
        waiting = [*others, *self._dialled, *filter(None, (self._stopping, self.healer.stop()))]
        if waiting:
            await asyncio.wait(waiting)
        self._release_idle()
        try:
            await self._parts.roles.follow()
        finally:
            self._state.rest()
            if self._device.is_open:
                await self._keep_progress()
                await asyncio.to_thread(self._device.close)

    async def _write_last_mark(self) -> None:
        """Write how far acknowledged records reach before the session ends; wait only for a short time."""
        asked = self.core.last_mark(self.now_ms())
        for effect in asked:
            self._carry_out(effect)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_MARK_S):
                while asked and self.core.mark.is_writing:  # noqa: ASYNC110 (for a moment, at the end)
                    await asyncio.sleep(TICK_MS / 10_000)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run WORK until the end; if it fails, the replica fails."""
        task = self._loop.create_task(work)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._note_failure(task)

        task.add_done_callback(ended)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Fail the replica: execute no more effects."""
        if not self.failed.done():
            if not isinstance(error, errors.PocketMQError):
                logger.error("replica failed", exc_info=error)
            self.failed.set_result(error if isinstance(error, Exception) else Exception(error))
            if self.leadership is not None:
                self._end_leadership(str(error))

    @property
    def store(self) -> MessageStore:
        return self._device.store

    @property
    def _store_at_rest(self) -> MessageStore | None:
        """The store, unless it is closed, or about to be cut or replaced."""
        is_at_rest = self._device.is_open and not self._is_working and not self.failed.done()
        return self._device.store if is_at_rest else None

    @property
    def damaged(self) -> tuple[int, int]:
        """The number of damaged places in the log, and of those repaired since the start."""
        known = self._device.store.damages.known if self._device.is_open else None
        return (0, 0) if known is None else (len(known), known.healed)

    @property
    def _others(self) -> Mapping[int, str]:
        """Addresses of the other replicas, the master first: so it learns what is damaged in its log."""
        replicas = self.core.seen.cell.replicas if self.core.seen else {}
        others = sorted(replicas.keys() - {self.settings.replica_id})
        others.sort(key=lambda one: one != self.core.master)
        return {one: replicas[one] for one in others}

    @property
    def epoch(self) -> int:
        return self.core.epoch

    @property
    def follower_view(self) -> FollowerView | None:
        """The master's log and tables that it has; None: it follows none, or they are being replaced."""
        device, tables = self._device, self._state.tables
        if tables is None or not device.is_open or self._is_working:
            return None
        return FollowerView(device.store, tables, self.core.epoch_seen, self._is_current())

    def _is_current(self) -> bool:
        """Return whether it has everything that the known master had confirmed in its last frame.

        That was one heartbeat ago, up to SILENT_MS: then the link is closed.
        """
        core, link = self.core, self._links.get(self._heard.link)
        return (
            isinstance(link, MasterLink)
            and link.is_open
            and link.master == core.master
            and core.confirm >= self._heard.confirm
            and core.lease_holds(self.now_ms())
        )

    @property
    def is_connected_to_master(self) -> bool:
        """Whether it is connected to the master that it follows."""
        return any(isinstance(one, MasterLink) and one.is_open for one in self._links.values())

    @property
    def refused(self) -> errors.ConfigError | None:
        """Why the live node was refused; None: it was accepted, or not announced yet."""
        return self._sessions.refused

    @property
    def end_offset(self) -> int:
        """The end of the log that followers may have."""
        return self.core.end

    @property
    def confirm(self) -> int:
        return self.core.confirm

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def waits_for(self, link: int) -> bool:
        return self.core.in_sync is not None and self.core.in_sync.waits_for(link)

    def status(self) -> pb.ReplicaStatusReply:
        """Return the status that clients may ask for."""
        core, settings = self.core, self.settings
        role = {ReplicaRole.FOLLOWER: pb.FOLLOWER, ReplicaRole.MASTER: pb.MASTER}.get(core.role)
        reply = pb.ReplicaStatusReply(
            cluster=settings.cluster,
            set=settings.set_name,
            replica_id=settings.replica_id,
            role=role or pb.REPLICA_ROLE_UNSPECIFIED,
            epoch=core.epoch,
            master=core.master,
            end=core.end,
            synced=core.synced,
            confirm=core.confirm,
            unclean=core.unclean,
            unclean_reason=core.unclean_reason,
            refuses=core.refuses,
            has_session=core.has_session,
        )
        reply.damaged, reply.healed = self.damaged
        if core.in_sync is not None:
            reply.in_sync.extend(sorted(core.in_sync.maximal_set))
            reply.followers.extend(
                pb.FollowerStatus(replica_id=one, written=written, synced=synced)
                for one, written, synced in core.in_sync.following
            )
        return reply

    def _give(self, feed: _Input) -> None:
        """Pass FEED to the core, once the effects of earlier inputs are executed."""
        if self.failed.done():
            return
        self._inputs.append(feed)
        if not self._is_working:
            self._process_inputs()

    def _process_inputs(self) -> None:
        self._is_working = True
        try:
            while not self.failed.done():
                if self._effects:
                    blocking = self._carry_out(self._effects.popleft())
                    if blocking is not None:
                        self._spawn(self._finish(blocking))
                        return
                elif self._inputs:
                    self._effects.extend(self._inputs.popleft()(self.core))
                else:
                    break
        except Exception as error:  # Whatever the error is, the replica restarts from its disk.
            self._fail(error)
        self._is_working = False
        self._release_idle()

    async def _finish(self, blocking: _Blocking) -> None:
        await blocking()
        self._process_inputs()

    def _release_idle(self) -> None:
        for waiting in self._idle:
            if not waiting.done():
                waiting.set_result(None)
        self._idle.clear()

    def _idle_later(self) -> Awaitable[None] | None:
        """Return a future that is done when nothing blocks; None: nothing does."""
        if not self._is_working or self.failed.done():
            return None
        waiting = self._loop.create_future()
        self._idle.append(waiting)
        return waiting

    # Inputs of the metadata store.

    def session_began(self) -> None:
        self._give(lambda core: core.session_began(self.now_ms()))

    def session_ended(self) -> None:
        self._give(lambda core: core.session_ended())

    def registry_answered(self, sent_ms: int) -> None:
        self.core.registry_answered(sent_ms)

    def registry_seen(
        self,
        cell: VersionedCell | None,
        live: Mapping[int, LiveNode],
        mark: VersionedEndMark | None,
    ) -> None:
        if cell is not None and cell.cell.epoch and mark is None and not self.core.mark.is_read:
            logger.warning(
                "no mark in the metadata of the set, a store restored from a backup is not detected"
            )
        self._give(lambda core: core.registry_seen(cell, live, self.now_ms(), mark))

    def mark_written(self, found: VersionedEndMark | None) -> None:
        if self.failed.done():  # It is stopping, and waits for its last mark.
            self.core.mark.written(found)
        self._give(lambda core: core.mark_written(found, self.now_ms()))

    def set_done(self, version: int) -> None:
        self._give(lambda core: core.set_done(version, self.now_ms()))

    def set_refused(self) -> None:
        self._give(lambda core: core.set_refused(self.now_ms()))

    def set_unknown(self) -> None:
        self._give(lambda core: core.set_unknown(self.now_ms()))

    # Inputs of links.

    def followed(self, stream: Stream) -> FollowerLink:
        """A replica wants to follow over STREAM."""
        link = FollowerLink(self._next_link(), stream, self, self)
        self._links[link.number] = link
        return link

    def request_came(self, link: int, frame: pb.FollowRequest) -> Awaitable[None] | None:
        if frame.HasField("state_ack"):
            self._on_state_ack(link, frame.state_ack)
            return None
        if frame.HasField("hello"):
            self._state.hello_received(link, frame.hello)
        self._give(lambda core: core.request(link, frame, self.now_ms()))
        return None

    def _on_state_ack(self, link: int, ack: pb.FollowStateAck) -> None:
        try:
            check_state_ack(ack)
        except errors.InvalidArgument as error:
            self._close_link(effects.CloseLink(link, error.message))
        else:
            self._state.acked(link, ack)

    def reply_came(
        self, link: int, frame: pb.FollowReply, more: Sequence[pb.FollowReply] = ()
    ) -> Awaitable[None] | None:
        if frame.HasField("state"):
            self._give(lambda core: self._take_state(core, link, frame.state))
            return self._idle_later()
        if frame.HasField("save"):
            self._give(lambda core: self._save_state(link))
        self._give(lambda core: core.reply(link, frame, self.now_ms(), more))
        if frame.HasField("bytes"):
            newest = (more[-1] if more else frame).bytes
            self._heard = _Heard(link, newest.confirm)
            self._master_min_offset = newest.min_offset
            self._not_followed.over()
        return self._idle_later()

    def _take_state(
        self, core: ReplicaCore, link: int, state: pb.FollowState
    ) -> list[effects.Effect]:
        """Handle it in its order among the bytes: later bytes of the log rely on it."""
        try:
            self._state.take(link, state, core.epoch_seen, core.confirm)
        except errors.InvalidArgument as error:
            return [effects.CloseLink(link, error.message)]
        return []

    def _save_state(self, link: int) -> list[effects.Effect]:
        self._state.save(link)
        return []

    def connected(self, master: int, link: int) -> None:
        self._give(lambda core: core.connected(master, link, self.now_ms()))

    def link_closed(self, link: int, reason: str) -> None:
        self._state.lost(link)
        known = self._links.pop(link, None)
        if isinstance(known, MasterLink) and reason:
            self._not_followed.tell(f"replica {known.master}: {reason}")
        self._give(lambda core: core.link_closed(link))

    # Inputs of the broker that is master.

    def _appended(self, epoch: int, end: int) -> None:
        def appended(core: ReplicaCore) -> list[effects.Effect]:
            if core.in_sync is None or core.in_sync.epoch != epoch:
                return []
            return core.appended(end, self.now_ms())

        self._give(appended)
        for link in self._links.values():
            if isinstance(link, FollowerLink):
                link.go_on()

    def _wanted(self, end: int) -> None:
        if self.settings.acks_need_sync:
            self.store.flush_soon()

    @property
    def replicas(self) -> frozenset[int]:
        """The ids of the replicas of the set, as far as known."""
        return frozenset(self.core.seen.cell.replicas if self.core.seen else ())

    def has_state(self, replica: int) -> bool:
        """Send all replicated tables; return whether REPLICA has them."""
        return self._state.send_all_to(replica)

    def hand_over(self, to: int, *, leaving: bool) -> bool:
        """Make TO the master in the set's metadata, if possible now; return whether that was requested."""
        asked: list[effects.Effect] = []

        def hand_over(core: ReplicaCore) -> list[effects.Effect]:
            if core.in_sync is not None:
                with suppress(errors.NotEnoughReplicas):
                    asked.extend(core.hand_over(to, self.now_ms(), leaving=leaving))
            return asked

        if not self._is_working:
            self._give(hand_over)
        return bool(asked)

    def accept_loss(self) -> None:
        """Become a candidate even though others may have more of the log."""
        self._give(lambda core: core.accept_loss(self.now_ms()))

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(TICK_MS / 1000, self._tick)
        if self.leadership is not None:
            self.leadership.check_lease()
        if self._is_working:
            return  # The disk is busy: the next tick does what is due.
        now_ms = self.now_ms()
        self._give(lambda core: core.tick(now_ms))
        if self._is_working or self.failed.done():
            return
        try:
            self._tick_store(now_ms)
            self._state.tick()
            self.healer.tick()
        except errors.PocketMQError as error:
            self._fail(error)
        for link in list(self._links.values()):
            if isinstance(link, FollowerLink):
                link.tick()

    def _tick_store(self, now_ms: int) -> None:
        """Do periodic work of the store; while it is led, the broker does most of it."""
        store, config = self.store, self._device.config
        if store.health.failure is not None:
            raise store.health.failure
        if self.leadership is None and self._stopping is None:
            if self._is_due("flush", now_ms, config.flush_interval_ms):
                store.tick(now_ms)
            if self._is_due("clean", now_ms, config.clean_interval_ms):
                self._clean(store)
            if self._is_due("producers", now_ms, PRODUCERS_TICK_MS):
                self._device.producers.tick()
        elif self.leadership is not None and store.max_log_offset > self.core.end:
            self._appended(
                self.leadership.epoch, store.max_log_offset
            )  # A file may have been closed because of its age.
        if store.min_log_offset != self.core.min_offset and store.log.files.files:
            self.core.log_begins(store.min_log_offset)
        if (damaged := self.damaged[0]) != self.core.damaged:
            self._give(lambda core: core.damage_changed(damaged))
        if self._is_due("progress", now_ms, _PROGRESS_MS):
            self._spawn(self._keep_progress())

    def _clean(self, store: MessageStore) -> None:
        """Delete files that the master does not have either; errors are retried later."""
        try:
            store.clean(lambda: self._master_min_offset)
        except errors.PocketMQError as error:
            self._not_kept.tell(error.message)

    async def _keep_progress(self) -> None:
        """Write the progress of this replica; the next call retries it after an error."""
        try:
            core = self.core
            await asyncio.to_thread(self._device.keep_progress, core.confirm, core.confirm_epoch)
        except errors.PocketMQError as error:
            self._not_kept.tell(error.message)

    def _is_due(self, what: str, now_ms: int, every_ms: int) -> bool:
        if now_ms < self._due_ms[what]:
            return False
        self._due_ms[what] = now_ms + every_ms
        return True

    def _carry_out(self, effect: effects.Effect) -> _Blocking | None:
        """Execute EFFECT; if it blocks, return the function that executes it."""
        if self._stopping is not None and isinstance(effect, _OF_LOG):
            return partial(self._after_stop, effect)
        act: Callable[[Any], _Blocking | None] = self._acts[type(effect)]
        return act(effect)

    def _all_acts(self) -> dict[type, Callable[[Any], _Blocking | None]]:
        """Return the functions that execute effects, by class."""
        sessions = self._sessions
        return {
            effects.PersistState: lambda effect: partial(self._keep_state, effect),
            effects.KeepEpochs: lambda effect: partial(self._keep_epochs, effect),
            effects.ReadRegistry: lambda _: sessions.read(),
            effects.CompareAndSet: lambda effect: sessions.compare_and_set(
                effect.cell, effect.version
            ),
            effects.WriteMark: lambda effect: sessions.write_mark(effect.mark, effect.version),
            effects.Announce: lambda effect: sessions.announce(effect.node),
            effects.Follow: self._follow,
            effects.SendFrame: self._send_frame,
            effects.SendLogFrom: self._stream_from,
            effects.CloseLink: self._close_link,
            effects.AppendRaw: self._append_raw,
            effects.CutLog: lambda effect: partial(self._cut_log, effect),
            effects.BeginAnew: lambda effect: partial(self._open_empty_store, effect),
            effects.BecomeMaster: self._become_master,
            effects.StepDown: self._step_down,
            effects.AnswerAcks: self._answer_acks,
            effects.FailAcks: self._fail_acks,
            effects.Confirm: self._confirm,
        }

    # Effects on links.

    def _follow(self, effect: effects.Follow) -> None:
        for known in list(self._links.values()):
            if isinstance(known, MasterLink):
                if known.master == effect.master:
                    return  # It is connected or connecting already, or about to end.
                self._close_link(effects.CloseLink(known.number, "another replica is master"))
        number = self._next_link()
        channel = self._parts.dial(effect.address)
        link = self._links[number] = MasterLink(number, effect.master, channel, self)
        self._dialled.add(link.task)
        link.task.add_done_callback(self._dialled.discard)
        link.task.add_done_callback(self._note_failure)

    def _send_frame(self, effect: effects.SendFrame) -> None:
        frame = effect.frame
        if isinstance(frame, pb.FollowRequest) and frame.HasField("hello"):
            self._state.add_versions(effect.link, frame.hello)
        self._send_over(effect.link, frame)
        if isinstance(frame, pb.FollowReply) and frame.HasField("begin"):
            self._state.hello_answered(effect.link)

    def _send_over(self, number: int, frame: pb.FollowRequest | pb.FollowReply) -> None:
        link = self._links.get(number)
        if link is not None:
            link.send(frame)

    def _stream_from(self, effect: effects.SendLogFrom) -> None:
        link = self._links.get(effect.link)
        if isinstance(link, FollowerLink):
            link.stream_from(effect.offset)

    def _close_link(self, effect: effects.CloseLink) -> None:
        self._state.lost(effect.link)
        link = self._links.pop(effect.link, None)
        if link is not None:
            logger.info("link closed link=%d reason=%s", effect.link, effect.reason)
            if isinstance(link, MasterLink):
                self._not_followed.tell(f"replica {link.master}: {effect.reason}")
            link.close(effect.reason)

    # Effects on the disk.

    async def _keep_state(self, effect: effects.PersistState) -> None:
        if effect.reason:
            logger.error("replica is unclean, it cannot be master reason=%s", effect.reason)
        await asyncio.to_thread(self._device.keep_state, effect.epoch_seen, effect.unclean)

    async def _keep_epochs(self, effect: effects.KeepEpochs) -> None:
        await asyncio.to_thread(self._device.keep_epochs, effect.epochs)

    def _append_raw(self, effect: effects.AppendRaw) -> None:
        try:
            self.store.append_raw(effect.data, effect.offset)
        except errors.CorruptRecord as error:
            self._report(int(error.details.get("offset", effect.offset)))
            raise
        if self.settings.acks_need_sync and not effect.is_far:
            self.store.flush_soon()

    def _report(self, offset: int) -> None:
        """Report damage of the master's log at OFFSET to the master: this replica restarts, and cannot take it until
        repaired.
        """
        address = self._others.get(self.core.master)
        if address is not None:
            task = self._loop.create_task(self.healer.report(address, offset))
            self._dialled.add(task)
            task.add_done_callback(self._dialled.discard)

    async def _cut_log(self, effect: effects.CutLog) -> None:
        if effect.end in (None, self.store.max_log_offset):
            await asyncio.to_thread(self._device.cut, effect.end)
        else:
            await self._replace_log(partial(self._device.cut, effect.end))
        self._tell_cut(self.store.max_log_offset)

    async def _open_empty_store(self, effect: effects.BeginAnew) -> None:
        logger.error("store replaced by an empty one reason=%s", effect.reason)
        await self._replace_log(self._device.open_empty_store)
        self._tell_cut(effect.begin)

    async def _replace_log(self, act: Callable[[], None]) -> None:
        """Run ACT on the store; it may open another one."""
        before = self.store
        self._state.rest()
        await asyncio.to_thread(act)
        if self.store is before:
            self._state.follow(self.store)
        else:
            self._take_store()

    def _tell_cut(self, end: int) -> None:
        is_empty = not self.store.log.files.files
        synced = end if is_empty else min(end, self.store.flushed_offset)
        self._inputs.appendleft(lambda core: core.log_cut(end, synced, self.now_ms()))

    # Effects of leadership.

    def _become_master(self, effect: effects.BecomeMaster) -> None:
        logger.warning(
            "replica became master set=%s replica=%d epoch=%d start=%d",
            self.settings.set_name,
            self.settings.replica_id,
            effect.epoch,
            effect.start,
        )
        store = self.store
        store.confirm(self.core.confirm)
        store.lead()
        self._state.lead()
        self.leadership = Leadership(
            self.core,
            self.now_ms,
            partial(self._appended, effect.epoch),
            self._wanted,
            self._sessions.check_session,
            self._state,
            self._device.producers,
        )
        self._leading = self._loop.create_task(self._lead(store, self.leadership))
        self._leading.add_done_callback(self._note_failure)

    async def _lead(self, store: MessageStore, leadership: Leadership) -> None:
        try:
            await self._parts.roles.lead(store, leadership)
        except errors.MasterFenced:
            if leadership is self.leadership:
                raise

    def _answer_acks(self, effect: effects.AnswerAcks) -> None:
        if self.leadership is not None:
            self.leadership.acknowledge(effect.up_to, effect.replicas)

    def _fail_acks(self, effect: effects.FailAcks) -> None:
        if self.leadership is not None:
            self.leadership.doubt(effect.in_sync)

    def _confirm(self, effect: effects.Confirm) -> None:
        self.store.confirm(effect.offset)
        self._state.confirmed(effect.offset)
        if self.leadership is not None:
            self.leadership.confirmed(effect.offset)

    def _step_down(self, effect: effects.StepDown) -> None:
        if self.leadership is None:
            return  # It was elected, but has not started.
        logger.warning("replica stopped being master reason=%s", effect.reason)
        self._end_leadership(effect.reason)
        self._stopping = self._loop.create_task(self._stop_leading())
        self._stopping.add_done_callback(self._note_failure)

    def _end_leadership(self, reason: str) -> None:
        assert self.leadership is not None
        leadership, self.leadership = self.leadership, None
        mine = self.settings
        error = errors.MasterFenced(
            f"replica {mine.replica_id} of {mine.set_name!r} is not the master any more: {reason}",
            epoch=str(leadership.epoch),
        )
        leadership.end(error)
        self._state.step_down(error)

    async def _stop_leading(self) -> None:
        leading, self._leading = self._leading, None
        if leading is not None:
            await asyncio.wait((leading,))
        await self._parts.roles.follow()

    async def _after_stop(self, effect: effects.Effect) -> None:
        """Execute EFFECT after the broker has stopped, if the log ends where the core expects it."""
        assert self._stopping is not None
        await asyncio.shield(self._stopping)  # It continues also if this replica ends.
        self._stopping = None
        store = self.store
        if store.max_log_offset != self.core.end:
            raise errors.StoreError(
                f"the log ends at {store.max_log_offset:,} instead of {self.core.end:,}: something was appended"
                " after the master was fenced",
                path=self._device.config.path,
            )
        store.sync_before_log(lambda done: done(None))
        self._device.follow()
        self._state.follow(store)
        if (blocking := self._carry_out(effect)) is not None:
            await blocking()
