"""CONSUMER_SEND_MSG_BACK: a consumer returns a message that failed; it is retried, or becomes a dead letter."""

from __future__ import annotations

from collections.abc import Callable

from ...proto.errors import MessageNotFound
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.record import decode_or_none
from ...proto.remoting.codes import RequestCode
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from ...proto.topics import check_group
from ...store.message_store import MessageStore
from ..groups.retries import Retries
from ..messages.appender import Appender


class ReturnedMessages:
    """Passes returned messages to RETRIES, and answers when their copies are as safe as the store promises.

    CHECK_GROUP raises GroupInUse if clients of this protocol must not consume as a group.
    """

    def __init__(
        self,
        store: MessageStore,
        retries: Retries,
        appends: Appender,
        check_group: Callable[[str], None],
    ) -> None:
        self._store = store
        self._retries = retries
        self._appends = appends
        self._check_group = check_group

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, request: RemotingRequest) -> None:
        """Store a copy for the retry of a message, which the request names by its log offset."""
        group = check_group(request.text("group"))
        self._check_group(group)
        at = request.long("offset")
        record = decode_or_none(self._store.read_at(at))
        if record is None:
            raise MessageNotFound(f"no message at log offset {at}", field="offset", value=at)
        back = pb.SendBackRequest(
            group=group,
            topic=record.topic,
            queue=record.queue_id,
            queue_offset=record.queue_offset,
            log_offset=at,
            delay_level=request.number("delayLevel", 0, least=-1),
        )
        most = request.number("maxReconsumeTimes", -1, least=-(1 << 31))
        if most >= 0:
            back.retry_max_times = most
        _, end_offset = self._retries.send_back(back)
        self._appends.when_safe(end_offset, request.end)
