"""Transactions over remoting: END_TRANSACTION, and CHECK_TRANSACTION_STATE, which asks a producer.

A half message is sent like others, with the property TRAN_MSG. Its producer ends the transaction with a request that
wants no answer, so no client gets an error: the broker asks again later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...proto.access.policies import PUB, of_topic
from ...proto.errors import InvalidArgument, TransactionNotFound
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.properties import REAL_TOPIC
from ...proto.record import decode_or_none, decode_record, encode_record
from ...proto.remoting.codes import RequestCode
from ...proto.remoting.command import ONE_WAY, RemotingCommand
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from ...proto.topics import check_group
from ...store.message_store import MessageStore
from ..transactions.checks import Answering, Listeners
from ..transactions.transactions import Transactions
from .calls import RemotingCall
from .members import ClassicClient

_RESOLUTIONS: Final[dict[int, pb.Resolution]] = {
    0: pb.RESOLUTION_UNSPECIFIED,
    8: pb.COMMIT,
    12: pb.ROLLBACK,
}


class RemotingTransactions:
    """Ends TRANSACTIONS, whose half messages are in STORE, and has producers among the clients asked about them."""

    def __init__(self, store: MessageStore, transactions: Transactions) -> None:
        self._store = store
        self._transactions = transactions
        self._listeners: Listeners = transactions.listeners
        self._asked: dict[ClassicClient, dict[str, _Producer]] = {}

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.END_TRANSACTION: self.end}

    def end(self, request: RemotingRequest) -> None:
        """Commit or roll back a transaction."""
        said = request.number("commitOrRollback")
        resolution = _RESOLUTIONS.get(said)
        if resolution is None:
            raise InvalidArgument(
                f"commitOrRollback is {said}: must be 8, 12 or 0", field="commitOrRollback"
            )
        transaction_id = request.text("transactionId", "") or request.text("msgId")
        at = request.long("commitLogOffset")
        topic = half_topic_at(self._store, at)
        if not topic:
            raise TransactionNotFound(
                f"no half message of transaction {transaction_id!r} at log offset {at}",
                transaction_id=transaction_id,
            )
        end = pb.EndTransactionRequest(
            group=check_group(request.text("producerGroup")),
            topic=topic,
            transaction_id=transaction_id,
            resolution=resolution,
            from_check=request.flag("fromTransactionCheck"),
            half_log_offset=at,
        )
        call = RemotingCall(request, lambda reply: request.answer())
        if isinstance(self._transactions.end(end, call), pb.EndTransactionReply):
            request.answer()

    def changed(self, member: ClassicClient) -> None:
        """Let MEMBER be asked about transactions of the producer groups that it has now."""
        asked = self._asked.setdefault(member, {})
        for group in asked.keys() - member.produces:
            self._listeners.remove(asked.pop(group))
        for group in member.produces - asked.keys():
            asked[group] = _Producer(member, group)
            self._listeners.add(asked[group])
        if not asked:
            del self._asked[member]

    def gone(self, member: ClassicClient) -> None:
        """Forget MEMBER, which has disconnected."""
        for producer in self._asked.pop(member, {}).values():
            self._listeners.remove(producer)


def half_topic_at(store: MessageStore, at: int) -> str:
    """Return the topic of the half message at log offset AT in STORE; "": there is none."""
    record = decode_or_none(store.read_at(at))
    return "" if record is None else record.properties.get(REAL_TOPIC, "")


class _Producer(Answering):
    """MEMBER as a producer of GROUP."""

    def __init__(self, member: ClassicClient, group: str) -> None:
        self._member = member
        self._group = group

    @property
    def group(self) -> str:
        return self._group

    @property
    def has_room(self) -> bool:
        return self._member.connection.has_room

    def is_for(self, topic: str) -> bool:
        return True

    def sent(self, transaction_id: str) -> bool:
        return False

    def may_see(self, topic: str) -> bool:
        return self._member.user.may(of_topic(topic, PUB))

    def send(self, check: pb.TransactionCheck) -> None:
        """Ask about a transaction: the body is its half message, as it will be after a commit."""
        half = decode_record(check.record)
        record = encode_record(replace(half, topic=check.topic))
        self._member.connection.send(
            RemotingCommand(
                code=RequestCode.CHECK_TRANSACTION_STATE,
                flag=ONE_WAY,
                fields={
                    "commitLogOffset": str(check.half_log_offset),
                    "msgId": check.transaction_id,
                    "offsetMsgId": half.message_id,
                    "topic": check.topic,
                    "tranStateTableOffset": str(half.queue_offset),
                    "transactionId": check.transaction_id,
                },
                body=record,
            )
        )
