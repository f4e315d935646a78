"""Taking a port: sockets that listen, and the one sentence for why they cannot be had.

A port belongs to one server: SO_REUSEPORT is off, so that a second one fails to start. SO_REUSEADDR is on, so that a
server can start again at once where connections of the last one still die.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from typing import Any, Final

from .errors import ConfigError

PORT_MAX: Final = 65_535
#: Connections that the kernel completes before they are accepted.
BACKLOG: Final = 1024
#: Every network of the machine; both of IPv4 and IPv6 where the machine has both.
_WILDCARDS: Final = ("", "0.0.0.0", "::")


def address_of(host: str, port: int) -> str:
    """Return "host:port", an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Does HOST mean this machine alone?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def cannot_listen(host: str, port: int, reason: str) -> ConfigError:
    """Return the error of a server that REASON keeps from listening."""
    address = address_of(host, port)
    return ConfigError(
        f"cannot listen on {address}: {reason}; stop the other server, or set another host or port",
        address=address,
        port=port,
        reason=reason,
    )


def check_bindable(host: str, port: int) -> None:
    """Try to listen and let go again; raise ConfigError with the operating system's reason."""
    _check_port(host, port)
    _listen_on(_places(host, port)[0], host, port).close()


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on PORT (0: any free one, the same for all) at every address of HOST.

    Raises ConfigError if one of them cannot be had.
    """
    _check_port(host, port)
    if host in _WILDCARDS and socket.has_dualstack_ipv6():
        return [_listen_everywhere(host, port)]
    found: list[socket.socket] = []
    with contextlib.ExitStack() as on_error:
        for place in _places(host, port):
            if found:
                place = (place[0], (place[1][0], found[0].getsockname()[1], *place[1][2:]))
            found.append(_listen_on(place, host, port))
            on_error.callback(found[-1].close)
        on_error.pop_all()
    return found


def _check_port(host: str, port: int) -> None:
    if not 0 <= port <= PORT_MAX:  # getaddrinfo takes it modulo 65536.
        raise cannot_listen(host, port, f"a port lies between 0 and {PORT_MAX}")


#: A family of addresses and an address in it.
_Place = tuple[int, tuple[Any, ...]]


def _places(host: str, port: int) -> list[_Place]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise cannot_listen(host, port, _reason(error)) from error
    return list(dict.fromkeys((family, where) for family, _, _, _, where in found))


def _listen_on(place: _Place, host: str, port: int) -> socket.socket:
    family, where = place
    try:
        return socket.create_server(where, family=family, backlog=BACKLOG)
    except OSError as error:
        raise cannot_listen(host, port, _reason(error)) from error


def _listen_everywhere(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
        )
    except OSError as error:
        raise cannot_listen(host, port, _reason(error)) from error


def _reason(error: OSError) -> str:
    number = error.errno or 0
    # The plain words: create_server adds the address, which stands in the sentence already.
    return os.strerror(number) if number > 0 else error.strerror or str(error)
