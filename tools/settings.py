"""All settings of a server process: the sections of one YAML file, and what options on the command line change.

`pocketmq.yaml`, in the root of the repository and in the package, is the sample with every key; `pocketmq serve
--print-config` prints it, and a test holds it equal to the defaults.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self

from ..broker.config import BrokerConfig
from ..broker.replication.config import ReplicationConfig
from ..nameserver.config import NameServerConfig
from ..proto.configuration import load_sections, parse_sections
from ..store.config import StoreConfig
from .log_lines import LogConfig

SECTIONS: Final[dict[str, type[Any]]] = {
    "nameserver": NameServerConfig,
    "broker": BrokerConfig,
    "replication": ReplicationConfig,
    "store": StoreConfig,
    "log": LogConfig,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A name server's, a broker's, its replica's, a store's and the log's settings.

    origins: of "section.key" where its value came from; without one it is the default.
    """

    nameserver: NameServerConfig
    broker: BrokerConfig
    replication: ReplicationConfig
    store: StoreConfig
    log: LogConfig
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def sections(self) -> dict[str, Any]:
        """Return the sections by title."""
        return {title: getattr(self, title) for title in SECTIONS}

    def given(self, origin: str, **sections: Mapping[str, Any]) -> Self:
        """Return these settings changed by what SECTIONS hold by key, which came from ORIGIN; None: as it is."""
        changes, origins = dict[str, Any](), dict(self.origins)
        for title, values in sections.items():
            told = {key: value for key, value in values.items() if value is not None}
            if told:
                changes[title] = replace(getattr(self, title), **told)
                origins |= dict.fromkeys((f"{title}.{key}" for key in told), origin)
        return replace(self, **changes, origins=origins)

    def with_section(self, title: str, section: Any, origin: str) -> Self:
        """Return these settings with SECTION as TITLE; what is another value in it came from ORIGIN."""
        before = getattr(self, title)
        names = [one.name for one in fields(section)]
        changed = {
            name: getattr(section, name)
            for name in names
            if getattr(section, name) != getattr(before, name)
        }
        return self.given(origin, **{title: changed})

    def with_options(  # noqa: PLR0913  (options, by name)
        self,
        *,
        broker_host: str | None = None,
        nameserver_host: str | None = None,
        store: Path | None = None,
        broker_port: int | None = None,
        broker_name: str | None = None,
        advertised_address: str | None = None,
        nameserver_port: int | None = None,
        nameservers: str | None = None,
        grpc: str | None = None,
        replication: Mapping[str, Any] | None = None,
        log_level: str | None = None,
    ) -> Self:
        """Return these settings changed by what is given; REPLICATION has keys of that section, None: as it is."""
        listed = None if nameservers is None else tuple(nameservers.replace(";", ",").split(","))
        return self.given(
            "option",
            nameserver={"host": nameserver_host, "port": nameserver_port, "grpc": grpc},
            broker={
                "host": broker_host,
                "port": broker_port,
                "name": broker_name,
                "advertised_address": advertised_address,
                "nameservers": listed,
                "grpc": grpc,
            },
            replication=replication or {},
            store={"path": None if store is None else _absolute(store)},
            log={"level": log_level},
        )


def _absolute(path: str | Path) -> str:
    return str(Path(path).expanduser().absolute())


def default_store_path() -> str:
    """Return the folder of the store below the user's data folder."""
    return _absolute(Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "pocketmq/store")


def load_settings(file: Path | None) -> Settings:
    """Return the settings in FILE, or the defaults. Raises ConfigError."""
    defaults = {"store": {"path": default_store_path()}}
    origins = {"store.path": "the user's data folder"}
    if file is None:
        sections = parse_sections("", SECTIONS, defaults=defaults)
    else:
        sections = load_sections(file, SECTIONS, defaults, origins)
    store = sections["store"]
    return Settings(
        **sections | {"store": replace(store, path=_absolute(store.path))}, origins=origins
    )


def sample() -> str:
    """Return the text of the sample file."""
    return files(__name__.partition(".")[0]).joinpath("pocketmq.yaml").read_text("utf-8")
