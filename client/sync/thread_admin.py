"""The hand-written part of the admin for threads: start, run a call on the event loop, and close."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, Unpack

from ...proto.errors import ClientClosed
from ..administration.admin import AsyncAdmin
from ..config import ClientConfig, ClientSettings, settled
from ..lifecycle import Client
from ..loop_thread import LoopThread

R = TypeVar("R")


class ThreadAdmin(Client):
    """Runs an AsyncAdmin on the clients' event loop."""

    def __init__(self, nameservers: str | None = None, **settings: Unpack[ClientSettings]) -> None:
        """Create and start an admin. Close it, or use it in a `with` block.

        Args:
            nameservers: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.
            settings: Fields of ClientConfig.
        """
        config = settled(ClientConfig, nameservers, settings)
        self._portal = LoopThread.acquire()
        self._closed = False
        try:
            self._core = self._portal.run(self._start(config.nameservers, settings))
        except BaseException:
            self._portal.release()
            raise

    async def _start(self, nameservers: str, settings: ClientSettings) -> AsyncAdmin:
        return AsyncAdmin(nameservers, **settings)

    def run(self, work: Callable[[AsyncAdmin], Awaitable[R]]) -> R:
        """Run WORK with the admin's core, on its event loop."""

        async def call() -> R:
            return await work(self._core)

        return self._run(call())

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        if self._closed:
            work.close()
            raise ClientClosed("the admin is closed: create a new one")
        return self._portal.run(work)

    def _close(self) -> None:
        if self._closed or self._portal.is_inherited:
            return
        try:
            self._run(self._core.close())
        finally:
            self._closed = True
            self._portal.release()
