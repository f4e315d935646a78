"""Filters of classic consumers: their form in requests, and CHECK_CLIENT_CONFIG, which checks one."""

from __future__ import annotations

from typing import Final

from ...proto.errors import InvalidArgument
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.remoting.codes import RequestCode
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from ..messages.filters import choice_of
from .members import Subscription

_EXPRESSIONS: Final = {"TAG": pb.Filter.TAG, "SQL92": pb.Filter.SQL}
_EVERYTHING: Final = ("", "*")
_SHOWN: Final = 64


def handlers() -> dict[int, Handler]:
    """Return the handlers by request code."""
    return {RequestCode.CHECK_CLIENT_CONFIG: check_client_config}


def check_client_config(request: RemotingRequest) -> None:
    """Answer whether the filter of a subscription is valid; raise InvalidFilter or InvalidArgument."""
    said = request.json().get("subscriptionData")
    if isinstance(said, dict):
        kind, expression = said.get("expressionType"), said.get("subString")
        choice_of(filter_of(Subscription("", str(expression or ""), str(kind or "TAG"))))
    request.answer()


def filter_of(subscription: Subscription) -> pb.Filter:
    """Return the filter of SUBSCRIPTION; raise InvalidArgument for an unknown kind."""
    kind = _EXPRESSIONS.get(subscription.kind)
    if kind is None:
        raise InvalidArgument(
            f"the expression type is {subscription.kind[:_SHOWN]!r}: must be TAG or SQL92",
            field="expressionType",
            value=subscription.kind[:_SHOWN],
        )
    if subscription.expression in _EVERYTHING:
        return pb.Filter(kind=pb.Filter.ALL)
    return pb.Filter(kind=kind, expression=subscription.expression)
