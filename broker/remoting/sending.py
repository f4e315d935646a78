"""Sends over remoting: SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE.

The client chooses the queue; -1 leaves it to the broker. A batch is stored completely or not at all. What a message
asks for is in its properties: a delay, a transaction (a half message). A message for a retry topic comes from a
consumer that could not send it back: beyond its retries it goes to the group's dead letters.

The message id in an answer is the offset id with the address that the client connected to: tools connect to the address
in an id. Source: remoting.md §3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, count
from typing import Final

from ...proto.errors import InvalidArgument, InvalidRecord, PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.message_id import offset_message_id
from ...proto.properties import (
    DEAD_LETTER_REASON,
    DELAY,
    UNIQ_KEY,
    closed,
    decode_properties,
    encode_pair,
)
from ...proto.recall_handle import encode_handle
from ...proto.record import Host, Record, encode_record, write_record
from ...proto.remoting.codes import RequestCode
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from ...proto.topics import RETRY_PREFIX, dead_letter_topic
from ..config import BrokerConfig
from ..consumer_groups import Groups
from ..groups.retries import failure_reason
from ..messages.admission import validate
from ..messages.message_types import check_type
from ..messages.send import Sends
from ..topics import TYPE_ATTRIBUTE, Topics

#: The names of the fields in SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, by those in SEND_MESSAGE.
V2_NAMES: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
_V1_NAMES: Final = {name: name for name in V2_NAMES}
#: A message in a batch: its size, magic number, CRC, flag and the size of its body.
_IN_BATCH: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">h")
_BATCH_MESSAGES_MAX: Final = 32_768
#: Parse the addresses of peers, and of this side, with a cache.
_host_of: Final = lru_cache(4096)(Host.of_peer)
_own_host: Final = lru_cache(64)(Host.parse)
#: Messages with this property are requests (request and reply): the replier needs the cluster.
_REPLY_TO: Final = b"REPLY_TO_CLIENT\x01"
_CLUSTER: Final = "CLUSTER"


class RemotingSends:
    """Stores sent messages."""

    def __init__(self, config: BrokerConfig, topics: Topics, groups: Groups, sends: Sends) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._sends = sends
        self._turns = count()

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_v2,
        }

    def send(self, request: RemotingRequest) -> None:
        """Store a message; the fields have long names."""
        self._send(request, _V1_NAMES)

    def send_v2(self, request: RemotingRequest) -> None:
        """Store a message or a batch; the fields have short names."""
        self._send(request, V2_NAMES)

    def _send(self, request: RemotingRequest, names: Mapping[str, str]) -> None:
        topic = request.text(names["topic"])
        queue = request.number(names["queueId"], -1, least=-1)
        times = request.number(names["reconsumeTimes"], 0)
        properties = closed(request.text(names["properties"], "").encode("utf-8", "replace"))
        is_batch = request.flag(names["batch"])
        is_batch = is_batch or request.command.code == RequestCode.SEND_BATCH_MESSAGE
        if topic.startswith(RETRY_PREFIX):
            most = request.number(names["maxReconsumeTimes"], -1, least=-(1 << 31))
            topic, queue, properties = self._for_retry(topic, queue, properties, times, most)
        self._topics.check_sendable(topic)
        if queue < 0:
            found = self._topics.find(topic)
            queue = next(self._turns) % max(1, found.write_queues if found else 1)
        if _REPLY_TO in properties and f"{_CLUSTER}\x01".encode() not in properties:
            properties += encode_pair(_CLUSTER, self._config.cluster)
        body = request.command.body
        messages = (
            _messages_of(body)
            if is_batch
            else [(body, properties, request.number(names["flag"], 0, least=-(1 << 31)))]
        )
        encode = _encoder(
            topic,
            queue,
            sys_flag=request.number(names["sysFlag"], 0),
            born_ms=request.long(names["bornTimestamp"], 0),
            born_host=_host_of(request.connection.peer),
            times=times,
        )
        records = [encode(*message) for message in messages]
        self._store(request, topic, queue, records, decode_properties(properties))

    def _for_retry(
        self, topic: str, queue: int, properties: bytes, times: int, most: int
    ) -> tuple[str, int, bytes]:
        """Return topic, queue and properties of a message that failed TIMES times, for the retry topic TOPIC."""
        group = self._groups.get(topic.removeprefix(RETRY_PREFIX))
        limit = group.retry_times_max if most < 0 else most
        if times < limit or not times:
            self._topics.for_group(topic, max(1, group.retry_queues))
            return topic, min(max(queue, 0), max(1, group.retry_queues) - 1), properties
        dead = dead_letter_topic(group.name)
        self._topics.for_group(dead, 1)
        return dead, 0, properties + encode_pair(DEAD_LETTER_REASON, failure_reason(times))

    def _store(
        self,
        request: RemotingRequest,
        topic: str,
        queue: int,
        records: Sequence[bytes],
        properties: Mapping[str, str],
    ) -> None:
        """Store RECORDS, and answer REQUEST, which has PROPERTIES."""
        sizes = [len(record) for record in records]
        admitted = validate(b"".join(records), sizes, topic, queue)
        known = self._topics.find(topic)
        if known is not None and self._config.topic_message_type_check:
            check_type(admitted, known.attributes.get(TYPE_ATTRIBUTE, ""))
        self._topics.for_writing(topic, queue)
        unique = properties.get(UNIQ_KEY, "")
        # As in Apache RocketMQ, messages with a delay level get no handle.
        is_timed = len(records) == 1 and DELAY not in properties and " " not in unique
        broker = self._config.name

        def outcome(reply: pb.ProduceReply, error: PocketMQError | None) -> None:
            if error is not None:
                request.fail(error)
                return
            fields = {
                "msgId": ",".join(_ids(request.connection.local_address, reply, sizes)),
                "queueId": str(queue),
                "queueOffset": str(reply.first_queue_offset),
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            }
            if unique:
                fields["transactionId"] = unique
                if is_timed and reply.due_ms and reply.due_ms[0]:
                    fields["recallHandle"] = encode_handle(topic, broker, reply.due_ms[0], unique)
            request.answer(fields=fields)

        self._sends.take([(admitted, outcome)])


def _encoder(
    topic: str, queue: int, *, sys_flag: int, born_ms: int, born_host: Host, times: int
) -> Callable[[bytes, bytes, int], bytes]:
    """Return a function that encodes a message with body, properties and flag as a record for QUEUE of TOPIC."""

    def encode(body: bytes, properties: bytes, flag: int) -> bytes:
        if not (flag or times):
            return write_record(
                topic,
                queue,
                body,
                properties,
                sys_flag=sys_flag,
                born_ms=born_ms,
                born_host=born_host,
            )
        record = Record(
            topic=topic,
            body=body,
            queue_id=queue,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms,
            born_host=born_host,
            reconsume_times=times,
        )
        return encode_record(record, property_string=properties)

    return encode


def _messages_of(body: bytes) -> list[tuple[bytes, bytes, int]]:
    """Return body, properties and flag of each message in the BODY of a batch. Raises InvalidRecord."""
    found: list[tuple[bytes, bytes, int]] = []
    at = 0
    try:
        while at < len(body):
            size, _, _, flag, body_size = _IN_BATCH.unpack_from(body, at)
            begin = at + _IN_BATCH.size
            (properties_size,) = _SHORT.unpack_from(body, begin + body_size)
            end = begin + body_size + _SHORT.size + properties_size
            if body_size < 0 or properties_size < 0 or end != at + size or end > len(body):
                raise InvalidRecord(
                    f"message {len(found)} of the batch: its sizes do not agree", field="body"
                )
            content = body[begin : begin + body_size]
            found.append((content, closed(body[end - properties_size : end]), flag))
            at = end
    except struct.error:
        raise InvalidRecord(f"message {len(found)} of the batch ends early", field="body") from None
    if not 0 < len(found) <= _BATCH_MESSAGES_MAX:
        raise InvalidArgument(
            f"the batch has {len(found)} messages: must be 1 to {_BATCH_MESSAGES_MAX}",
            field="body",
            limit=_BATCH_MESSAGES_MAX,
            value=len(found),
        )
    return found


def _ids(local: tuple[str, int], reply: pb.ProduceReply, sizes: Sequence[int]) -> list[str]:
    """Return the ids of messages of SIZES that were stored as in REPLY, for a client that connected to LOCAL."""
    host = _own_host(*local)
    offsets: Sequence[int] = reply.log_offsets
    if not offsets:
        offsets = list(accumulate(sizes[:-1], initial=reply.first_log_offset))
    return [offset_message_id(host.address, host.port, offset) for offset in offsets]
