"""The addresses that official clients get for their connections.

A client sends in its requests for routes, and in its settings, the access point at which it found the broker. The
answer has the same one, because that address works: through a forwarded port, the name of a container, a Kubernetes
service, IPv6. `broker.v2_endpoints` overrides that, for a load balancer in front of several brokers. A client that
sends none gets the address of the broker.

Of a replica set, all live replicas are named, the master first: each accepts calls, and relays them to the master.
Only the master is named if the replicas are known by names instead of addresses, because clients refuse several names.
Clients of Node.js get only the address that they used: they join several into one name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ...proto.gen import rocketmq_v2_pb2 as v2
from .statuses import Refused

#: Languages, as clients name them, whose clients accept only one address; those in Node.js say
#: HTTP.
TAKE_ONE_ADDRESS: Final = frozenset({"HTTP", "NODE_JS"})
_PORT_MAX: Final = 65_535
_ADDRESSES_MAX: Final = 64


class Reach:
    """FIXED: the addresses "host:port" for all clients; empty: those that they dialled.

    OWN returns the broker's address, followed by those of its replicas.
    """

    def __init__(self, fixed: Sequence[str], own: Callable[[], Sequence[str]]) -> None:
        self._fixed = endpoints_at(fixed) if fixed else None
        self._own = own

    def of(self, dialled: v2.Endpoints, elsewhere: Collection[str] = ()) -> v2.Endpoints:
        """Return the addresses for a client that DIALLED an access point; raise Refused (ILLEGAL_ACCESS_POINT).

        ELSEWHERE: the addresses of other brokers, "host:port".
        """
        if self._fixed is not None:
            return self._fixed
        own = self._own()
        if not dialled.addresses:
            return endpoints_of_replicas(own)
        _check(dialled)
        pairs = [(address.host, address.port) for address in dialled.addresses]
        ours = [pair for pair in pairs if _written(*pair) not in elsewhere]
        if not ours:  # It dialled another broker, and found this one in a route: C++ asks any broker for assignments.
            return endpoints_of_replicas(own)
        if len(own) > 1 and all(_written(*pair) in own for pair in ours):
            return endpoints_of_replicas(own)
        if dialled.scheme and len(ours) == len(pairs):
            return dialled
        return _endpoints(ours)

    def of_settings(self, dialled: v2.Endpoints) -> v2.Endpoints:
        """Like `of`, for an optional access point: an invalid one is ignored."""
        try:
            found = self.of(dialled)
        except Refused:
            found = self.of(v2.Endpoints())
        if len(self._own()) > 1:  # Metrics go to one of them.
            del found.addresses[1:]
        return found


def endpoints_at(addresses: Sequence[str]) -> v2.Endpoints:
    """Return the endpoints of ADDRESSES: "name:port", "127.0.0.1:8081", "[::1]:8081"."""
    split = [address.rpartition(":") for address in addresses]
    return _endpoints([(host.strip("[]"), int(port)) for host, _, port in split])


def endpoints_of_replicas(addresses: Sequence[str]) -> v2.Endpoints:
    """Return the endpoints of ADDRESSES, the master's first; only that one if clients accept no more."""
    first = endpoints_at(addresses[:1])
    if first.scheme != v2.DOMAIN_NAME:
        for address in addresses[1:]:
            other = endpoints_at([address])
            if other.scheme == first.scheme:
                first.addresses.extend(other.addresses)
    return first


def _endpoints(addresses: Sequence[tuple[str, int]]) -> v2.Endpoints:
    schemes = {_scheme(host) for host, _ in addresses}
    return v2.Endpoints(
        scheme=schemes.pop() if len(schemes) == 1 else v2.DOMAIN_NAME,
        addresses=[v2.Address(host=host, port=port) for host, port in addresses],
    )


def _written(host: str, port: int) -> str:
    """Return HOST and PORT as in registrations."""
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
            f"endpoints: {len(dialled.addresses)} addresses, the limit is {_ADDRESSES_MAX}: use fewer",
            field="endpoints",
            limit=_ADDRESSES_MAX,
            value=len(dialled.addresses),
        )
    for address in dialled.addresses:
        if not address.host.strip() or not 0 < address.port <= _PORT_MAX:
            raise Refused(
                v2.ILLEGAL_ACCESS_POINT,
                f"endpoints: {address.host[:64]!r} port {address.port} cannot be connected to: use a host, and a"
                f" port from 1 to {_PORT_MAX}",
                field="endpoints",
                value=f"{address.host[:64]}:{address.port}",
            )
