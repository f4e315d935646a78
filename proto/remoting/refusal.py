"""The refusal of the remoting protocol by servers with users: its requests are not signed as these servers check it."""

from __future__ import annotations

from ..errors import NotAuthenticated
from .requests import RemotingRequest


def refuse_for_users(request: RemotingRequest) -> None:
    """Raise NotAuthenticated: REQUEST came to a server with users."""
    raise NotAuthenticated(
        "this server has users, and does not accept the remoting protocol: use a client of RocketMQ 5 (gRPC)",
        field="users",
    )
