"""Which addresses a client is told to connect to: those that it has dialled, unless the settings name others.

A client says in its questions for routes, and in its settings, at which access point it found the broker. The answer
names the same one: whatever lies between (a forwarded port, a container's name, a service of Kubernetes, IPv6), the
client has just come that way. `broker.v2_endpoints` overrules that, for a balancer in front of several brokers. A
client that does not say is told the broker's own address. Of an access point that lists several brokers, ours is the
address that no other broker is registered under.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ...proto.gen import rocketmq_v2_pb2 as v2
from .statuses import Refused

_PORT_MAX: Final = 65_535
_ADDRESSES_MAX: Final = 64


class Reach:
    """FIXED: "host:port" of the addresses that every client is told; none: as it dialled. OWN: the broker's address."""

    def __init__(self, fixed: Sequence[str], own: Callable[[], str]) -> None:
        self._fixed = endpoints_at(fixed) if fixed else None
        self._own = own

    def of(self, dialled: v2.Endpoints, elsewhere: Collection[str] = ()) -> v2.Endpoints:
        """Return what a client that DIALLED an access point connects to; raise Refused (ILLEGAL_ACCESS_POINT).

        ELSEWHERE: the addresses of other brokers, "host:port".
        """
        if self._fixed is not None:
            return self._fixed
        if not dialled.addresses:
            return endpoints_at([self._own()])
        _check(dialled)
        pairs = [(address.host, address.port) for address in dialled.addresses]
        ours = [pair for pair in pairs if _written(*pair) not in elsewhere]
        if dialled.scheme and (len(ours) == len(pairs) or not ours):
            return dialled
        return _endpoints(ours or pairs)

    def of_settings(self, dialled: v2.Endpoints) -> v2.Endpoints:
        """Return the same for an access point that a client need not have: one that is none counts as not said."""
        try:
            return self.of(dialled)
        except Refused:
            return self.of(v2.Endpoints())


def endpoints_at(addresses: Sequence[str]) -> v2.Endpoints:
    """Return the endpoints of ADDRESSES: "name:port", "127.0.0.1:8081", "[::1]:8081"."""
    split = [address.rpartition(":") for address in addresses]
    return _endpoints([(host.strip("[]"), int(port)) for host, _, port in split])


def _endpoints(addresses: Sequence[tuple[str, int]]) -> v2.Endpoints:
    schemes = {_scheme(host) for host, _ in addresses}
    return v2.Endpoints(
        scheme=schemes.pop() if len(schemes) == 1 else v2.DOMAIN_NAME,
        addresses=[v2.Address(host=host, port=port) for host, port in addresses],
    )


def _written(host: str, port: int) -> str:
    """Return HOST and PORT as registrations have them."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _scheme(host: str) -> v2.AddressScheme:
    try:
        version = ipaddress.ip_address(host.strip("[]")).version
    except ValueError:
        return v2.DOMAIN_NAME
    return v2.IPv4 if version == 4 else v2.IPv6


def _check(dialled: v2.Endpoints) -> None:
    if len(dialled.addresses) > _ADDRESSES_MAX:
        raise Refused(
            v2.ILLEGAL_ACCESS_POINT,
            f"endpoints: {len(dialled.addresses)} addresses, the limit is {_ADDRESSES_MAX}: name fewer",
            field="endpoints",
            limit=_ADDRESSES_MAX,
            value=len(dialled.addresses),
        )
    for address in dialled.addresses:
        if not address.host.strip() or not 0 < address.port <= _PORT_MAX:
            raise Refused(
                v2.ILLEGAL_ACCESS_POINT,
                f"endpoints: {address.host[:64]!r} port {address.port} is nothing to connect to: give a host, and a"
                f" port between 1 and {_PORT_MAX}",
                field="endpoints",
                value=f"{address.host[:64]}:{address.port}",
            )
