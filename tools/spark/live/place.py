"""Where the cluster is: name servers, or brokers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ....client.name_server_addresses import DEFAULT_NAME_SERVERS, named_or_default, parse_addresses
from ....proto.errors import ConfigError
from ..option_reader import OptionReader

PLACE_OPTIONS: Final = ("nameServer", "endpoints", "requestTimeoutMs")
REQUEST_TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses, host:port, of name servers, or of brokers; TIMEOUT_MS limits each request."""

    addresses: tuple[str, ...]
    are_brokers: bool = False
    timeout_ms: int = REQUEST_TIMEOUT_MS

    @property
    def text(self) -> str:
        """The addresses as a client takes them."""
        return ",".join(self.addresses)


def place_of(reader: OptionReader) -> Place:
    """Return what the options nameServer and endpoints say; without either the name servers of `named_or_default`."""
    servers, brokers = reader.text("nameServer"), reader.text("endpoints")
    if servers is not None and brokers is not None:
        raise ConfigError(
            "options nameServer and endpoints are both given: write one, name servers or brokers",
            field="nameServer",
        )
    name = "nameServer" if brokers is None else "endpoints"
    text = brokers or named_or_default(servers)
    try:
        addresses = parse_addresses(text)
    except ConfigError:
        raise reader.error(
            name, f"write host:port, several separated by ; (example: {DEFAULT_NAME_SERVERS})"
        ) from None
    timeout_ms = reader.number("requestTimeoutMs") or REQUEST_TIMEOUT_MS
    return Place(addresses, are_brokers=brokers is not None, timeout_ms=timeout_ms)
