"""TLS of one connection without a socket; the wire: its bytes to and from the transport, through TLS once it began."""

from __future__ import annotations

import os
import ssl
import tempfile
from typing import Any, Final

from .methods import Certificate

_READ_BYTES: Final = 64 * 1024
_PROTOCOLS: Final = ("h2", "http/1.1")


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """Return what handshakes with CERTIFICATE need: TLS 1.2 or later, HTTP/2 before HTTP/1.1 (ALPN)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(_PROTOCOLS))
    _load(context, certificate)
    return context


def _load(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Have CONTEXT show CERTIFICATE. OpenSSL takes files only: it gets one without a name where there are such."""
    content = certificate.key + b"\n" + certificate.chain
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("certificate"), "wb") as file:
            file.write(content)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.NamedTemporaryFile() as named:
        named.write(content)
        named.flush()
        context.load_cert_chain(named.name)


class TlsSession:
    """One connection's TLS, on the server's side. Errors of the peer are `ssl.SSLError`: close then."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False

    def receive(self, data: bytes) -> bytes:
        """Take DATA from the peer and return the plaintext that it completes; there may be something to `take`."""
        self._incoming.write(data)
        try:
            if not self._is_open:
                self._session.do_handshake()
                self._is_open = True
            return self._read_all()
        except ssl.SSLWantReadError:
            return b""

    def _read_all(self) -> bytes:
        pieces: list[bytes] = []
        try:
            while piece := self._session.read(_READ_BYTES):
                pieces.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass  # The rest is to come, or the peer sends no more: its end of the socket tells.
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes) -> None:
        """Encrypt DATA, which is then there to `take`."""
        self._session.write(data)

    def take(self) -> bytes:
        """Return what is to be written to the peer now."""
        return self._outgoing.read()


class Wire:
    """What a connection reads and writes over TRANSPORT."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._tls: TlsSession | None = None
        self.bytes_read = 0
        self.bytes_written = 0

    @property
    def is_secure(self) -> bool:
        """Has TLS begun?"""
        return self._tls is not None

    @property
    def unsent(self) -> int:
        """Bytes that were written and have not left this host."""
        size: int = self._transport.get_write_buffer_size()
        return size

    def secure(self, context: ssl.SSLContext) -> None:
        """Begin TLS: the handshake is what comes next."""
        self._tls = TlsSession(context)

    def plain(self, data: bytes) -> bytes:
        """Return the plaintext of DATA, which came. Raises SSLError if TLS fails; the peer is told why."""
        if self._tls is None:
            return data
        try:
            return self._tls.receive(data)
        finally:
            self._write_encrypted()  # The handshake goes on, or an alert says why not.

    def write(self, data: bytes) -> None:
        """Write DATA."""
        if self._tls is None:
            self.bytes_written += len(data)
            self._transport.write(data)
        else:
            self._tls.send(data)
            self._write_encrypted()

    def _write_encrypted(self) -> None:
        assert self._tls is not None
        data = self._tls.take()
        if data:
            self.bytes_written += len(data)
            self._transport.write(data)
