"""RecallMessage: having back a delayed message before it is due, by the handle of its receipt.

A second recall of a message is answered well again. A handle that is none, or of another topic, is BAD_REQUEST; a
message that was delivered, or never sent, is NOT_FOUND. Source: v2-protocol.md §4.9, fixture v2/delay-recall.
"""

from __future__ import annotations

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import Call, Later, MethodTable
from ..delay.recalls import Recalls
from ..topics import Topics
from .checks import topic_name
from .message_types import check_type
from .relayed import Relayed
from .service import service, unary
from .statuses import OK


class RecallMessages:
    """Serves RecallMessage."""

    def __init__(self, topics: Topics, recalls: Recalls) -> None:
        self._topics = topics
        self._recalls = recalls

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {"RecallMessage": unary(v2.RecallMessageRequest, v2.RecallMessageResponse, self.recall)}
        )

    def recall(self, request: v2.RecallMessageRequest, call: Call) -> Later:
        """Have back the message of a handle; answered when that is safe."""
        topic = self._topics.get(topic_name(request.topic))
        check_type(topic, v2.DELAY)
        own = pb.RecallRequest(topic=topic.name, handle=request.recall_handle)
        return self._recalls.recall(own, Relayed(call, v2.RecallMessageResponse, _answer))


def _answer(reply: pb.RecallReply) -> v2.RecallMessageResponse:
    return v2.RecallMessageResponse(status=OK, message_id=reply.message_id)
