"""Servers of tests, on the carrier that `pytest --grpc` asks for: our own, unless it says otherwise.

Tests that listen make settings and processes here, so that all of them run on either carrier.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.nameserver.config import NameServerConfig
from pocketmq.proto.carriers import GRPC_CHOICES
from pocketmq.tools import server_process

_chosen = GRPC_CHOICES[0]


def choose(grpc: str) -> None:
    """Have servers that are made from now on use the carrier GRPC."""
    global _chosen
    assert grpc in GRPC_CHOICES
    _chosen = grpc


def chosen() -> str:
    """Return the carrier that servers use."""
    return _chosen


def need_own(why: str) -> None:
    """Skip the test on grpcio, because of WHY."""
    if _chosen != "builtin":
        pytest.skip(why)


def broker_config(**settings: Any) -> BrokerConfig:
    """Return the settings of a broker, its carrier among them unless SETTINGS name one."""
    return BrokerConfig(**{"grpc": _chosen, **settings})


def nameserver_config(**settings: Any) -> NameServerConfig:
    """Return the settings of a name server, likewise."""
    return NameServerConfig(**{"grpc": _chosen, **settings})


class ServerProcess(server_process.ServerProcess):
    """A server in a process of its own, likewise."""

    def __init__(self, store: Path | None, *arguments: str, **settings: Any) -> None:
        choice = () if "--grpc" in arguments else ("--grpc", _chosen)
        super().__init__(store, *arguments, *choice, **settings)
