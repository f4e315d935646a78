"""EndTransaction: the outcome of a half message, from its sender or as the answer to a check.

v2 knows no groups of producers: the topic takes the place of one, so that whoever sends to a topic can be asked for,
and can end, its transactions. The same outcome twice is answered well twice; the other one, or one of a transaction
that nobody began, is INVALID_TRANSACTION_ID. An outcome is answered when it is as safe as the store promises.

Clients in Go name no source (SOURCE_UNSPECIFIED), in answers to checks too: they count as such, so that none of them is
too late for a transaction with a recovery duration of its own.
Source: v2-protocol.md §4.7, fixture v2/transaction.
"""

from __future__ import annotations

from typing import Any, Final

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import LATER, Call, MethodTable
from ..topics import Topics
from ..transactions.transactions import Transactions
from .checks import topic_name
from .relayed import Relayed
from .service import service, unary
from .statuses import OK, Refused

_RESOLUTIONS: Final[dict[v2.TransactionResolution, pb.Resolution]] = {
    v2.COMMIT: pb.COMMIT,
    v2.ROLLBACK: pb.ROLLBACK,
}


class EndTransactions:
    """Serves EndTransaction."""

    def __init__(self, topics: Topics, transactions: Transactions) -> None:
        self._topics = topics
        self._transactions = transactions

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {"EndTransaction": unary(v2.EndTransactionRequest, v2.EndTransactionResponse, self.end)}
        )

    def end(self, request: v2.EndTransactionRequest, call: Call) -> Any:
        """Commit or roll back; nothing happens without a resolution."""
        topic = self._topics.get(topic_name(request.topic)).name
        transaction_id = request.transaction_id
        if not transaction_id.strip():
            raise Refused(
                v2.INVALID_TRANSACTION_ID,
                "transaction_id is blank: give that of the half message's receipt",
                field="transaction_id",
            )
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            return _done()
        own = pb.EndTransactionRequest(
            group=topic,
            topic=topic,
            transaction_id=transaction_id,
            resolution=resolution,
            from_check=request.source != v2.SOURCE_CLIENT,
        )
        relayed = Relayed(call, v2.EndTransactionResponse, lambda _: _done())
        self._transactions.end(own, relayed)
        return LATER


def _done() -> v2.EndTransactionResponse:
    return v2.EndTransactionResponse(status=OK)
