"""Our own HTTP/2 as the carrier of PocketMQ's methods: plaintext, TLS and a plain page at one port.

    carrier = Http2Carrier([service.methods()], limits=Limits())
    port = await carrier.start("127.0.0.1", 0)
    await carrier.stop(grace_s=2.0)

`rpc/` knows nothing of PocketMQ: here its server gets to know how PocketMQ's errors travel (`errors_wire.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from random import Random

from .errors_wire import failure_of, ours
from .rpc.errors import CannotListen
from .rpc.limits import Limits
from .rpc.methods import Certificate, MethodTable
from .rpc.pages import Page
from .rpc.server import Server


class Http2Carrier(Server):
    """Our own server over the methods of TABLES."""

    def __init__(
        self,
        tables: Iterable[MethodTable],
        *,
        limits: Limits | None = None,
        certificate: Callable[[], Awaitable[Certificate]] | None = None,
        page: Page | None = None,
        random: Random | None = None,
    ) -> None:
        super().__init__(
            tables,
            limits=limits,
            certificate=certificate,
            page=page,
            random=random,
            describe=failure_of,
        )

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on HOST and PORT (0: any free one), serve, and return the port; raise ConfigError if that fails."""
        try:
            return await super().start(host, port)
        except CannotListen as error:
            raise ours(error) from error.__cause__
