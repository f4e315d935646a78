"""`PullConsumer`, generated from client/pull_consumer.py by `make sync`. Edit that file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime

from ...consuming.atomic_reading import AtomicReading
from ...consuming.held_queue import OffsetAndMetadata
from ...consuming.parts import ConsumerMetrics
from ...consuming.queue_reader import PullResult
from ...consuming.sending_back import SendBackResult
from ...message_batch import MessageBatch
from ...pull_consumer import CommitCallback
from ...queue import Queue
from ...received_message import ReceivedMessage
from ...subscriptions import Topics
from ..thread_consumer import ThreadConsumer


class PullConsumer(ThreadConsumer):
    """Reads topics for GROUP, from one ordinary thread. Settings are those of ConsumerConfig."""

    def poll(self, max_messages: int | None = None, timeout_ms: int | None = 1000) -> MessageBatch:
        """Return the next messages, of one queue: max_poll_records, or all of one fetch, but at most MAX_MESSAGES.

        The batch is empty if none comes within TIMEOUT_MS (None: wait on). What earlier polls returned is finished.
        Raises what the coordinator refuses this member with, and errors of fetches that no repetition heals.
        """
        self._check_open()
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
                self._check_open()
                for message in self._cursor.one_by_one():
                    yield message
                    if signals.told is not None:
                        break
                if not self._next_batch(timeout_ms):
                    break
        if timeout_ms is not None:
            self._check_signals()

    def _check_signals(self) -> None:
        """Raise what was put off until the application came for more; what it was handed is finished."""
        if self._signals.told is not None:
            self._cursor.finish()
            self._signals.check()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self.messages()

    def atomic_reading(self) -> AtomicReading:
        """Return what an atomic commit of a producer needs of this consumer: see `atomic_commit` of producers."""
        return self._core.atomic_reading()

    def pull(
        self,
        topic: str,
        queue: Queue | int,
        offset: int,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
        wait_ms: int = 0,
    ) -> PullResult:
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
    ) -> SendBackResult:
        """Return MESSAGE to the broker: it is redelivered later, or moved to the dead-letter queue; return which.

        For a message that you cannot process: the consumer gets a copy from the group's retry topic, and after the
        group's maximum of retries the message is in the dead-letter queue.

        DELAY_LEVEL: 1 s to 2 h for 1 to 18; 0: longer with each retry, as the group is set; below 0: dead at once.
        REASON stays with a dead letter, up to 1 KiB. The message counts as handled when the application continues.
        Raises MessageNotFound for one that the broker does not have (any more).
        """
        return self._run(self._core.send_back(message, delay_level=delay_level, reason=reason))

    def subscribe(self, topics: Topics) -> None:
        """Read TOPICS from now on, and no others; the group divides their queues again."""
        return self._run(self._core.subscribe(topics))

    def assign(self, queues: Collection[Queue]) -> None:
        """Read QUEUES from now on, and no others, independently of the group.

        Nothing is shared: other consumers may read them, too. Offsets are the group's; a queue that a member of the
        group holds cannot be committed.
        """
        return self._run(self._core.assign(queues))

    def assignment(self) -> list[Queue]:
        """Return the queues that are read at present."""
        return self._run(self._core.assignment())

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of TOPIC that can be read, whoever reads them."""
        return self._run(self._core.queues(topic))

    def position(self, queue: Queue) -> int:
        """Return the offset of the next message of QUEUE that will be delivered."""
        return self._run(self._core.position(queue))

    def committed(self, queue: Queue) -> OffsetAndMetadata | None:
        """Return the offset that the group has committed of QUEUE, and the text that goes with it; None: nothing."""
        return self._run(self._core.committed(queue))

    def seek(self, queue: Queue, offset: int) -> None:
        """Continue at OFFSET of QUEUE, one that this consumer has; what was delivered of it does not count any more."""
        return self._run(self._core.seek(queue, offset))

    def seek_to_first(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Go to the first message of each of QUEUES, None: of all that it has; return the offsets."""
        return self._run(self._core.seek_to_first(queues))

    def seek_to_last(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Go after the last message of each of QUEUES, None: of all that it has; return the offsets."""
        return self._run(self._core.seek_to_last(queues))

    def seek_to_time(
        self, queues: Collection[Queue] | None, when: datetime | int
    ) -> dict[Queue, int]:
        """Go to the first message stored at WHEN (a datetime, or Unix milliseconds) or later; return the offsets."""
        return self._run(self._core.seek_to_time(queues, when))

    def pause(self, queues: Collection[Queue]) -> None:
        """Deliver nothing of QUEUES until they are resumed, also when they go and come back."""
        return self._run(self._core.pause(queues))

    def resume(self, queues: Collection[Queue]) -> None:
        """Continue with QUEUES."""
        return self._run(self._core.resume(queues))

    def commit(self) -> None:
        """Finish what was delivered, and have the brokers keep how far the group is."""
        return self._run(self._core.commit())

    def commit_sync(self, offsets: Mapping[Queue, int | tuple[int, str]] | None = None) -> None:
        """Commit OFFSETS, of the next message of each queue; None: what was delivered is finished, as in `commit`.

        With (offset, metadata) the broker keeps that text, 1,024 bytes of UTF-8 at most, as long as the group stands
        there; "" takes it away. Raises InvalidArgument for a longer one, or for any if the consumer broadcasts.
        """
        return self._run(self._core.commit_sync(offsets))

    def commit_async(
        self,
        callback: CommitCallback | None = None,
        offsets: Mapping[Queue, int | tuple[int, str]] | None = None,
    ) -> None:
        """Do as `commit_sync`, and do not wait for it; CALLBACK hears what became of it, on the client's own thread."""
        return self._run(self._core.commit_async(callback, offsets))

    def metrics(self) -> ConsumerMetrics:
        """Return what was counted so far, also after the end."""
        return self._core.metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics as text for Prometheus (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    def close(self, *, finished: bool = True) -> None:
        """Commit, unless auto_commit is off, give the queues back, and disconnect.

        FINISHED: what was delivered counts as done. Raises what kept a broker from taking the offsets; the consumer is
        closed all the same.
        """
        return self._close(finished=finished)
