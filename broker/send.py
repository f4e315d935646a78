"""The road of a send: the run's checks, the store, and the answer at the durability asked for.

MEMORY is answered as soon as the run is appended: it survives a kill of the process, not a power cut. DISK is answered
when the device has it. Small runs that arrive in one turn of the loop are appended together at its end, which makes
them far cheaper, and all of a turn share one sync, as do all that come while a sync is under way. The durability
reached stands in the answer. A run is stored whole or not at all.

Bounds: `flush_waiting_max` sends wait for the device in all, one more is refused with Overloaded before it is stored.
How many runs one stream may have unanswered is the service's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from itertools import groupby
from typing import Final

from ..proto.errors import (
    FlushTimeout,
    InvalidArgument,
    MessageTooLarge,
    Overloaded,
    PocketMQError,
    StoreError,
)
from ..proto.errors_wire import to_wire
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..store.message_store import MessageStore
from ..store.run import Appended, Run
from .admission import admit
from .config import BrokerConfig
from .timers import Timers
from .topics import Topics

logger = logging.getLogger(__name__)

#: Told of the answer to one run, exactly once.
Done = Callable[[pb.ProduceReply], None]
#: Joining larger runs costs as much as it saves.
_SMALL_RUN_BYTES: Final = 64 * 1024
_DURABILITIES: Final = (pb.DURABILITY_UNSPECIFIED, pb.MEMORY, pb.DISK)


class Sends:
    """Takes runs. NOTIFY is told the (topic, queue) of runs that were stored."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        store: MessageStore,
        timers: Timers,
        notify: Callable[[Hashable], int],
    ) -> None:
        self._config = config
        self._topics = topics
        self._store = store
        self._timers = timers
        self._notify = notify
        self._default = pb.DISK if store.config.flush == "sync" else pb.MEMORY
        #: What this turn of the loop has brought so far.
        self._arrived: list[_Send] = []
        self._waiting = 0
        #: Set while the broker stops: every further send is refused with it.
        self.refusal: PocketMQError | None = None

    @property
    def waiting(self) -> int:
        """Return how many sends wait for the device."""
        return self._waiting

    def send(self, run: pb.ProduceRun, done: Done) -> None:
        """Store RUN, and tell DONE at the end of the turn, or when the device has it; a refusal is an answer too."""
        try:
            send = self._admitted(run, done)
        except PocketMQError as error:
            logger.debug(
                "send refused topic=%s queue=%d reason=%s", run.topic, run.queue, error.message
            )
            done(pb.ProduceReply(run_id=run.run_id, error=to_wire(error)))
            return
        self._waiting += send.to_disk
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._append_arrived)
        self._arrived.append(send)

    # --- checks

    def _admitted(self, run: pb.ProduceRun, done: Done) -> _Send:
        if self.refusal is not None:
            raise self.refusal
        to_disk = self._durability(run) == pb.DISK
        if to_disk:
            self._check_room()
        self._check_size(run)
        self._topics.check_sendable(run.topic)
        records, columns, encoded_again = admit(run.records, run.sizes, run.topic, run.queue)
        # Only a good run may make a topic.
        topic = self._topics.for_writing(run.topic, run.queue)
        stored = Run(topic=topic.name, queue=run.queue, records=records, columns=columns)
        return _Send(run.run_id, stored, done, to_disk=to_disk, as_sent=not encoded_again)

    def _durability(self, run: pb.ProduceRun) -> int:
        """Return MEMORY or DISK, whichever RUN asks for, or the store's own."""
        asked = int(run.durability)
        if asked not in _DURABILITIES:
            raise InvalidArgument(
                f"durability is {asked}: use MEMORY (1), DISK (2), or none (0)",
                field="durability",
                limit=pb.DISK,
                value=asked,
            )
        return asked or self._default

    def _check_room(self) -> None:
        limit = self._config.flush_waiting_max
        if self._waiting >= limit:
            raise Overloaded(
                f"{self._waiting} sends wait for the device, the limit is {limit}: send less at a time",
                field="durability",
                limit=limit,
                value=self._waiting,
            )

    def _check_size(self, run: pb.ProduceRun) -> None:
        limit = self._config.run_bytes_max
        if len(run.records) > limit:
            raise MessageTooLarge(
                f"records: a run of {len(run.records)} bytes, the limit is {limit}: send it in parts",
                field="records",
                limit=limit,
                value=len(run.records),
            )

    # --- the store

    def _append_arrived(self) -> None:
        """Append what this turn of the loop has brought, and answer, or ask for a sync."""
        arrived, self._arrived = self._arrived, []
        to_disk: list[_Send] = []
        end_offset = 0
        for send, outcome in zip(arrived, self._outcomes(arrived), strict=True):
            if isinstance(outcome, PocketMQError):
                self._answer(send, outcome)
                continue
            send.note(outcome)
            if send.to_disk:
                to_disk.append(send)
                end_offset = max(end_offset, outcome.end_offset)
            else:
                self._answer(send, None)
        if to_disk:
            self._sync(to_disk, end_offset)
        for key in dict.fromkeys((send.run.topic, send.run.queue) for send in arrived):
            self._notify(key)

    def _outcomes(self, sends: list[_Send]) -> list[Appended | PocketMQError]:
        """Append SENDS in their order; return what became of each."""
        outcomes: list[Appended | PocketMQError] = []
        for small, group in groupby(sends, _is_small):
            runs = [send.run for send in group]
            for together in [runs] if small else [[run] for run in runs]:
                outcomes += self._append(together)
        return outcomes

    def _append(self, runs: list[Run]) -> list[Appended | PocketMQError]:
        try:
            return self._store.append_many(runs)
        except Exception:  # The edge: a bug below must not leave its senders without an answer.
            logger.exception("append failed")
            return [PocketMQError("internal error in the store")] * len(runs)

    def _sync(self, sends: list[_Send], end_offset: int) -> None:
        """Answer SENDS once everything before END_OFFSET is on the device, or that takes too long."""

        def synced(error: StoreError | None) -> None:
            self._timers.cancel(timer)
            self._answer_all(sends, error)

        timeout_ms = self._store.config.flush_timeout_ms
        late = FlushTimeout(
            f"stored in memory, but not on the device within {timeout_ms} ms"
            " (store.flush_timeout_ms): it may get there yet",
            limit=timeout_ms,
        )
        timer = self._timers.after(timeout_ms, lambda: self._answer_all(sends, late))
        self._store.request_sync(end_offset, synced)

    def _answer_all(self, sends: list[_Send], error: PocketMQError | None) -> None:
        for send in sends:
            self._answer(send, error)

    def _answer(self, send: _Send, error: PocketMQError | None) -> None:
        """Answer SEND, unless it was answered before."""
        if send.done is None:
            return
        done, send.done = send.done, None
        self._waiting -= send.to_disk
        reply = send.reply
        if error is None:
            reply.durability = pb.DISK if send.to_disk else pb.MEMORY
        else:
            reply.error.CopyFrom(to_wire(error))
        done(reply)


def _is_small(send: _Send) -> bool:
    return len(send.run.records) <= _SMALL_RUN_BYTES


class _Send:
    """One send under way; DONE is None once it was answered."""

    __slots__ = ("_as_sent", "done", "reply", "run", "to_disk")

    def __init__(self, run_id: int, run: Run, done: Done, *, to_disk: bool, as_sent: bool) -> None:
        self.run = run
        self.reply = pb.ProduceReply(run_id=run_id)
        self.done: Done | None = done
        self.to_disk = to_disk
        self._as_sent = as_sent

    def note(self, appended: Appended) -> None:
        """Say in the answer where the records are; the sender works out the places of those end to end."""
        offsets, starts = appended.log_offsets, self.run.columns.starts
        reply = self.reply
        reply.first_queue_offset = appended.first_queue_offset
        reply.first_log_offset = int(offsets[0])
        reply.store_timestamp_ms = appended.store_timestamp_ms
        end_to_end = int(offsets[-1] - offsets[0]) == int(starts[-1] - starts[0])
        if not (end_to_end and self._as_sent):
            reply.log_offsets.extend(offsets.tolist())
