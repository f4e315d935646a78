"""Administration from ordinary threads: each method is `AsyncAdmin`'s (async_admin.py), run to its end.

    with Admin() as admin:
        admin.create_topic("orders", queues=8)
        print(admin.describe_topic("orders").queues)

What was made or deleted is visible to the next call, of any client of the same name servers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, Unpack

from ...proto.errors import ClientClosed
from ..config import ClientConfig, ClientSettings, settled
from ..faces import Face
from ..loop import Portal
from .async_admin import AsyncAdmin

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, P], Awaitable[R]],
) -> Callable[Concatenate[Admin, P], R]:
    """Return the synchronous form of METHOD."""

    @wraps(method)
    def call(self: Admin, /, *arguments: P.args, **named: P.kwargs) -> R:
        return self.run(lambda core: method(core, *arguments, **named))

    return call


class Admin(Face):
    """Administers the cluster behind NAMESERVERS, from ordinary threads."""

    def __init__(self, nameservers: str | None = None, **settings: Unpack[ClientSettings]) -> None:
        """NAMESERVERS: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.

        Settings are those of ClientConfig. Close it, or use it in a `with` block.
        """
        config = settled(ClientConfig, nameservers, settings)
        self._portal = Portal.hold()
        self._closed = False
        self._core = self._portal.run(self._start(config.nameservers, settings))

    async def _start(self, nameservers: str, settings: ClientSettings) -> AsyncAdmin:
        return AsyncAdmin(nameservers, **settings)

    def run(self, work: Callable[[AsyncAdmin], Awaitable[R]]) -> R:
        """Run WORK with the admin's core, on its event loop."""
        if self._closed:
            raise ClientClosed("the admin was closed; make a new one")

        async def call() -> R:
            return await work(self._core)

        return self._portal.run(call())

    create_topic = _blocking(AsyncAdmin.create_topic)
    update_topic = _blocking(AsyncAdmin.update_topic)
    delete_topic = _blocking(AsyncAdmin.delete_topic)
    topics = _blocking(AsyncAdmin.topics)
    describe_topic = _blocking(AsyncAdmin.describe_topic)
    create_group = _blocking(AsyncAdmin.create_group)
    delete_group = _blocking(AsyncAdmin.delete_group)
    groups = _blocking(AsyncAdmin.groups)
    queue_offsets = _blocking(AsyncAdmin.queue_offsets)
    group_offsets = _blocking(AsyncAdmin.group_offsets)
    set_group_offsets = _blocking(AsyncAdmin.set_group_offsets)
    set_subscription_check = _blocking(AsyncAdmin.set_subscription_check)
    describe_group = _blocking(AsyncAdmin.describe_group)
    reset_offsets = _blocking(AsyncAdmin.reset_offsets)
    lookup = _blocking(AsyncAdmin.lookup)
    lookup_id = _blocking(AsyncAdmin.lookup_id)
    lookup_time = _blocking(AsyncAdmin.lookup_time)
    lookup_offset = _blocking(AsyncAdmin.lookup_offset)
    brokers = _blocking(AsyncAdmin.brokers)
    dead_letters = _blocking(AsyncAdmin.dead_letters)
    resend_dead_letters = _blocking(AsyncAdmin.resend_dead_letters)
    purge_dead_letters = _blocking(AsyncAdmin.purge_dead_letters)

    def close(self) -> None:
        """Disconnect."""
        if self._closed:
            return
        try:
            self.run(AsyncAdmin.close)
        finally:
            self._closed = True
            self._portal.release()
