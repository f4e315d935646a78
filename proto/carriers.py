"""The carriers that servers choose from, by the setting `grpc`: PocketMQ's own HTTP/2, and grpcio (carrier_grpcio.py).

    carrier = Http2Carrier([service.methods()], limits=Limits())
    port = await carrier.start("127.0.0.1", 0)
    await carrier.stop(grace_s=2.0)

`Http2Carrier` has plaintext, TLS and pages at one port. `rpc/` has no PocketMQ in it: its server learns here how
PocketMQ's errors travel (errors_wire.py).
"""

from __future__ import annotations

import importlib.util
from typing import Final

from .errors import ConfigError
from .errors_wire import failure_of, ours
from .extras import pip_install
from .rpc.errors import CannotListen, RpcError, RpcFailure
from .rpc.server import Server

#: As settings name them: our own, and gRPC's library.
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
    """Raise ConfigError for WHO if gRPC's own library is not installed: PocketMQ itself has no need of it."""
    if importlib.util.find_spec("grpc") is None:
        raise ConfigError(f"{who}, which needs grpcio: {pip_install('grpcio')}")


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
