"""The carriers that servers choose from, by the setting `grpc`: `carrier_http2.py` and `carrier_grpcio.py`."""

from __future__ import annotations

import importlib.util
from typing import Final

from .errors import ConfigError

#: As settings name them: our own, and gRPC's library.
GRPC_CHOICES: Final = ("own", "grpcio")


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
        raise ConfigError(f"{who}, which needs grpcio: pip install 'pocketmq[grpcio]'")
