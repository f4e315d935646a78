"""Pull consumers: the synchronous face here, the asyncio one in async_pull_consumer.py, over the same core.

    with PullConsumer("billing", "orders") as consumer:
        for message in consumer:
            handle(message.body)

The members of a group share the queues of their topics: each queue is read by one of them at a time, and moves when
members come and go (see sharing.py). With `broadcasting` every consumer reads all queues for itself; `assign` reads
queues of one's own choice.

At least once: the broker keeps for each queue the offset below which the group is finished. A message is finished when
the application asks for the next one (or the next batch), when it calls `commit`, or when it leaves the `with` block
without an error; finished offsets are committed every auto_commit_interval_ms, when a queue goes, and at the end. After
a crash, what was not committed comes again. `delivery="at_most_once"` commits before it hands out.

A topic that does not exist yet is waited for. Messages of one queue come in order; queues interleave by the run.

A message that cannot be handled is sent back (`send_back`) and finished like any other. A copy of it comes again later
in the group's retry topic, which is read too unless `retries` is off: `reconsume_times` says how often it failed,
`origin_topic` where it was sent. After as many retries as the group allows it lies in the group's dead letters.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime
from typing import Any, TypeVar, Unpack

from .async_pull_consumer import AsyncPullConsumer, CommitCallback, RebalanceListener, tell
from .config import ConsumerConfig, ConsumerSettings, settled
from .consuming.atomic_reading import AtomicReading
from .consuming.held_queue import OffsetAndMetadata
from .consuming.parts import Counts
from .consuming.prefetch import Rebalanced
from .consuming.queue_reader import Pulled
from .consuming.sending_back import SentBack
from .faces import SignalledFace
from .loop import Portal
from .message_batch import MessageBatch
from .queue import Queue
from .received_message import ReceivedMessage
from .signals import Signals
from .subscriptions import Topics

Value = TypeVar("Value")


class PullConsumer(SignalledFace):
    """Reads topics for GROUP, from one ordinary thread. Settings are those of ConsumerConfig."""

    def __init__(
        self,
        group: str,
        topics: Topics = (),
        nameservers: str | None = None,
        *,
        listener: RebalanceListener | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """NAMESERVERS: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.

        Starts at once; close it, or use it in a `with` block.
        """
        self.config = settled(ConsumerConfig, nameservers, settings)
        self._listener = listener
        core = AsyncPullConsumer(
            group, topics, self.config.nameservers, listener=listener, **settings
        )
        self._core = core
        self._cursor = core.cursor
        self._closed = False
        self._signals = Signals(self._finish)
        self._waits = False
        self._portal = Portal.hold()
        try:
            self._portal.run(core.start())
        except BaseException:
            self._portal.release()
            raise
        self._opened()

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        try:
            self._core.check_open()
        except BaseException:
            work.close()
            raise
        return self._portal.run(work)

    # ------------------------------------------------------------ messages

    def poll(self, max_messages: int | None = None, timeout_ms: int | None = 1_000) -> MessageBatch:
        """Return the next messages, of one queue: max_poll_records, or all of one fetch, but at most MAX_MESSAGES.

        The batch is empty if none comes within TIMEOUT_MS (None: wait on). What earlier polls returned is finished.
        Raises what the coordinator refuses this member with, and errors of fetches that no repetition heals.
        """
        self._core.check_open()
        self._check_signals()
        most = max_messages or self.config.max_poll_records
        if not (messages := self._cursor.hand_out(most)) and self._next_batch(timeout_ms):
            messages = self._cursor.hand_out(most)
        if not messages:
            self._check_signals()
        return messages

    def messages(self, timeout_ms: int | None = None) -> Iterator[ReceivedMessage]:
        """Yield messages one by one; end when none comes for TIMEOUT_MS (None: never, but at SIGTERM or Ctrl-C)."""
        signals = self._signals
        with signals.returning() if timeout_ms is None else nullcontext():
            while signals.told is None:
                for message in self._cursor.one_by_one():
                    yield message
                    if signals.told is not None:
                        break
                if not self._next_batch(timeout_ms):
                    break
        if timeout_ms is not None:
            self._check_signals()  # Whoever reads to the end must not take this for it.

    def _finish(self) -> bool:
        """Hand out nothing more; return whether the application is at a message, or waits for one."""
        if self._waits:
            self._portal.post(self._core.stop_waiting)
        return self._waits or self._cursor.begin < self._cursor.end

    def _check_signals(self) -> None:
        """Raise what was put off until the application came for more; what it was handed is finished."""
        if self._signals.told is not None:
            self._cursor.finish()
            self._signals.check()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self.messages()

    def _next_batch(self, timeout_ms: int | None) -> bool:
        self._waits = True  # First: a signal behind the look at it ends the waiting.
        try:
            if self._signals.told is not None:
                return False
            while isinstance(taken := self._run(self._core.take(timeout_ms)), Rebalanced):
                try:
                    tell(self._listener, taken)
                finally:
                    self._portal.run(self._core.heard(taken))
        finally:
            self._waits = False
        if taken is not None:
            self._cursor.open(taken)
        return taken is not None

    def pull(
        self,
        topic: str,
        queue: Queue | int,
        offset: int,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
        wait_ms: int = 0,
    ) -> Pulled:
        """Return the messages of QUEUE from OFFSET on, waiting up to WAIT_MS for one; positions do not move.

        MAX_MESSAGES and MAX_BYTES 0: the consumer's settings. Raises OffsetOutOfRange with min_offset and max_offset.
        """
        return self._run(
            self._core.pull(
                topic,
                queue,
                offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
            )
        )

    def send_back(
        self, message: ReceivedMessage, *, delay_level: int = 0, reason: str = ""
    ) -> SentBack:
        """Give MESSAGE back: it comes again later, or lies in the group's dead letters; return what it will be.

        DELAY_LEVEL: 1 s to 2 h for 1 to 18; 0: longer with each retry, as the group is set; below 0: dead at once.
        REASON stays with a dead letter, up to 1 KiB. The message counts as handled when the application goes on. Raises
        MessageNotFound for one that the broker does not have (any more).
        """
        return self._run(self._core.send_back(message, delay_level=delay_level, reason=reason))

    def atomic_reading(self) -> AtomicReading:
        """Return what an atomic commit of a producer needs of this consumer: see `atomic_commit` of producers."""
        return self._core.atomic_reading()

    # ------------------------------------------------------------ what is read

    def subscribe(self, topics: Topics) -> None:
        """Read TOPICS from now on, and no others; the group divides their queues anew."""
        self._run(self._core.subscribe(topics))

    def assign(self, queues: Collection[Queue]) -> None:
        """Read QUEUES from now on, and no others, beside the group: nothing is shared, nobody else is kept away.

        Offsets are the group's; a queue that a member of the group holds cannot be committed.
        """
        self._run(self._core.assign(queues))

    def assignment(self) -> list[Queue]:
        """Return the queues that are read at present."""
        return self._run(self._core.assignment())

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of TOPIC that can be read, whoever reads them."""
        return self._run(self._core.queues(topic))

    # ------------------------------------------------------------ where

    def position(self, queue: Queue) -> int:
        """Return the offset of the next message of QUEUE that will be handed out."""
        return self._run(self._core.position(queue))

    def committed(self, queue: Queue) -> OffsetAndMetadata | None:
        """Return the offset that the group has committed of QUEUE, and the text that goes with it; None: nothing."""
        return self._run(self._core.committed(queue))

    def seek(self, queue: Queue, offset: int) -> None:
        """Go on at OFFSET of QUEUE, which must be one of ours; what was handed out of it does not count any more."""
        self._run(self._core.seek(queue, offset))

    def seek_to_first(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Go to the first message of each of QUEUES, None: of all of ours; return the offsets."""
        return self._run(self._core.seek_to_first(queues))

    def seek_to_last(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Go behind the last message of each of QUEUES, None: of all of ours; return the offsets."""
        return self._run(self._core.seek_to_last(queues))

    def seek_to_time(
        self, queues: Collection[Queue] | None, when: datetime | int
    ) -> dict[Queue, int]:
        """Go to the first message stored at WHEN (a datetime, or Unix milliseconds) or later; return the offsets."""
        return self._run(self._core.seek_to_time(queues, when))

    def pause(self, queues: Collection[Queue]) -> None:
        """Hand out nothing of QUEUES until they are resumed, also when they go and come again."""
        self._run(self._core.pause(queues))

    def resume(self, queues: Collection[Queue]) -> None:
        """Go on with QUEUES."""
        self._run(self._core.resume(queues))

    # ------------------------------------------------------------ commits

    def commit(self) -> None:
        """Finish what was handed out, and have the brokers keep how far the group is."""
        self._run(self._core.commit())

    def commit_sync(self, offsets: Mapping[Queue, int | tuple[int, str]] | None = None) -> None:
        """Commit OFFSETS, of the next message of each queue; None: what was handed out is finished, as in `commit`.

        With (offset, metadata) the broker keeps that text, 1,024 bytes of UTF-8 at most, as long as the group stands
        there; "" takes it away. Raises InvalidArgument for a longer one, or for any if the consumer broadcasts.
        """
        self._run(self._core.commit_sync(offsets))

    def commit_async(
        self,
        callback: CommitCallback | None = None,
        offsets: Mapping[Queue, int | tuple[int, str]] | None = None,
    ) -> None:
        """Do as `commit_sync`, and do not wait for it; CALLBACK hears what became of it, on the client's own thread."""
        self._run(self._core.commit_async(callback, offsets))

    def metrics(self) -> Counts:
        """Return what was counted so far, also after the end."""
        return self._core.metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics as text for Prometheus (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    def close(self, *, finished: bool = True) -> None:
        """Commit, unless auto_commit is off, give the queues back, and disconnect.

        FINISHED: what was handed out counts as done. Raises what kept a broker from taking the offsets; the consumer is
        closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        self._ended()
        try:
            if (news := self._portal.run(self._core.farewell())) is not None:
                tell(self._listener, news)
            self._portal.run(self._core.disconnect(finished=finished))
        finally:
            self._portal.release()

    def _leave(self, error: BaseException | None) -> None:
        self.close(finished=error is None)
