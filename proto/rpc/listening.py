"""Listening sockets: how a server opens its port, the reasons why it cannot, and its certificate for TLS.

A port belongs to one server: SO_REUSEPORT is off, so a second server fails to start. SO_REUSEADDR is on, so a server
can restart while old connections are still closing.

Connections take file descriptors, and a process has a limited number. `connections_fitting` returns how many
connections leave half of them for files. If there is no descriptor for a waiting connection, `ListeningSocket` accepts
it with a spare one, sends the reason and closes it. Otherwise it would wait and wake the event loop for ever.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import ssl
import tempfile
from dataclasses import dataclass, field
from typing import Any, Final

from .errors import CannotListen

try:
    import resource
except ImportError:  # Windows.
    resource = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

PORT_MAX: Final = 65_535
#: Connections that the kernel completes before they are accepted.
BACKLOG: Final = 1024
#: Addresses that mean every network interface, for IPv4 and IPv6 if the machine has both.
_WILDCARDS: Final = ("", "0.0.0.0", "::")


#: Reserved descriptors, neither for files nor for connections: the event loop, listening, standard streams, locks.
_DESCRIPTORS_KEPT: Final = 64
_DESCRIPTORS_OF_WINDOWS: Final = 512
_DESCRIPTORS_OF_MACOS: Final = 10_240


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files (RLIMIT_NOFILE) as far as possible; return it."""
    if resource is None:
        return _DESCRIPTORS_OF_WINDOWS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (
        hard,
        _DESCRIPTORS_OF_MACOS,
    ):  # macOS reports no limit, but has one.
        with contextlib.suppress(OSError, ValueError):
            if soft != wanted:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def connections_fitting(wanted: int) -> int:
    """Return how many connections, up to WANTED, this process may have. Half of its descriptors are for files."""
    if resource is None:
        return wanted  # On Windows, sockets are not descriptors.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(wanted, soft // 2 - _DESCRIPTORS_KEPT))


def address_of(host: str, port: int) -> str:
    """Return "host:port", an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cannot_listen(host: str, port: int, reason: str) -> CannotListen:
    """Return the error of a server that cannot listen because of REASON."""
    address = address_of(host, port)
    return CannotListen(
        f"cannot listen on {address}: {reason}. Stop the other server, or set another host or port",
        address=address,
        port=port,
        reason=reason,
    )


def check_bindable(host: str, port: int) -> None:
    """Try to listen, and close the socket again; raise CannotListen with the operating system's reason."""
    _check_port(host, port)
    _listen_on(_places(host, port)[0], host, port).close()


def listen(host: str, port: int) -> list[ListeningSocket]:
    """Return sockets that listen on PORT (0: any free one, the same for all) at every address of HOST.

    Raises CannotListen if one of them fails.
    """
    _check_port(host, port)
    if host in _WILDCARDS and socket.has_dualstack_ipv6():
        return [_listen_everywhere(host, port)]
    found: list[ListeningSocket] = []
    with contextlib.ExitStack() as on_error:
        for place in _places(host, port):
            if found:
                place = (place[0], (place[1][0], found[0].getsockname()[1], *place[1][2:]))
            found.append(_listen_on(place, host, port))
            on_error.callback(found[-1].close)
        on_error.pop_all()
    return found


class ListeningSocket(socket.socket):
    """A listening socket that refuses connections for which there is no descriptor."""

    #: Connections refused for lack of a descriptor; logged at the first one and at each doubling.
    refused = 0
    _spare = -1

    @classmethod
    def of(cls, plain: socket.socket) -> ListeningSocket:
        """Return PLAIN as a listener. PLAIN must not be used any more."""
        listener = cls(plain.family, plain.type, plain.proto, plain.detach())
        listener._take_spare()
        return listener

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. BlockingIOError if none waits, or waiting ones had to be refused."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse_waiting()
            raise BlockingIOError(errno.EAGAIN, "no descriptor is left") from error

    def _refuse_waiting(self) -> None:
        """Accept and close waiting connections, up to the length of the backlog."""
        for _ in range(BACKLOG):
            self._drop_spare()
            try:
                accepted, _ = super().accept()
            except OSError:  # No connection waits, or another thread took the descriptor first.
                break
            _tell_why(accepted)
            accepted.close()
            self.refused += 1
            if self.refused.bit_count() == 1:
                logger.warning("connections refused descriptors_left=0 count=%d", self.refused)
        self._take_spare()

    def _take_spare(self) -> None:
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _drop_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def close(self) -> None:
        self._drop_spare()
        super().close()


#: HTTP/2's empty SETTINGS, and GOAWAY with no stream, ENHANCE_YOUR_CALM and the reason.
_REASON: Final = (
    b"the server can open no more files, so it takes no more connections now: try again later"
)
_GOAWAY: Final = (
    bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    + (8 + len(_REASON)).to_bytes(3)
    + bytes((7, 0, 0, 0, 0, 0))
    + bytes((0, 0, 0, 0, 0, 0, 0, 11))
    + _REASON
)


def _tell_why(accepted: socket.socket) -> None:
    """Send the reason of the refusal to a peer that has started plain HTTP/2; close other connections without one."""
    accepted.setblocking(False)
    with contextlib.suppress(OSError):
        if accepted.recv(1 << 16).startswith(b"PRI"):
            accepted.send(_GOAWAY)
            accepted.shutdown(socket.SHUT_WR)


def _check_port(host: str, port: int) -> None:
    if not 0 <= port <= PORT_MAX:  # getaddrinfo takes it modulo 65536.
        raise cannot_listen(host, port, f"a port must be from 0 to {PORT_MAX}")


#: A family of addresses and an address in it.
_Place = tuple[int, tuple[Any, ...]]


def _places(host: str, port: int) -> list[_Place]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise cannot_listen(host, port, _reason(error)) from error
    return list(dict.fromkeys((family, where) for family, _, _, _, where in found))


def _listen_on(place: _Place, host: str, port: int) -> ListeningSocket:
    family, where = place
    try:
        return ListeningSocket.of(socket.create_server(where, family=family, backlog=BACKLOG))
    except OSError as error:
        raise cannot_listen(host, port, _reason(error)) from error


def _listen_everywhere(host: str, port: int) -> ListeningSocket:
    try:
        return ListeningSocket.of(
            socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
        )
    except OSError as error:
        raise cannot_listen(host, port, _reason(error)) from error


def _reason(error: OSError) -> str:
    number = error.errno or 0
    # The plain text: create_server adds the address, which the message already has.
    return os.strerror(number) if number > 0 else error.strerror or str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The certificate of one side, as PEM: with those between it and a root, and its key.

    AUTHORITIES, also PEM, are for mutual TLS: the other side must show a certificate signed by one of them, with any
    name. Empty: a server does not request a certificate.
    """

    chain: bytes
    key: bytes = field(repr=False)
    authorities: bytes = b""

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a server's handshakes: TLS 1.2 or later, HTTP/2 before HTTP/1.1 (ALPN).

        Raises ssl.SSLError if the certificate, its key or an authority is invalid.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["h2", "http/1.1"])
        if self.authorities:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a client's handshakes, which trusts only AUTHORITIES. Raises ssl.SSLError likewise."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION
        if self.authorities:
            context.load_verify_locations(cadata=self.authorities.decode("ascii", "replace"))
        # OpenSSL reads only files: it gets an anonymous one where the system has these.
        content = self.key + b"\n" + self.chain
        if hasattr(os, "memfd_create"):
            with open(os.memfd_create("certificate"), "wb") as file:
                file.write(content)
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        else:
            with tempfile.NamedTemporaryFile() as named:
                named.write(content)
                named.flush()
                context.load_cert_chain(named.name)
        return context
