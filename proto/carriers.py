"""The gRPC servers to choose from with the setting `grpc`: PocketMQ's own HTTP/2 server, and grpcio.

    carrier = Http2Carrier([service.methods()], limits=Limits())
    port = await carrier.start("127.0.0.1", 0)
    await carrier.stop(grace_s=2.0)

`Http2Carrier` serves plaintext, TLS and HTML pages on one port. The package `rpc/` does not know PocketMQ: this module
gives its server the wire format of PocketMQ's errors (errors_wire.py).
"""

from __future__ import annotations

import importlib.util
from typing import Final

from .errors import ConfigError
from .errors_wire import failure_of, ours
from .extras import pip_install
from .rpc.errors import CannotListen, RpcError, RpcFailure
from .rpc.server import Server

#: The values of the setting: PocketMQ's own server, and gRPC's library.
GRPC_CHOICES: Final = ("builtin", "grpcio")


def check_grpc(section: str, choice: str) -> None:
    """Raise ConfigError unless CHOICE, the setting `grpc` of SECTION, names a carrier that is installed."""
    if choice not in GRPC_CHOICES:
        raise ConfigError(
            f"{section}.grpc is {choice!r}: must be {' or '.join(GRPC_CHOICES)}",
            field="grpc",
            value=choice,
        )
    if choice == "grpcio":
        need_grpcio(f"{section}.grpc is {choice!r}")


def need_grpcio(who: str) -> None:
    """Raise ConfigError for WHO if grpcio is not installed. PocketMQ does not depend on it."""
    if importlib.util.find_spec("grpc") is None:
        raise ConfigError(f"{who}, which needs grpcio: {pip_install('grpcio')}")


class Http2Carrier(Server):
    """PocketMQ's own server over the methods of TABLES."""

    @staticmethod
    def describe(error: RpcError) -> RpcFailure:
        return failure_of(error)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on HOST and PORT (0: any free one), serve, and return the port; raise ConfigError if that fails."""
        try:
            return await super().start(host, port)
        except CannotListen as error:
            raise ours(error) from error.__cause__
