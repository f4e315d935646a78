"""The test kit: a broker as pytest fixtures, loaded by pytest through its entry point; and as a container.

    def test_an_order_is_billed(pocketmq_broker, pocketmq_topic, pocketmq_group):
        …

Importing this costs nothing: neither pytest nor the broker, nor numpy, is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .container import PocketMQContainer
    from .local_broker import AsyncLocalBroker, LocalBroker

#: Read by pytest when it loads this as a plugin.
pytest_plugins: Final = ("pocketmq.tools.testing.plugin",)

_PLACES: Final = {
    "AsyncLocalBroker": "local_broker",
    "LocalBroker": "local_broker",
    "PocketMQContainer": "container",
}

__all__ = ["AsyncLocalBroker", "LocalBroker", "PocketMQContainer"]


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{place}", __name__), name)
