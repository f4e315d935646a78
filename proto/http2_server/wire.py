"""The bytes of one connection to and from its transport, through TLS once that has begun; all are counted."""

from __future__ import annotations

import ssl
from typing import Any

from .tls import TlsSession


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
