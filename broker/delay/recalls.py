"""Recall: cancel a scheduled message before it is due.

The message stays in the log. The broker stores a marker, as Apache RocketMQ does, so that both brokers obey each
other's markers: a record of the timer topic with body "0", tags _RECALL_TAG_ and TIMER_DEL_UNIQKEY = UNIQ_KEY = the
id of the message, due in the slot of the message. That slot then drops both.

If the store has an index, the broker first looks the message up by its id. A message that does not exist or is already
due is reported; a message that was recalled before needs no second marker. Without an index, a marker may match
nothing, as in Apache RocketMQ. Messages of a delay level or a retry topic cannot be recalled: they have no handle.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Final

from ...proto import properties as names
from ...proto.errors import (
    AlreadyDelivered,
    InvalidArgument,
    InvalidDelay,
    MessageNotFound,
)
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.recall_handle import RecallHandle, decode_handle
from ...proto.record import Host, Record, decode_or_none, encode_record
from ...proto.rpc import LATER, Call, Later, MethodTable, service, unary
from ...proto.run import Run
from ...proto.time_text import format_instant
from ...proto.topics import TIMER_TOPIC
from ...store.message_store import MessageStore
from ..config import BrokerConfig
from ..delay_rules import timer_out_ms
from ..messages.appender import Appender
from ..messages.lookup import in_steps
from ..topics import Topics

#: Tags of a marker, as in RocketMQ.
RECALL_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"
_KEY_JOINT: Final = "+"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A waiting message: its slot and due time, its producer, and the log offset after its marker, if it has one."""

    out_ms: int
    due_ms: int
    group: str
    marker_end: int | None


class Recalls:
    """Executes recalls. NOW_MS returns the time of messages."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        store: MessageStore,
        appends: Appender,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._topics = topics
        self._store = store
        self._appends = appends
        self._now_ms = now_ms
        self._precision_ms = store.config.timer_precision_ms

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            "pocketmq.v1.Broker",
            {"Recall": unary(pb.RecallRequest, pb.RecallReply, self.recall)},
        )

    def recall(self, request: pb.RecallRequest, call: Call) -> Later:
        """Recall the message of a handle. The reply is sent when the recall is safe.

        Raises:
            InvalidArgument: The handle is malformed, or of another topic or broker.
            InvalidDelay: Its time is too far ahead.
            TopicNotFound, MessageNotFound, AlreadyDelivered, StoreFull, DiskFailure
        """
        self._topics.get(request.topic)
        handle = decode_handle(request.handle)
        self._check_names(handle, request.topic)

        def found(waiting: _Waiting) -> None:
            end_offset = waiting.marker_end
            if end_offset is None:
                marker = self._marker(handle, waiting, call.peer)
                end_offset = self._appends.append_one(Run.of(TIMER_TOPIC, 0, [marker])).end_offset
            reply = pb.RecallReply(message_id=handle.message_id)
            self._appends.reply_when_safe(call, reply, end_offset)

        def look() -> None:
            in_steps(self._find(handle), found, call.fail)

        self._appends.when_all_confirmed(look, call.fail)
        return LATER

    def _check_names(self, handle: RecallHandle, topic: str) -> None:
        for what, named, own in (
            ("topic", handle.topic, topic),
            ("broker", handle.broker, self._config.name),
        ):
            if named != own:
                raise InvalidArgument(
                    f"the handle is of {what} {named!r}, not {own!r}: send the recall to the broker of the message",
                    field="handle",
                    value=named,
                )

    def _find(self, handle: RecallHandle) -> Generator[None, None, _Waiting]:
        """Find the message of HANDLE if it still waits. Yields between steps."""
        now_ms = self._now_ms()
        limit = now_ms + self._config.delay_max_ms
        if handle.due_ms > limit:
            raise InvalidDelay(
                f"the handle's time is {format_instant(handle.due_ms)}, but no message may be due after"
                f" {format_instant(limit)} (broker.delay_max_ms)",
                field="handle",
                limit=limit,
                value=handle.due_ms,
            )
        found = yield from self._look_up(handle)
        if found is not None and found.marker_end is not None:
            return found  # An earlier attempt stored the marker; its reply may be lost.
        now_ms = self._now_ms()
        due_ms = handle.due_ms if found is None else found.due_ms
        if due_ms <= now_ms:
            raise AlreadyDelivered(
                f"message {handle.message_id!r} was due at {format_instant(due_ms)}, now it is"
                f" {format_instant(now_ms)}: it was delivered, or is about to be",
                due_ms=due_ms,
                now_ms=now_ms,
            )
        if found is not None:
            return found
        self._store.check_readable()
        if self._store.config.index:
            raise MessageNotFound(
                f"no message {handle.message_id!r} of topic {handle.topic!r} is scheduled for"
                f" {format_instant(handle.due_ms)}: it does not exist, or was deleted",
                message_id=handle.message_id,
                topic=handle.topic,
            )
        return _Waiting(self._slot_of(handle), handle.due_ms, "", None)

    def _slot_of(self, handle: RecallHandle) -> int:
        return timer_out_ms(handle.due_ms, self._precision_ms)

    def _look_up(self, handle: RecallHandle) -> Generator[None, None, _Waiting | None]:
        """Search the timer topic for the newest message of HANDLE and its newest marker. Yields between steps."""
        slot_ms = self._slot_of(handle)
        marker_keys = (handle.message_id, handle.topic + _KEY_JOINT + handle.message_id)
        found: Record | None = None
        markers: dict[int, int] = {}
        for data in self._store.looked_up(TIMER_TOPIC, handle.message_id):
            if data is None:
                yield
                continue
            record = _of_timer_topic(data)
            if record is None:
                continue
            properties = record.properties
            if properties.get(names.TIMER_DELETE_KEY) in marker_keys:
                end = record.log_offset + record.total_size
                markers.setdefault(_number(properties, names.TIMER_OUT_MS), end)
            elif (
                properties.get(names.UNIQ_KEY) == handle.message_id
                and properties.get(names.REAL_TOPIC) == handle.topic
                and _number(properties, names.TIMER_OUT_MS) == slot_ms
            ):
                found = found or record
        if found is None:
            return None
        due_ms = _number(found.properties, names.TIMER_DELIVER_MS)
        if not slot_ms < due_ms <= slot_ms + self._precision_ms:
            due_ms = slot_ms + self._precision_ms
        group = found.properties.get(names.PRODUCER_GROUP, "")
        return _Waiting(slot_ms, due_ms, group, markers.get(slot_ms))

    def _marker(self, handle: RecallHandle, waiting: _Waiting, peer: str) -> bytes:
        now_ms = self._now_ms()
        instant_ms = handle.due_ms
        properties = {
            names.TAGS: RECALL_TAG,
            names.TIMER_DELETE_KEY: handle.message_id,
            names.UNIQ_KEY: handle.message_id,
            names.TIMER_DELIVER_MS: str(instant_ms),
            names.BORN_TIMESTAMP: str(now_ms),
            names.TIMER_OUT_MS: str(waiting.out_ms),
            names.REAL_TOPIC: handle.topic,
            names.REAL_QUEUE_ID: "0",
        }
        if waiting.group:
            properties[names.PRODUCER_GROUP] = waiting.group
        marker = Record(
            topic=TIMER_TOPIC,
            body=_BODY,
            born_timestamp_ms=now_ms,
            born_host=Host.of_peer(peer),
            properties=properties,
        )
        return encode_record(marker)


def _of_timer_topic(data: bytes) -> Record | None:
    """Return the record in DATA; None if it is not of the timer topic."""
    record = decode_or_none(data)
    return record if record is not None and record.topic == TIMER_TOPIC else None


def _number(properties: Mapping[str, str], name: str) -> int:
    """Return the property NAME as a number; −1 if there is none."""
    number = names.whole_number(properties.get(name, ""))
    return -1 if number is None else number
