"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: how a consumer finishes a delivery.

The receipt handle names the delivery; the message id in a request is informative. A handle is valid for its group and
topic until the delivery expires or a newer handle replaces it. Acknowledging or forwarding twice is fine.

A push consumer that failed a message sets the time of the next attempt. After the last attempt the message moves to the
dead-letter queue at once. A push consumer's time below PUSHED_LEAST_MS (Node.js sends such) is replaced by the group's
back-off. Simple consumers may use 0.

Source: v2-protocol.md §3.9, §4.5; fixtures v2/ack and v2/dead-letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, TypeVar
from urllib.parse import unquote

from ...proto import errors
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.properties import REASON_HEADER
from ...proto.rpc import Call, Later, MethodTable, unary as plain_unary
from ...store.format.state_tables import GroupConfig
from ..consumer_groups import Groups
from ..pop.handles import decode_handle
from ..pop.service import PopService
from ..retry_policies import announced_retry_intervals_of
from ..topics import Topics
from .request_checks import check_invisible, checked_topic, group_name, milliseconds
from .service import answered_when, client_id, service, unary
from .statuses import OK, Refused, status_of, status_of_bug, status_with

Reply = TypeVar(
    "Reply",
    v2.AckMessageResponse,
    v2.ChangeInvisibleDurationResponse,
    v2.ForwardMessageToDeadLetterQueueResponse,
)
#: If a push consumer asks for an earlier redelivery, the group's back-off applies.
PUSHED_LEAST_MS: Final = 1_000


class Acknowledging:
    """Acknowledges and returns messages that POPS delivered. RETRY_DELAYS_MS: for groups without a retry policy."""

    def __init__(
        self, pops: PopService, topics: Topics, groups: Groups, retry_delays_ms: Sequence[int]
    ) -> None:
        self._pops = pops
        self._topics = topics
        self._groups = groups
        self._retry_delays_ms = retry_delays_ms

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "AckMessage": unary(v2.AckMessageRequest, v2.AckMessageResponse, self.acknowledge),
                "ChangeInvisibleDuration": plain_unary(
                    v2.ChangeInvisibleDurationRequest,
                    v2.ChangeInvisibleDurationResponse,
                    self.change,
                ),
                "ForwardMessageToDeadLetterQueue": unary(
                    v2.ForwardMessageToDeadLetterQueueRequest,
                    v2.ForwardMessageToDeadLetterQueueResponse,
                    self.forward,
                ),
            }
        )

    def acknowledge(
        self, request: v2.AckMessageRequest, call: Call
    ) -> v2.AckMessageResponse | Later:
        """Acknowledge the messages of all entries in REQUEST; the reply has one entry for each, in order."""
        group, topic = self._names(request.group, request.topic)
        reply = v2.AckMessageResponse()
        finish, add = self._pops.acknowledge, reply.entries.add
        failed: dict[int, v2.Status] = {}
        count = 0
        for entry in request.entries:
            handle, status = entry.receipt_handle, OK
            try:
                if entry.lite_topic:
                    _check_lite_topic(handle, entry.lite_topic)
                finish(group, topic, handle)
            except errors.PocketMQError as error:
                status = status_of(error)
                failed.setdefault(status.code, status)
            add(message_id=entry.message_id, receipt_handle=handle, status=status)
            count += status is OK
        reply.status.MergeFrom(_status_of_all(count, failed))
        return self._when_safe(reply, call)

    def change(
        self, request: v2.ChangeInvisibleDurationRequest, call: Call
    ) -> v2.ChangeInvisibleDurationResponse | Later:
        """Set when a message is redelivered; from then on clients use the handle in the reply."""
        try:
            client_id(call)
            handle = self._change(request)
            reply = v2.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)
            return self._when_safe(reply, call)
        except errors.PocketMQError as error:
            status = status_of(error)
        except Exception as bug:  # A bug fails only this call, not the process.
            status = status_of_bug("ChangeInvisibleDurationRequest", bug)
        return v2.ChangeInvisibleDurationResponse(
            status=status, receipt_handle=request.receipt_handle
        )

    def _change(self, request: v2.ChangeInvisibleDurationRequest) -> str:
        group, topic = self._names(request.group, request.topic)
        handle = request.receipt_handle
        _check_lite_topic(handle, request.lite_topic)
        invisible_ms = milliseconds(request.invisible_duration)
        check_invisible(invisible_ms, 0)
        suspend = request.suspend
        attempt = 0 if suspend else self._pops.renewed_attempt(group, topic, handle)
        if attempt >= 1:
            config = self._groups.get(group)
            if attempt > config.retry_times_max:
                reason = f"its consumer failed at attempt {attempt}, the last one"
                self._pops.forward_to_dead_letters(group, topic, handle, reason)
                return handle
            if invisible_ms < PUSHED_LEAST_MS:
                invisible_ms = self._back_off_ms(config, attempt)
        return self._pops.change_invisible(group, topic, handle, invisible_ms, suspend=suspend)

    def _back_off_ms(self, group: GroupConfig, attempt: int) -> int:
        """Return how long a message of GROUP waits for redelivery after ATTEMPT failed."""
        listed = announced_retry_intervals_of(group.retry_policy)
        delays_ms = listed or self._retry_delays_ms
        return max(delays_ms[min(attempt, len(delays_ms)) - 1], PUSHED_LEAST_MS)

    def forward(
        self, request: v2.ForwardMessageToDeadLetterQueueRequest, call: Call
    ) -> v2.ForwardMessageToDeadLetterQueueResponse | Later:
        """Move the message of REQUEST to the dead-letter queue of its group; CALL's metadata may have the reason."""
        group, topic = self._names(request.group, request.topic)
        _check_lite_topic(request.receipt_handle, request.lite_topic)
        limit = request.max_delivery_attempts
        reason = unquote(call.metadata.get(REASON_HEADER, "")) or (
            f"its consumer gave up after attempt {request.delivery_attempt}"
            + (f" of {limit}" if limit else "")
        )
        self._pops.forward_to_dead_letters(group, topic, request.receipt_handle, reason)
        return self._when_safe(v2.ForwardMessageToDeadLetterQueueResponse(status=OK), call)

    def _when_safe(self, reply: Reply, call: Call) -> Reply | Later:
        """Return REPLY if its change is safe; otherwise LATER, and answer CALL once it is, or with the error."""
        return answered_when(self._pops.when_safe, call, partial(_settled, reply))

    def _names(self, group: v2.Resource, topic: v2.Resource) -> tuple[str, str]:
        """Return the names of GROUP and TOPIC, which must exist; raise Refused or TopicNotFound."""
        name = group_name(group, self._groups)
        return name, self._topics.get(checked_topic(topic.name)).name


def _check_lite_topic(handle: str, lite_topic: str) -> None:
    """Raise InvalidReceiptHandle if HANDLE is of another lite topic than LITE_TOPIC, if that is given."""
    if lite_topic and decode_handle(handle).lite_topic != lite_topic:
        raise errors.InvalidReceiptHandle(
            f"the receipt handle is not of lite topic {lite_topic[:64]!r}: use the handle of the received message",
            field="lite_topic",
            value=lite_topic[:64],
        )


def _settled(reply: Reply, error: errors.PocketMQError | None) -> Reply:
    """Return REPLY; with an ERROR, set it in all entries, because the change is not safe."""
    if error is not None:
        status = status_of(error)
        reply.status.CopyFrom(status)
        if isinstance(reply, v2.AckMessageResponse):
            for entry in reply.entries:
                entry.status.CopyFrom(status)
    return reply


def _status_of_all(good: int, failed: dict[int, v2.Status]) -> v2.Status:
    """Return the status of a reply with GOOD successful entries; FAILED has one status per code of the others."""
    if not failed:
        if good:
            return OK
        raise Refused(
            v2.BAD_REQUEST,
            "no entry: add the receipt handle of at least one message",
            field="entries",
        )
    if good or len(failed) > 1:
        return status_with(
            v2.MULTIPLE_RESULTS, "the entries have different results: each has its own status"
        )
    (only,) = failed.values()
    return only
