"""The addresses of name servers in settings and the environment: "host:port", separated by commas.

Commands read them before they know whether they need a client, so this file imports no client.
"""

from __future__ import annotations

import os
import re
from typing import Final

from ..proto.errors import ConfigError

DEFAULT_NAME_SERVERS: Final = "127.0.0.1:9876"
#: The environment variable that is used if a program sets no addresses.
NAMESERVER_VARIABLE: Final = "POCKETMQ_NAMESERVER"
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s\[\]]+):(\d{1,5})")


def parse_addresses(text: str, field: str = "nameservers") -> tuple[str, ...]:
    """Return the addresses in TEXT, "host:port" separated by commas, semicolons or spaces; errors name FIELD."""
    addresses = tuple(part for part in re.split(r"[,;\s]+", text) if part)
    if not addresses:
        raise ConfigError(
            f"{field} is {text!r}: write at least one host:port, for example {DEFAULT_NAME_SERVERS}",
            field=field,
        )
    for address in addresses:
        found = _ADDRESS.fullmatch(address)
        if not found or not 0 < int(found[2]) < 65536:
            raise ConfigError(
                f"{field}: {address!r} is no host:port: write, for example, {DEFAULT_NAME_SERVERS}",
                field=field,
                value=address,
            )
    return addresses


def named_or_default(nameservers: str | None) -> str:
    """Return NAMESERVERS; None: those of $POCKETMQ_NAMESERVER, or else DEFAULT_NAME_SERVERS. Raises ConfigError."""
    if nameservers is not None:
        return nameservers
    if not (text := os.environ.get(NAMESERVER_VARIABLE)):
        return DEFAULT_NAME_SERVERS
    parse_addresses(text, f"${NAMESERVER_VARIABLE}")
    return text
