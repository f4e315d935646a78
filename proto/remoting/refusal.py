"""The refusal of the remoting protocol by replica sets."""

from __future__ import annotations

from ..errors import Unsupported
from .requests import RemotingRequest


def refuse_for_replicas(request: RemotingRequest) -> None:
    """Raise Unsupported: REQUEST came to a broker of a replica set."""
    raise Unsupported(
        "this broker belongs to a replica set, and does not accept the remoting protocol: use a client of RocketMQ 5"
        " (gRPC), or a broker without replicas"
    )
