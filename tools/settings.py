"""All settings of a server process: the sections of one YAML file, and what options on the command line change.

`pocketmq.yaml`, in the root of the repository and in the package, is the sample with every key; `pocketmq serve
--print-config` prints it, and a test holds it equal to the defaults.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self

from ..broker.config import BrokerConfig
from ..broker.replication.config import ReplicationConfig
from ..nameserver.config import NameServerConfig
from ..proto.configuration import load_sections, parse_sections
from ..store.config import StoreConfig

SECTIONS: Final[dict[str, type[Any]]] = {
    "nameserver": NameServerConfig,
    "broker": BrokerConfig,
    "replication": ReplicationConfig,
    "store": StoreConfig,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A name server's, a broker's, its replica's and a store's settings."""

    nameserver: NameServerConfig
    broker: BrokerConfig
    replication: ReplicationConfig
    store: StoreConfig

    def with_options(
        self,
        *,
        store: Path | None = None,
        broker_port: int | None = None,
        broker_name: str | None = None,
        nameserver_port: int | None = None,
        nameservers: str | None = None,
        grpc: str | None = None,
        replication: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return these settings changed by what is given; REPLICATION has keys of that section, None: as it is."""
        listed = None if nameservers is None else tuple(nameservers.replace(";", ",").split(","))
        return replace(
            self,
            nameserver=_changed(self.nameserver, port=nameserver_port, grpc=grpc),
            broker=_changed(
                self.broker, port=broker_port, name=broker_name, nameservers=listed, grpc=grpc
            ),
            replication=_changed(self.replication, **(replication or {})),
            store=_changed(self.store, path=None if store is None else _absolute(store)),
        )


def _changed(config: Any, **values: object) -> Any:
    given = {name: value for name, value in values.items() if value is not None}
    return replace(config, **given) if given else config


def _absolute(path: str | Path) -> str:
    return str(Path(path).expanduser().absolute())


def default_store_path() -> str:
    """Return the folder of the store below the user's data folder."""
    return _absolute(Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "pocketmq/store")


def load_settings(file: Path | None) -> Settings:
    """Return the settings in FILE, or the defaults. Raises ConfigError."""
    defaults = {"store": {"path": default_store_path()}}
    if file is None:
        sections = parse_sections("", SECTIONS, defaults=defaults)
    else:
        sections = load_sections(file, SECTIONS, defaults)
    store = sections["store"]
    return Settings(**sections | {"store": replace(store, path=_absolute(store.path))})


def sample() -> str:
    """Return the text of the sample file."""
    return files(__name__.partition(".")[0]).joinpath("pocketmq.yaml").read_text("utf-8")
