"""The broker: it receives requests, stores messages through `store`, and runs the timers of delays and long polls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import BrokerConfig

if TYPE_CHECKING:
    from .broker import Broker

__all__ = ["Broker", "BrokerConfig"]


def __getattr__(name: str) -> Any:
    if name == "Broker":  # Imported on first use: reading settings does not need it.
        from .broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
