"""The broker process: requests in, store below, waiting and timers between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import BrokerConfig

if TYPE_CHECKING:
    from .broker import Broker

__all__ = ["Broker", "BrokerConfig"]


def __getattr__(name: str) -> Any:
    if name == "Broker":  # Only now: who reads the settings alone needs no broker.
        from .broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
