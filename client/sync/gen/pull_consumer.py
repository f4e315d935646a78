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
    """Reads topics for a group, or without a group, from one thread. Settings are those of ConsumerConfig."""

    def poll(self, max_messages: int | None = None, timeout_ms: int | None = 1000) -> MessageBatch:
        """Return the next messages of one queue. Messages of earlier polls count as processed.

        Args:
            max_messages: Maximum number of messages; None: max_poll_records.
            timeout_ms: How long to wait for a message, in milliseconds; None: without a limit.

        Returns:
            Messages of one queue; empty if there was none within `timeout_ms`.

        Raises:
            PocketMQError: The group refused this consumer, or a fetch failed and a retry cannot help.
        """
        self._check_open()
        self._check_signals()
        most = max_messages or self.config.max_poll_records
        if not (messages := self._cursor.deliver(most)) and self._next_batch(timeout_ms):
            messages = self._cursor.deliver(most)
        if not messages:
            self._check_signals()
        return messages

    def messages(self, timeout_ms: int | None = None) -> Iterator[ReceivedMessage]:
        """Yield messages one at a time. Asking for a message means that the one before is processed.

        Args:
            timeout_ms: End when there was no message for so many milliseconds. None: end only at SIGTERM or Ctrl-C.
        """
        signals = self._signals
        with signals.returning() if timeout_ms is None else nullcontext():
            while signals.received is None:
                self._check_open()
                for message in self._cursor.one_by_one():
                    yield message
                    if signals.received is not None:
                        break
                if not self._next_batch(timeout_ms):
                    break
        if timeout_ms is not None:
            self._check_signals()

    def _check_signals(self) -> None:
        """Raise the exit of a signal that was postponed until this poll. Delivered messages count as processed."""
        if self._signals.received is not None:
            self._cursor.finish()
            self._signals.check()

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self.messages()

    def atomic_reading(self) -> AtomicReading:
        """Return the consumer's part of an atomic commit, for `Producer.atomic_commit`."""
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
        """Fetch messages of any queue once. This changes neither positions nor committed offsets.

        Args:
            topic: Topic of the queue.
            queue: The queue, or its number if only one broker has a queue with this number.
            offset: Offset of the first message.
            max_messages: Maximum number of messages; 0: fetch_messages_max.
            max_bytes: Maximum size of the messages in bytes; 0: fetch_max_bytes.
            wait_ms: How long the broker waits if there is no message yet, in milliseconds.

        Raises:
            OffsetOutOfRange: The queue does not have this offset; `details` has min_offset and max_offset.
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
        """Return a message that you cannot process to its broker, which redelivers it later.

        A member of the group gets a copy from the retry topic of the group. After the maximum number of retries of the
        group, the message is moved to the dead-letter queue. The message itself counts as processed when you ask for
        the next one.

        Args:
            message: The message.
            delay_level: 1 to 18: redeliver after 1 s to 2 h; 0: later with each retry, as the group is configured;
                below 0: move to the dead-letter queue at once.
            reason: Stored with a dead letter, up to 1 KiB.

        Returns:
            Whether the message is a dead letter now, and when it is redelivered.

        Raises:
            MessageNotFound: The broker does not have the message (any more).
            InvalidArgument: The consumer has no group, or does not get retries.
        """
        return self._run(self._core.send_back(message, delay_level=delay_level, reason=reason))

    def subscribe(self, topics: Topics) -> None:
        """Subscribe to TOPICS instead of the present ones. The group rebalances.

        Raises:
            InvalidArgument: The consumer has no group, has assigned queues, or is broadcasting.
        """
        return self._run(self._core.subscribe(topics))

    def assign(self, queues: Collection[Queue]) -> None:
        """Read QUEUES from now on, and no others, without rebalances.

        Other consumers may read the same queues. Offsets are those of the group. You cannot commit a queue that is
        assigned to a member of the group.

        Raises:
            InvalidArgument: The consumer subscribes to topics.
        """
        return self._run(self._core.assign(queues))

    def assignment(self) -> list[Queue]:
        """Return the queues that the consumer reads now."""
        return self._run(self._core.assignment())

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return all readable queues of TOPIC."""
        return self._run(self._core.queues(topic))

    def position(self, queue: Queue) -> int:
        """Return the offset of the next message of QUEUE that will be delivered."""
        return self._run(self._core.position(queue))

    def committed(self, queue: Queue) -> OffsetAndMetadata | None:
        """Return the committed offset of the group in QUEUE, with its metadata; None: nothing is committed."""
        return self._run(self._core.committed(queue))

    def seek(self, queue: Queue, offset: int) -> None:
        """Continue at OFFSET of QUEUE. Messages of it that were delivered before do not count as processed.

        Raises:
            LeaseLost: QUEUE is not assigned to this consumer any more.
            InvalidArgument: QUEUE was never assigned to it, or OFFSET is negative.
        """
        return self._run(self._core.seek(queue, offset))

    def seek_to_first(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Continue at the first message of each of QUEUES (None: of all assigned queues); return the offsets."""
        return self._run(self._core.seek_to_first(queues))

    def seek_to_last(self, queues: Collection[Queue] | None = None) -> dict[Queue, int]:
        """Continue after the last message of each of QUEUES (None: of all assigned queues); return the offsets."""
        return self._run(self._core.seek_to_last(queues))

    def seek_to_time(
        self, queues: Collection[Queue] | None, when: datetime | int
    ) -> dict[Queue, int]:
        """Continue at the first message that was stored at WHEN or later; return the offsets.

        Args:
            queues: Assigned queues; None: all of them.
            when: A datetime, or Unix milliseconds.
        """
        return self._run(self._core.seek_to_time(queues, when))

    def pause(self, queues: Collection[Queue]) -> None:
        """Deliver no messages of QUEUES until `resume`, also if they are revoked and assigned again."""
        return self._run(self._core.pause(queues))

    def resume(self, queues: Collection[Queue]) -> None:
        """Deliver messages of QUEUES again after `pause`."""
        return self._run(self._core.resume(queues))

    def commit(self) -> None:
        """Mark all delivered messages as processed, and commit. Raises the first error of a broker."""
        return self._run(self._core.commit())

    def commit_sync(self, offsets: Mapping[Queue, int | tuple[int, str]] | None = None) -> None:
        """Commit OFFSETS, or without them do the same as `commit`.

        Args:
            offsets: By queue, the offset of the next message, or (offset, metadata). The broker stores the metadata,
                up to 1,024 bytes of UTF-8, until the offset changes; "" deletes it.

        Raises:
            InvalidArgument: The metadata is too long, or the consumer is broadcasting.
            LeaseLost: A queue is not assigned to this consumer any more.
        """
        return self._run(self._core.commit_sync(offsets))

    def commit_async(
        self,
        callback: CommitCallback | None = None,
        offsets: Mapping[Queue, int | tuple[int, str]] | None = None,
    ) -> None:
        """Do the same as `commit_sync` without waiting. CALLBACK gets None or the error, in the client's own thread."""
        return self._run(self._core.commit_async(callback, offsets))

    def metrics(self) -> ConsumerMetrics:
        """Return the counters of this consumer, also after it was closed."""
        return self._core.metrics()

    def metrics_text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the metrics in the Prometheus text format (version 0.0.4), each with LABELS."""
        return self.metrics().text(labels)

    def close(self, *, finished: bool = True) -> None:
        """Commit, unless auto_commit is off, release the queues, and disconnect.

        Args:
            finished: Whether all delivered messages are processed. If not, the last ones are redelivered.

        Raises:
            PocketMQError: A broker did not accept the offsets. The consumer is closed nevertheless.
        """
        return self._close(finished=finished)
