"""RECALL_MESSAGE: a producer cancels a scheduled message, by the handle in the answer to its send."""

from __future__ import annotations

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.remoting.codes import RequestCode
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from ..delay.recalls import Recalls
from .calls import RemotingCall


class RemotingRecalls:
    """Passes requests to RECALLS."""

    def __init__(self, recalls: Recalls) -> None:
        self._recalls = recalls

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.RECALL_MESSAGE: self.recall}

    def recall(self, request: RemotingRequest) -> None:
        """Recall a message; the answer is sent when that is safe."""
        wanted = pb.RecallRequest(topic=request.text("topic"), handle=request.text("recallHandle"))

        def recalled(reply: pb.RecallReply) -> None:
            request.answer(fields={"msgId": reply.message_id})

        self._recalls.recall(wanted, RemotingCall(request, recalled))
