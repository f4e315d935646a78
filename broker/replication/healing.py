"""Repair of damaged places in a replica's log with the bytes of other replicas.

Places are repaired one at a time, asking one replica after the other. Received bytes are checked. Both replicas must
have the place's epoch with the same start, because what one master wrote in one epoch is the same everywhere.

Readers wait for a place until every other replica has answered that it lacks it, up to AWAITED_MS, and then skip it. It
is requested again, less and less often, as long as it is damaged.

A follower repairs a record with a damaged body by itself. It cannot accept bytes that are not records: it asks its
master, which then repairs its own log. If no replica has them, the master replaces them with a record that is never
delivered: at once if all others answered, after COVERED_MS if some are away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ...proto.clock import Readings
from ...proto.errors import CorruptRecord, InvalidArgument, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import CallFailed
from ...store.healing import PIECE_BYTES
from ...store.message_store import MessageStore
from .in_sync import ReplicaSettings
from .links import Dial
from .log_epochs import Epochs, EpochStart

logger = logging.getLogger(__name__)

READ_LOG: Final = "/pocketmq.v1.Replication/ReadLog"
AWAITED_MS: Final = 10_000
COVERED_MS: Final = 60_000
#: Delay before the next attempt to repair a place: initial and maximum.
_RETRY_MS: Final = 200
_RETRY_MS_MAX: Final = 60_000
_ASK_S: Final = 3.0
#: Limit of places that followers requested in vain.
_ASKED_MAX: Final = 1_000


@dataclass(slots=True)
class _Tries:
    """The attempts to repair one place."""

    since_ms: int
    due_ms: int
    pause_ms: int = _RETRY_MS


@dataclass(frozen=True, slots=True)
class HealedReplica:
    """The replica whose log is repaired; each call returns the present state."""

    #: The store, unless it is being changed or replaced.
    store: Callable[[], MessageStore | None]
    epochs: Callable[[], Epochs]
    is_master: Callable[[], bool]
    #: Addresses of the other replicas of the set, by id.
    others: Callable[[], Mapping[int, str]]


class LogHealer:
    """Repairs the log of REPLICA, which has SETTINGS, and sends other replicas the bytes that they lack."""

    def __init__(
        self, settings: ReplicaSettings, replica: HealedReplica, dial: Dial, clock: Readings
    ) -> None:
        self._settings = settings
        self._replica = replica
        self._dial = dial
        self._clock = clock
        self._tries: dict[int, _Tries] = {}
        self._task: asyncio.Task[None] | None = None
        #: Damaged places, and the replicas that requested each: those do not have it.
        self._asked_for: dict[int, set[int]] = {}

    def follow(self, store: MessageStore) -> None:
        """From now on repair STORE, which was opened."""
        known = store.damages.known
        assert known is not None, "a replica's store detects damage"
        known.has_healer = True
        known.awaited.update(known.places)
        self._tries.clear()
        self._asked_for.clear()

    def tick(self) -> None:
        """Continue if a place is due. Call this every 100 ms."""
        store = self._replica.store()
        known = None if store is None else store.damages.known
        if known is None or store is None or self._task is not None or not known.places:
            return
        now_ms = self._clock.now_ms()
        for gone in self._tries.keys() - known.places.keys():
            del self._tries[gone]
        for at in [at for at in self._asked_for if not known.covers(at)]:
            del self._asked_for[at]
        for start in known.places:
            tries = self._tries.setdefault(start, _Tries(now_ms, now_ms))
            if tries.due_ms <= now_ms:
                self._task = asyncio.get_running_loop().create_task(self._heal(store, start, tries))
                self._task.add_done_callback(self._ended)
                return

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("log not healed", exc_info=error)

    def stop(self) -> asyncio.Task[None] | None:
        """Stop; return the task to wait for."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _heal(self, store: MessageStore, start: int, tries: _Tries) -> None:
        """Request the bytes at START of the log of STORE from the other replicas, until one has them."""
        all_said_no = True
        for replica, address in self._replica.others().items():
            known = store.damages.known
            assert known is not None
            end = known.places.get(start)
            if end is None:
                return
            reply = await self._ask(address, start, end - start)
            if self._replica.store() is not store or start not in known.places:
                return
            if reply is None:
                all_said_no &= replica in self._askers(start, end)
            elif reply.data and self._put(store, start, replica, reply.data):
                return
        self._give_up(store, start, tries, all_said_no=all_said_no)

    async def _ask(self, address: str, offset: int, size: int) -> pb.ReadLogReply | None:
        """Return the bytes that the replica at ADDRESS has at OFFSET; None: it did not answer."""
        epoch = self._replica.epochs().at(offset)
        request = pb.ReadLogRequest(
            cluster=self._settings.cluster,
            set=self._settings.set_name,
            offset=offset,
            size_max=min(size, PIECE_BYTES),
            replica_id=self._settings.replica_id,
            epoch=None if epoch is None else pb.EpochStart(epoch=epoch.epoch, start=epoch.start),
        )
        channel = self._dial(address)
        try:
            call = channel.unary_unary(
                READ_LOG, pb.ReadLogRequest.SerializeToString, pb.ReadLogReply.FromString
            )
            reply: pb.ReadLogReply = await call(request, timeout=_ASK_S)
            return reply
        except CallFailed:
            return None
        finally:
            await channel.close()

    def _put(self, store: MessageStore, start: int, replica: int, data: bytes) -> bool:
        """Write DATA of REPLICA at START of the log of STORE; return whether that succeeded."""
        try:
            store.heal(start, data)
        except CorruptRecord as error:
            logger.warning("piece of the log rejected replica=%d reason=%s", replica, error.message)
            return False
        except PocketMQError as error:  # For example a full disk: it is retried.
            logger.warning("log not healed log_offset=%d reason=%s", start, error.message)
            return False
        return True

    def _give_up(
        self, store: MessageStore, start: int, tries: _Tries, *, all_said_no: bool
    ) -> None:
        now_ms = self._clock.now_ms()
        tries.due_ms = now_ms + tries.pause_ms
        tries.pause_ms = min(2 * tries.pause_ms, _RETRY_MS_MAX)
        known = store.damages.known
        assert known is not None
        waited_ms = now_ms - tries.since_ms
        if start in known.awaited and (all_said_no or waited_ms > AWAITED_MS):
            known.give_up(start)
            logger.error(
                "damaged record cannot be replaced, readers skip it log_offset=%d others=%s",
                start,
                "no replica has it" if all_said_no else "some replicas do not answer",
            )
        end = known.places.get(start, start)
        is_blocking = self._replica.is_master() and self._askers(start, end)
        if is_blocking and (all_said_no or waited_ms > COVERED_MS):
            try:
                store.cover(start)
            except PocketMQError as error:
                logger.warning("log not covered log_offset=%d reason=%s", start, error.message)

    def _askers(self, start: int, end: int) -> set[int]:
        """Return the replicas that requested bytes in [START, END)."""
        return {one for at, asked in self._asked_for.items() if start <= at < end for one in asked}

    async def report(self, address: str, offset: int) -> None:
        """Let the master at ADDRESS check its log at OFFSET: the bytes that it sent from there are damaged."""
        await self._ask(address, offset, 1)

    def answer(self, request: pb.ReadLogRequest) -> pb.ReadLogReply:
        """Return the bytes that another replica requests. Raises InvalidArgument for a replica of another set."""
        mine = self._settings
        for field, asked, own in (
            ("cluster", request.cluster, mine.cluster),
            ("set", request.set, mine.set_name),
        ):
            if asked != own:
                raise InvalidArgument(
                    f"{field} is {asked!r:.80}, and this replica's is {own!r}", field=field
                )
        for field, value in (("offset", request.offset), ("size_max", request.size_max - 1)):
            if value < 0:
                raise InvalidArgument(f"{field} is too small: {value}", field=field, value=value)
        reply = pb.ReadLogReply()
        store = self._replica.store()
        if store is None or not (size_max := self._common(store, request)):
            return reply
        try:
            piece = store.piece_at(request.offset, min(size_max, request.size_max, PIECE_BYTES))
        except CorruptRecord:
            reply.damaged = True
            if len(self._asked_for) < _ASKED_MAX:
                self._asked_for.setdefault(request.offset, set()).add(request.replica_id)
        else:
            reply.data = b"" if piece is None else piece.data
        return reply

    def _common(self, store: MessageStore, request: pb.ReadLogRequest) -> int:
        """Return how many bytes from there on both logs have in common, according to the epochs; 0: none."""
        asked = EpochStart(request.epoch.epoch, request.epoch.start)
        epochs = self._replica.epochs()
        if asked not in set(epochs):
            return 0
        return max(0, epochs.end_of(asked.epoch, store.max_log_offset) - request.offset)
