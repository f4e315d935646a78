"""Statuses: errors as codes of `apache.rocketmq.v2`.

A refused call succeeds for gRPC and has a `Status` in its body, because clients treat any other failure as a transport
error and retry. The code is that of the error's class, or of its nearest base class in the table. `Refused` has its own
code. Source: apache.rocketmq.v2, enum Code.
"""

from __future__ import annotations

import logging
from typing import Final

from ...proto import errors
from ...proto.errors import InvalidArgument, PocketMQError
from ...proto.errors_wire import sentence_of
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.topics import check_new_group, check_new_topic

logger = logging.getLogger(__name__)
_CODES: Final[dict[type[PocketMQError], v2.Code]] = {
    PocketMQError: v2.INTERNAL_SERVER_ERROR,
    errors.InvalidArgument: v2.BAD_REQUEST,
    errors.InvalidFilter: v2.ILLEGAL_FILTER_EXPRESSION,
    errors.InvalidDelay: v2.ILLEGAL_DELIVERY_TIME,
    errors.MessageTooLarge: v2.MESSAGE_BODY_TOO_LARGE,
    errors.TopicNotFound: v2.TOPIC_NOT_FOUND,
    errors.GroupNotFound: v2.CONSUMER_GROUP_NOT_FOUND,
    errors.MessageNotFound: v2.NOT_FOUND,
    errors.AlreadyDelivered: v2.NOT_FOUND,
    errors.TransactionNotFound: v2.INVALID_TRANSACTION_ID,
    errors.TransactionResolved: v2.INVALID_TRANSACTION_ID,
    errors.InvalidReceiptHandle: v2.INVALID_RECEIPT_HANDLE,
    errors.QueueNotFound: v2.NOT_FOUND,
    errors.GroupInUse: v2.FORBIDDEN,
    errors.LeaseLost: v2.FORBIDDEN,
    errors.NotAuthenticated: v2.UNAUTHORIZED,
    errors.NotAuthorized: v2.UNAUTHORIZED,
    errors.NotReadable: v2.FORBIDDEN,
    errors.NotWritable: v2.FORBIDDEN,
    errors.Overloaded: v2.TOO_MANY_REQUESTS,
    errors.StoreFull: v2.TOO_MANY_REQUESTS,
    errors.FlushTimeout: v2.MASTER_PERSISTENCE_TIMEOUT,
    errors.NotEnoughReplicas: v2.HA_NOT_AVAILABLE,
    errors.NotEnoughReplicasAfterAppend: v2.SLAVE_PERSISTENCE_TIMEOUT,
    errors.MasterFenced: v2.HA_NOT_AVAILABLE,
    errors.OffsetOutOfRange: v2.ILLEGAL_OFFSET,
    errors.Unsupported: v2.NOT_IMPLEMENTED,
}
#: Codes whose texts begin with their names, as in RocketMQ: some programs search for them in the
#: text of an error.
_NAMED: Final = frozenset(
    {v2.INVALID_RECEIPT_HANDLE, v2.MULTIPLE_RESULTS, v2.MASTER_PERSISTENCE_TIMEOUT}
)
_ILLEGAL: Final = {"topic": v2.ILLEGAL_TOPIC, "group": v2.ILLEGAL_CONSUMER_GROUP}
OK: Final = v2.Status(code=v2.OK, message="OK")


class Refused(InvalidArgument):
    """A request that breaks a rule with a specific code."""

    def __init__(self, code: v2.Code, message: str, **details: object) -> None:
        super().__init__(message, **details)
        self.code = code


def code_of(error: PocketMQError) -> v2.Code:
    """Return the code for ERROR."""
    if isinstance(error, Refused):
        return error.code
    return _illegal_name(error) or next(
        _CODES[kind] for kind in type(error).__mro__ if kind in _CODES
    )


def _illegal_name(error: PocketMQError) -> v2.Code | None:
    """Return the code of a name that does not exist and could not be created; None for another error."""
    if isinstance(error, errors.InvalidName):
        return _ILLEGAL.get(str(error.details.get("field")))
    try:
        if isinstance(error, errors.TopicNotFound):
            check_new_topic(str(error.details.get("topic")))
        elif isinstance(error, errors.GroupNotFound):
            check_new_group(str(error.details.get("group")))
    except errors.InvalidName as reason:
        return _illegal_name(reason)
    return None


def status_of(error: PocketMQError) -> v2.Status:
    """Return the status for ERROR."""
    return status_with(code_of(error), sentence_of(error))


def status_with(code: v2.Code, text: str) -> v2.Status:
    """Return CODE with TEXT. For some codes, the name of the code is put before TEXT."""
    return v2.Status(code=code, message=f"{v2.Code.Name(code)}: {text}" if code in _NAMED else text)


def status_of_bug(path: str, bug: Exception) -> v2.Status:
    """Log BUG, an exception in the handler of PATH, and return a status without details."""
    logger.error("handler failed method=%s", path, exc_info=bug)
    return v2.Status(
        code=v2.INTERNAL_SERVER_ERROR,
        message=f"internal error in {path}, see the log of the broker",
    )
