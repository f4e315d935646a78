"""Our own HTTP/2 as the carrier of PocketMQ's methods: plaintext, TLS and a plain page at one port.

    carrier = Http2Carrier([service.methods()], limits=Limits())
    port = await carrier.start("127.0.0.1", 0)
    await carrier.stop(grace_s=2.0)

`rpc/` knows nothing of PocketMQ: here its server gets to know how PocketMQ's errors travel (`errors_wire.py`).
"""

from __future__ import annotations

from .errors_wire import failure_of, ours
from .rpc.errors import CannotListen, RpcError, RpcFailure
from .rpc.server import Server


class Http2Carrier(Server):
    """Our own server over the methods of TABLES."""

    @staticmethod
    def describe(error: RpcError) -> RpcFailure:
        return failure_of(error)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on HOST and PORT (0: any free one), serve, and return the port; raise ConfigError if that fails."""
        try:
            return await super().start(host, port)
        except CannotListen as error:
            raise ours(error) from error.__cause__
