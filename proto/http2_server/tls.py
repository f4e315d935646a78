"""TLS of one connection without a socket: what came in, plaintext out, and the other way round."""

from __future__ import annotations

import os
import ssl
import tempfile
from typing import Final

from ..rpc import Certificate

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
