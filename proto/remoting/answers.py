"""Errors as answers: the code of RocketMQ for each error of PocketMQ."""

from __future__ import annotations

from typing import Final

from .. import errors
from .codes import ResponseCode

#: The first class that an error is an instance of decides; all others are SYSTEM_ERROR.
_CODES: Final[tuple[tuple[type[errors.PocketMQError], ResponseCode], ...]] = (
    (errors.TopicNotFound, ResponseCode.TOPIC_NOT_EXIST),
    (errors.GroupNotFound, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    (errors.MessageNotFound, ResponseCode.QUERY_NOT_FOUND),
    (errors.InvalidFilter, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    (errors.InvalidRecord, ResponseCode.MESSAGE_ILLEGAL),
    (errors.InvalidName, ResponseCode.MESSAGE_ILLEGAL),
    (errors.MessageTooLarge, ResponseCode.MESSAGE_ILLEGAL),
    (errors.InvalidDelay, ResponseCode.MESSAGE_ILLEGAL),
    (errors.NotReadable, ResponseCode.NO_PERMISSION),
    (errors.NotWritable, ResponseCode.NO_PERMISSION),
    (errors.NotAuthenticated, ResponseCode.NO_PERMISSION),
    (errors.NotAuthorized, ResponseCode.NO_PERMISSION),
    (errors.Overloaded, ResponseCode.SYSTEM_BUSY),
    (errors.FlushTimeout, ResponseCode.FLUSH_DISK_TIMEOUT),
    (errors.NotEnoughReplicasAfterAppend, ResponseCode.FLUSH_SLAVE_TIMEOUT),
    (errors.NotEnoughReplicas, ResponseCode.SERVICE_NOT_AVAILABLE),
    (errors.MasterFenced, ResponseCode.SERVICE_NOT_AVAILABLE),
    (errors.StoreFull, ResponseCode.SERVICE_NOT_AVAILABLE),
    (errors.StoreClosed, ResponseCode.SERVICE_NOT_AVAILABLE),
    (errors.ShuttingDown, ResponseCode.SERVICE_NOT_AVAILABLE),
)


def code_of(error: errors.PocketMQError) -> ResponseCode:
    """Return the code of the answer to a request that failed with ERROR."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ResponseCode.SYSTEM_ERROR
