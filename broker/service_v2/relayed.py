"""EndTransaction and RecallMessage: calls that another part of the broker answers, in its own words or later.

Their callers hear it in the words of v2.

EndTransaction tells the outcome of a half message, from its sender or as the answer to a check. v2 knows no groups of
producers: the topic takes the place of one, so that whoever sends to a topic can be asked for, and can end, its
transactions. The same outcome twice is answered well twice; the other one, or one of a transaction that nobody began,
is INVALID_TRANSACTION_ID. An outcome is answered when it is as safe as the store promises. Clients in Go name no source
(SOURCE_UNSPECIFIED), in answers to checks too: they count as such, so that none of them is too late for a transaction
with a recovery duration of its own. Clients in Rust tell it to the broker that they have dialled: one that does not
know the transaction has the others of the topic asked.

RecallMessage has back a delayed message before it is due, by the handle of its receipt. A second recall of a message is
answered well again. A handle that is none, or of another topic, is BAD_REQUEST; a message that was delivered, or never
sent, is NOT_FOUND. Clients ask where they have dialled: a message that waits at another broker is had back there.

Source: v2-protocol.md §4.7, §4.9, fixtures v2/transaction and v2/delay-recall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from ...proto.errors import TopicNotFound, TransactionNotFound
from ...proto.errors_wire import ours
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, Later, MethodTable, RpcError
from ..delay.recalls import Recalls
from ..neighbours import Neighbours
from ..topics import Topics
from ..transactions.transactions import Transactions
from .checks import topic_name
from .messages import check_type
from .service import OK, Refused, service, status_of, unary

_RESOLUTIONS: Final[dict[v2.TransactionResolution, pb.Resolution]] = {
    v2.COMMIT: pb.COMMIT,
    v2.ROLLBACK: pb.ROLLBACK,
}


class Relayed(Call):
    """CALL, answered by what ANSWER_OF makes of an answer; an error is the status in a message of REPLY_TYPE."""

    __slots__ = ("_answer_of", "_call", "_reply_type")

    def __init__(
        self, call: Call, reply_type: type[Any], answer_of: Callable[[Any], Message]
    ) -> None:
        super().__init__()
        self._call = call
        self._reply_type = reply_type
        self._answer_of = answer_of
        call.on_cancel(self.cancel)

    @property
    def peer(self) -> str:
        return self._call.peer

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._call.metadata

    @property
    def deadline_ms(self) -> int | None:
        return self._call.deadline_ms

    def add_trailing(self, name: str, value: str) -> None:
        self._call.add_trailing(name, value)

    def reply(self, message: Message) -> None:
        self._call.reply(self._answer_of(message))

    def fail(self, error: RpcError) -> None:
        self._call.reply(self._reply_type(status=status_of(ours(error))))


class EndTransactions:
    """Serves EndTransaction."""

    def __init__(self, topics: Topics, transactions: Transactions, neighbours: Neighbours) -> None:
        self._topics = topics
        self._transactions = transactions
        self._neighbours = neighbours

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {"EndTransaction": unary(v2.EndTransactionRequest, v2.EndTransactionResponse, self.end)}
        )

    def end(self, request: v2.EndTransactionRequest, call: Call) -> Any:
        """Commit or roll back; nothing happens without a resolution."""
        topic = topic_name(request.topic)
        transaction_id = request.transaction_id
        if not transaction_id.strip():
            raise Refused(
                v2.INVALID_TRANSACTION_ID,
                "transaction_id is blank: give that of the half message's receipt",
                field="transaction_id",
            )
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            return _ended()
        own = pb.EndTransactionRequest(
            group=topic,
            topic=topic,
            transaction_id=transaction_id,
            resolution=resolution,
            from_check=request.source != v2.SOURCE_CLIENT,
        )
        here = _Here(call, own, self._neighbours)
        try:
            self._topics.get(topic)
            self._transactions.end(own, here)
        except (TopicNotFound, TransactionNotFound) as error:
            here.fail(error)
        return LATER


class _Here(Relayed):
    """CALL, answered by this broker, or by one of its NEIGHBOURS where this one knows no such topic or transaction."""

    __slots__ = ("_neighbours", "_request")

    def __init__(
        self, call: Call, request: pb.EndTransactionRequest, neighbours: Neighbours
    ) -> None:
        super().__init__(call, v2.EndTransactionResponse, lambda _: _ended())
        self._request = request
        self._neighbours = neighbours

    def fail(self, error: RpcError) -> None:
        if isinstance(error, TopicNotFound | TransactionNotFound):
            elsewhere = Relayed(self._call, v2.EndTransactionResponse, lambda _: _ended())
            self._neighbours.forward_end(self._request, elsewhere, error)
        else:
            super().fail(error)


def _ended() -> v2.EndTransactionResponse:
    return v2.EndTransactionResponse(status=OK)


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
        relayed = Relayed(call, v2.RecallMessageResponse, _recalled)
        if self._neighbours.forward_recall(own, relayed):
            return LATER
        check_type(self._topics.get(name), v2.DELAY)
        return self._recalls.recall(own, relayed)


def _recalled(reply: pb.RecallReply) -> v2.RecallMessageResponse:
    return v2.RecallMessageResponse(status=OK, message_id=reply.message_id)
