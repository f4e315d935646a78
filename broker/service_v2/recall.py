"""RecallMessage: having back a delayed message before it is due, by the handle of its receipt.

A second recall of a message is answered well again. A handle that is none, or of another topic, is BAD_REQUEST; a
message that was delivered, or never sent, is NOT_FOUND. Clients ask where they have dialled: a message that waits at
another broker is had back there. Source: v2-protocol.md §4.9, fixture v2/delay-recall.
"""

from __future__ import annotations

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, Later, MethodTable
from ..delay.recalls import Recalls
from ..neighbours import Neighbours
from ..topics import Topics
from .checks import topic_name
from .message_types import check_type
from .relayed import Relayed
from .service import service, unary
from .statuses import OK


class RecallMessages:
    """Serves RecallMessage."""

    def __init__(self, topics: Topics, recalls: Recalls, neighbours: Neighbours) -> None:
        self._topics = topics
        self._recalls = recalls
        self._neighbours = neighbours

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {"RecallMessage": unary(v2.RecallMessageRequest, v2.RecallMessageResponse, self.recall)}
        )

    def recall(self, request: v2.RecallMessageRequest, call: Call) -> Later:
        """Have back the message of a handle; answered when that is safe."""
        name = topic_name(request.topic)
        own = pb.RecallRequest(topic=name, handle=request.recall_handle)
        relayed = Relayed(call, v2.RecallMessageResponse, _answer)
        if self._neighbours.forward_recall(own, relayed):
            return LATER
        check_type(self._topics.get(name), v2.DELAY)
        return self._recalls.recall(own, relayed)


def _answer(reply: pb.RecallReply) -> v2.RecallMessageResponse:
    return v2.RecallMessageResponse(status=OK, message_id=reply.message_id)
