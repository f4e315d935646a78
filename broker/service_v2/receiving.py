"""ReceiveMessage: messages for simple and push consumers, at once or when they arrive.

    status   message …   delivery_timestamp

A receive waits as long as it asks, between POLLING_LEAST_MS and POLLING_MOST_MS, and ends half a second before its
client times out. It ignores the queue of the request and gets messages of the whole topic, up to BATCH_MAX. A wait has
no task: the handler keeps its stream. If a stream breaks, its unsent messages are returned. Exception: a push consumer
with attempt ids asks for the same messages again.

Source: v2-protocol.md §3.5, §4.3; fixtures v2/receive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.rpc import MethodTable, Stream, server_stream
from ..config import BrokerConfig
from ..messages.filters import choice_of
from ..pop.handles import LITE_HANDLE
from ..pop.receives import PoppedMessage, ReceiveRequest, ReceiveResult
from ..pop.service import BATCH_MAX, PopService
from .messages import deliver
from .request_checks import check_invisible, checked_group, checked_topic, filter_of, milliseconds
from .service import client_id, service
from .statuses import OK, Refused, status_of, status_of_bug
from .subscriptions import Subscriptions

logger = logging.getLogger(__name__)
POLLING_LEAST_MS: Final = 5_000
POLLING_MOST_MS: Final = 20_000
#: A receive ends this long before its client's deadline.
DEADLINE_SPARE_MS: Final = 500
#: If a client sets only a deadline, this part of it is kept for the answer: half of a usual
#: timeout.
_REQUEST_SHARE_MS: Final = 1_500
#: Messages that a broken stream did not send are redelivered after this time.
_HANDED_BACK_MS: Final = 1_000
_VERSION: Final = "x-mq-client-version"
#: Earlier versions of clients do not know ILLEGAL_POLLING_TIME.
_POLLING_TIME_SINCE: Final = (5, 0, 3)
NOTHING_NEW: Final = v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no new message")
_NOTHING_MATCHES: Final = v2.Status(code=v2.MESSAGE_NOT_FOUND, message="no match message")
_ALL_IS_WELL: Final = v2.ReceiveMessageResponse(status=OK)


class Receiving:
    """Answers receives from POPS. SUBSCRIPTIONS has the filters of groups. NOW_MS returns the time for deliveries.

    INVISIBLE_MS_MIN: the shortest invisible duration that a client may ask for.
    """

    def __init__(
        self,
        pops: PopService,
        subscriptions: Subscriptions,
        now_ms: Callable[[], int],
        config: BrokerConfig,
    ) -> None:
        self._pops = pops
        self._subscriptions = subscriptions
        self._config = config
        self._now_ms = now_ms

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "ReceiveMessage": server_stream(
                    v2.ReceiveMessageRequest, v2.ReceiveMessageResponse, self.receive
                )
            }
        )

    def receive(self, request: v2.ReceiveMessageRequest, stream: Stream) -> None:
        """Deliver messages, now or later."""
        try:
            client = client_id(stream)
        except Refused as error:
            stream.send(v2.ReceiveMessageResponse(status=status_of(error)))
            stream.finish()
            return
        try:
            wanted = filter_of(request.filter_expression)
            asked = _asked(request, stream, client, wanted, self._config.invisible_min_ms)
            self._check_parent(asked)
            self._subscriptions.receive(client, asked.group, asked.topic, wanted)
            answer = _Answer(self, asked, request.message_queue.topic, stream)
            if not asked.batch:
                self.nothing(stream, NOTHING_NEW)
                return
            waiting = self._pops.receive(asked, answer.popped)
            if waiting is not None:
                stream.on_cancel(waiting.cancel)
        except errors.PocketMQError as error:
            self.nothing(stream, status_of(error))
        except Exception as bug:  # A bug fails only this call, not the process.
            self.nothing(stream, status_of_bug("ReceiveMessageRequest", bug))

    def _check_parent(self, asked: ReceiveRequest) -> None:
        """Raise Refused if the group of ASKED is for lite consumers of another topic."""
        parent = self._pops.lite_parent(asked.group)
        if parent and parent != asked.topic:
            raise Refused(
                v2.ILLEGAL_TOPIC,
                f"group {asked.group!r} is for the lite topics of {parent!r}, not of {asked.topic!r}",
                field="topic",
                value=asked.topic,
            )

    def nothing(self, stream: Stream, status: v2.Status) -> None:
        """Answer with STATUS, without a message."""
        stream.send(v2.ReceiveMessageResponse(status=status))
        self.end(stream)

    def end(self, stream: Stream) -> None:
        """Send the delivery time, and end the stream."""
        last = v2.ReceiveMessageResponse()
        last.delivery_timestamp.FromMilliseconds(self._now_ms())
        stream.send(last)
        stream.finish()

    def hand_back(self, asked: ReceiveRequest, handles: Sequence[str]) -> None:
        """Return undelivered messages for redelivery. The attempt counts: a message that no client can accept must not
        loop.
        """
        for handle in handles:
            try:
                self._pops.change_invisible(asked.group, asked.topic, handle, _HANDED_BACK_MS)
            except errors.InvalidReceiptHandle:
                continue  # It is due for redelivery already.


class _Answer:
    """Answers a receive, which may wait."""

    __slots__ = ("_asked", "_receiving", "_stream", "_topic")

    def __init__(
        self, receiving: Receiving, asked: ReceiveRequest, topic: v2.Resource, stream: Stream
    ) -> None:
        self._receiving = receiving
        self._asked = asked
        self._topic = topic
        self._stream = stream

    def popped(self, popped: ReceiveResult) -> None:
        """Send the result POPPED."""
        try:
            self._send(popped)
        except Exception as bug:  # Other waiters for the same event must continue.
            self._receiving.nothing(self._stream, status_of_bug("ReceiveMessageRequest", bug))

    def _send(self, popped: ReceiveResult) -> None:
        receiving, stream = self._receiving, self._stream
        replies = list(self._replies(popped.deliveries))
        if replies:
            self._deliver(replies)
        elif popped.error is not None:
            receiving.nothing(stream, status_of(popped.error))
        else:
            receiving.nothing(stream, _NOTHING_MATCHES if popped.filtered_only else NOTHING_NEW)

    def _replies(
        self, deliveries: Iterable[PoppedMessage]
    ) -> Iterator[tuple[str, v2.ReceiveMessageResponse]]:
        """Yield handle and reply of each of DELIVERIES that is a valid message."""
        topic = self._topic
        for record, found_in, queue, offset, attempt, handle, invisible_ms in deliveries:
            reply = v2.ReceiveMessageResponse()
            try:
                deliver(
                    reply.message,
                    record,
                    topic,
                    handle=handle,
                    attempt=attempt,
                    invisible_ms=invisible_ms,
                    queue_offset=offset if handle.startswith(LITE_HANDLE) else None,
                )
            except errors.InvalidRecord as error:
                # Its attempts count, so it becomes a dead letter.
                logger.error(
                    "record cannot be delivered topic=%s queue=%d offset=%d problem=%s",
                    found_in,
                    queue,
                    offset,
                    error.message,
                )
            else:
                yield handle, reply

    def _deliver(self, replies: Sequence[tuple[str, v2.ReceiveMessageResponse]]) -> None:
        stream = self._stream
        send = stream.send
        send(_ALL_IS_WELL)
        #: Handles, and the bytes of the stream up to the end of each message.
        ends: list[tuple[str, int]] = []
        for handle, reply in replies:
            send(reply)
            ends.append((handle, stream.queued_bytes))
        self._receiving.end(stream)
        if not self._is_repeated:
            stream.on_cancel(partial(self._broken, ends, stream.queued_bytes))

    @property
    def _is_repeated(self) -> bool:
        """Return whether its client will ask for the same messages again. If it has gone, its leases end."""
        return bool(self._asked.attempt_id) and self._asked.auto_renew

    def _broken(self, ends: Sequence[tuple[str, int]], taken_bytes: int) -> None:
        """Return the messages that were not sent when the stream broke."""
        left_bytes = taken_bytes - self._stream.queued_bytes
        lost = [handle for handle, end in ends if end > left_bytes or not taken_bytes]
        self._receiving.hand_back(self._asked, lost)


def _asked(
    request: v2.ReceiveMessageRequest,
    stream: Stream,
    client: str,
    wanted: pb.Filter,
    invisible_min_ms: int,
) -> ReceiveRequest:
    """Return the pop request for REQUEST of CLIENT, with the filter WANTED; raise Refused."""
    group = checked_group(request.group.name)
    topic = checked_topic(request.message_queue.topic.name)
    wait_ms = _wait_ms(request, stream)
    batch = request.batch_size
    if batch < 0:
        raise Refused(
            v2.BAD_REQUEST,
            f"batch_size is {batch}: must be 1 to {BATCH_MAX}",
            field="batch_size",
            limit=BATCH_MAX,
            value=batch,
        )
    invisible_ms, auto_renew = 0, request.auto_renew
    if not auto_renew:
        invisible_ms = milliseconds(request.invisible_duration)
        check_invisible(invisible_ms, invisible_min_ms, " (broker.invisible_min_ms)")
    return ReceiveRequest(
        group=group,
        topic=topic,
        client_id=client,
        batch=min(batch, BATCH_MAX),
        invisible_ms=invisible_ms,
        wait_ms=wait_ms,
        auto_renew=auto_renew,
        attempt_id=request.attempt_id,
        choice=None if wanted.kind == pb.Filter.ALL else choice_of(wanted),
    )


def _wait_ms(request: v2.ReceiveMessageRequest, stream: Stream) -> int:
    """Return how long a receive may wait; raise Refused if the client's deadline is before the shortest wait."""
    left_ms = stream.deadline_ms
    if left_ms is not None and left_ms < POLLING_LEAST_MS:
        knows = _version(stream.metadata.get(_VERSION, "")) >= _POLLING_TIME_SINCE
        raise Refused(
            v2.ILLEGAL_POLLING_TIME if knows else v2.BAD_REQUEST,
            f"{left_ms} ms are left until the deadline of this call, and the shortest wait for messages is"
            f" {POLLING_LEAST_MS} ms: set a later deadline, the polling time and some seconds",
            field="long_polling_timeout",
            limit=POLLING_LEAST_MS,
            value=left_ms,
        )
    if request.HasField("long_polling_timeout"):
        asked_ms = milliseconds(request.long_polling_timeout)
    elif left_ms is not None:
        asked_ms = left_ms - _REQUEST_SHARE_MS
    else:
        asked_ms = POLLING_MOST_MS
    wait_ms = min(max(asked_ms, POLLING_LEAST_MS), POLLING_MOST_MS)
    return wait_ms if left_ms is None else min(wait_ms, left_ms - DEADLINE_SPARE_MS)


def _version(text: str) -> tuple[int, ...]:
    """Return the numbers of a client's version; the newest one if it cannot be parsed."""
    parts = text.strip().lstrip("v").split("-")[0].split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return (1 << 31,)
    return tuple(map(int, parts))
