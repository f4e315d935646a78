"""A connection's bytes for tests, in the clear or over TLS.

Not asyncio's streams: there a write that fails throws away what was not read yet, and the last words of a server are
what tests want to hear.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final

_READ_BYTES: Final = 256 * 1024


class Wire:
    """An open connection. Bytes that the other end no longer takes are dropped, silently."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._incoming: ssl.MemoryBIO | None = None
        self._outgoing: ssl.MemoryBIO | None = None
        self._tls: ssl.SSLObject | None = None

    @classmethod
    async def connect(cls, port: int, tls: ssl.SSLContext | None = None) -> Wire:
        """Connect to PORT on this machine, with TLS if there is a context for it."""
        connected = socket.socket()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = cls(connected)
        try:
            await wire._loop.sock_connect(connected, ("127.0.0.1", port))
            if tls is not None:
                await wire._shake_hands(tls)
        except BaseException:
            connected.close()
            raise
        return wire

    @property
    def protocol(self) -> str | None:
        """What ALPN agreed on."""
        return self._tls.selected_alpn_protocol() if self._tls is not None else None

    async def _shake_hands(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_ciphered()
                if not await self._receive_ciphered():
                    raise ConnectionResetError("the handshake was broken off") from None
            else:
                await self._send_ciphered()
                return

    async def send(self, data: bytes) -> bool:
        """Send DATA whole, and say whether the other end was there to take it."""
        try:
            if self._tls is None:
                async with self._sending:
                    await self._loop.sock_sendall(self._socket, data)
            else:
                self._tls.write(data)
                await self._send_ciphered()
        except OSError:  # An SSLError is one.
            return False
        return True

    async def send_as_it_is(self, data: bytes) -> None:
        """Send DATA below TLS, as no TLS would."""
        async with self._sending:
            await self._loop.sock_sendall(self._socket, data)

    async def receive(self) -> bytes:
        """Return what comes next; b"" at the end, however it came."""
        while True:
            try:
                if self._tls is None:
                    return await self._loop.sock_recv(self._socket, _READ_BYTES)
                return self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                if not await self._receive_ciphered():
                    return b""
                with contextlib.suppress(OSError):  # There may be more to read, all the same.
                    await self._send_ciphered()
            except OSError:
                return b""

    async def _send_ciphered(self) -> None:
        assert self._outgoing is not None
        async with self._sending:
            if data := self._outgoing.read():
                await self._loop.sock_sendall(self._socket, data)

    async def _receive_ciphered(self) -> bool:
        assert self._incoming is not None
        try:
            data = await self._loop.sock_recv(self._socket, _READ_BYTES)
        except OSError:
            data = b""
        self._incoming.write(data)
        return bool(data)

    def half_close(self) -> None:
        """Send no more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Be gone."""
        self._socket.close()

    def break_off(self) -> None:
        """Be gone with a TCP reset, as of a process that was killed."""
        self._socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
        )
        self._socket.close()
