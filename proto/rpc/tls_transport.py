"""TLS of a server's connection: an SSL object without a socket, between the connection and asyncio's transport.

Before TLS starts, bytes pass unchanged.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence
from typing import Any, Final

_READ_BYTES: Final = 64 * 1024


class TlsSession:
    """The server's side of TLS on one connection. Errors of the peer are `ssl.SSLError`: close the connection then."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False
        #: Has the peer ended TLS, and was it answered? It waits for the end of the connection.
        self.is_over = False

    def receive(self, data: bytes) -> bytes:
        """Process DATA from the peer and return the plaintext that it completes; then call `take`."""
        self._incoming.write(data)
        try:
            if not self._is_open:
                self._session.do_handshake()
                self._is_open = True
            return self._read_all()
        except ssl.SSLWantReadError:
            return b""  # The handshake is incomplete.

    def _read_all(self) -> bytes:
        pieces: list[bytes] = []
        with contextlib.suppress(ssl.SSLWantReadError):  # The rest has not arrived.
            while piece := self._session.read(_READ_BYTES):
                pieces.append(piece)
            self.is_over = True
            with contextlib.suppress(ssl.SSLError):
                self._session.unwrap()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def certificate_names(self) -> Sequence[str]:
        """Return the names in the peer's verified certificate: the common name, then alternative names."""
        shown: Any = self._session.getpeercert() or {}
        common = [
            value
            for part in shown.get("subject", ())
            for name, value in part
            if name == "commonName"
        ]
        return (*common, *(value for _, value in shown.get("subjectAltName", ())))

    def send(self, data: bytes) -> None:
        """Encrypt DATA; then call `take`."""
        self._session.write(data)

    def take(self) -> bytes:
        """Return the bytes to write to the peer now."""
        return self._outgoing.read()


class TlsTransport:
    """Reads and writes the bytes of a connection over TRANSPORT."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._tls: TlsSession | None = None
        self.bytes_read = 0
        self.bytes_written = 0

    @property
    def is_secure(self) -> bool:
        """Return whether TLS has started."""
        return self._tls is not None

    @property
    def certificate_names(self) -> Sequence[str]:
        """The names in the peer's certificate, if one was requested."""
        return () if self._tls is None else self._tls.certificate_names()

    @property
    def is_over(self) -> bool:
        """Has the peer ended TLS?"""
        return self._tls is not None and self._tls.is_over

    @property
    def unsent(self) -> int:
        """Bytes that were written but are still on this host."""
        size: int = self._transport.get_write_buffer_size()
        return size

    def secure(self, context: ssl.SSLContext) -> None:
        """Start TLS: the handshake follows."""
        self._tls = TlsSession(context)

    def plain(self, data: bytes) -> bytes:
        """Return the plaintext of the received DATA. Raises SSLError if TLS fails; the peer gets an alert."""
        if self._tls is None:
            return data
        try:
            return self._tls.receive(data)
        finally:
            self._write_encrypted()  # The handshake continues, or an alert gives the reason.

    def write(self, data: bytes) -> None:
        """Write DATA, unless the peer has ended TLS."""
        if self._tls is None:
            self.bytes_written += len(data)
            self._transport.write(data)
        elif not self._tls.is_over:
            self._tls.send(data)
            self._write_encrypted()

    def _write_encrypted(self) -> None:
        assert self._tls is not None
        data = self._tls.take()
        if data:
            self.bytes_written += len(data)
            self._transport.write(data)
