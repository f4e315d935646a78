"""One port for everybody: plaintext, TLS and `GET /metrics`, told apart by the first byte of a connection.

    0x16       a TLS handshake         ─► the secure carrier, which is made when the first one comes
    'P'        HTTP/2 in plaintext     ─► the plain carrier, at the direct port
    'G', 'H'   a plain HTTP request    ─► answered here: the page that was handed in
    else       closed

Clients of Apache RocketMQ 5 dial the port that they are told, Go, Java and C++ with TLS, the others without. A carrier
speaks one of the two, so this relay listens in front of two of them, on loopback, and passes bytes on as they are: it
knows nothing of TLS. Whoever is on this machine and knows the direct port has no need of it.

Bounds: `connections_max` at once, further ones are closed. The first byte within 10 s, a way to the carrier within 5
s, a handshake as long as the carrier's limit; the head of an HTTP request has 8 KiB and the time of the first byte. In
each direction 256 KiB may wait for a peer that does not read, and one read of 256 KiB more; then the other side is not
read. When one direction has ended, the other has 10 s to end as well, as has what waits when a side is gone. What is
over its time is closed, without a word.

A `Front` is a carrier itself. Its event loop owns everything; time comes from the timers handed in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Any, Final

from ..proto.errors import ConfigError, PocketMQError
from ..proto.listening import BACKLOG, PORT_MAX, address_of, is_loopback, listen
from ..proto.rpc import Carrier
from .timers import Timers
from .timing_wheel import Timer

logger = logging.getLogger(__name__)

FIRST_BYTE_MS: Final = 10_000
DIAL_MS: Final = 5_000
LAST_BYTES_MS: Final = 10_000
#: What may wait in one direction before the other side is not read any more.
BUFFER_BYTES: Final = 256 * 1024
#: The direct port lies so far above the public one, or below where there is no room above.
DIRECT_STEP: Final = 10_000
#: How long a stop waits for connections whose carrier has closed them.
_CLOSE_S: Final = 1.0

_TLS: Final = 0x16
_HTTP2: Final = ord("P")
_HTTP: Final = b"GH"
_HEAD_BYTES_MAX: Final = 8 * 1024
_HEAD_END: Final = b"\r\n\r\n"

#: Returns the whole answer to the plain HTTP request with this head.
Page = Callable[[bytes], Awaitable[bytes]]


class Front:
    """Listens before PLAIN and the carrier that MAKE_SECURE makes when it is first needed.

    CALLERS tells them who is at the other end: the address of a caller by that of the connection that relays it.
    """

    def __init__(
        self,
        plain: Carrier,
        make_secure: Callable[[], Awaitable[Carrier]],
        timers: Timers,
        *,
        callers: dict[str, str],
        connections_max: int,
        direct_port: int = 0,
        page: Page,
    ) -> None:
        self._plain = plain
        self._make_secure = make_secure
        self._wanted_direct_port = direct_port
        self.timers = timers
        self._callers = callers
        self._connections_max = connections_max
        self._page = page
        self._servers: list[asyncio.Server] = []
        self._inner_host = ""
        self._secure: Carrier | None = None
        self._secure_port: int | None = None
        self._securing = asyncio.Lock()
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._emptied: asyncio.Future[None] | None = None
        self._was_full = False
        #: What any connection reads goes here and on at once: a buffer for each read would cost more than the rest.
        self.buffer = bytearray(BUFFER_BYTES)
        #: Where the plain carrier listens, on loopback.
        self.direct_port = 0

    @property
    def direct_address(self) -> str:
        """Where callers on this machine reach the plain carrier itself."""
        return address_of(self._inner_host, self.direct_port)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    # --- a carrier

    async def start(self, host: str, port: int) -> int:
        """Listen at HOST and PORT, with the plain carrier at the direct port; raise ConfigError if that fails."""
        sockets = listen(host, port)
        try:
            bound: int = sockets[0].getsockname()[1]
            self._inner_host = host if is_loopback(host) else "127.0.0.1"
            self.direct_port = await self._start_plain(bound)
            loop = asyncio.get_running_loop()
            for socket in sockets:
                server = await loop.create_server(
                    lambda: _Connection(self), sock=socket, backlog=BACKLOG
                )
                self._servers.append(server)
        except BaseException:
            for socket in sockets:
                socket.close()
            await self._plain.stop(0)
            raise
        return bound

    async def _start_plain(self, public_port: int) -> int:
        wanted = self._wanted_direct_port
        if wanted:
            return await self._plain.start(self._inner_host, wanted)
        step = DIRECT_STEP if public_port + DIRECT_STEP <= PORT_MAX else -DIRECT_STEP
        try:
            return await self._plain.start(self._inner_host, public_port + step)
        except ConfigError as error:
            logger.warning("direct port is taken reason=%s", error.message)
            return await self._plain.start(self._inner_host, 0)

    async def stop(self, grace_s: float) -> None:
        """Take no new connections, stop the carriers with GRACE_S, and close what is left."""
        for server in self._servers:
            server.close()
        for connection in list(self._open):
            connection.give_up_if_idle()
        carriers = [self._plain] if self._secure is None else [self._plain, self._secure]
        await asyncio.gather(*(carrier.stop(grace_s) for carrier in carriers))
        await self._drain()

    async def _drain(self) -> None:
        """Let connections end whose carrier has closed them, and break off the rest."""
        emptied = self._emptied = asyncio.get_running_loop().create_future()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._open:
            await asyncio.wait((emptied,), timeout=_CLOSE_S)
        for connection in list(self._open):
            connection.abort()
        if self._open:
            await emptied

    # --- what connections ask

    def pass_on(self, count: int, transport: Any) -> None:
        """Write COUNT bytes of the buffer, which were just read, to TRANSPORT."""
        transport.write(memoryview(self.buffer)[:count])
        if transport.get_write_buffer_size():
            self.buffer = bytearray(BUFFER_BYTES)  # It may hold on to the other one.

    def admit(self, connection: _Connection) -> bool:
        """Note CONNECTION as open, if there is room."""
        if len(self._open) >= self._connections_max:
            if not self._was_full:
                logger.warning("connections refused limit=%d", self._connections_max)
            self._was_full = True
            return False
        self._was_full = False
        self._open.add(connection)
        return True

    def joined(self, connection: _Connection) -> None:
        """Note who is at the other end of CONNECTION, which is relayed from now on."""
        connection.relayed_from = connection.inner.name("sockname")
        self._callers[connection.relayed_from] = connection.name("peername")

    def closed(self, connection: _Connection) -> None:
        """Forget CONNECTION, both ends of which are closed."""
        self._open.discard(connection)
        self._callers.pop(connection.relayed_from, None)
        if not self._open and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def relay(self, connection: _Connection, *, secure: bool) -> None:
        """Find CONNECTION its carrier, in the background."""
        self._spawn(self._connect(connection, secure))

    def answer(self, connection: _Connection, head: bytes) -> None:
        """Have the request with HEAD answered, in the background."""
        self._spawn(self._answer(connection, head))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, connection: _Connection, head: bytes) -> None:
        try:
            connection.end_with(await self._page(head))
        except Exception:  # The edge: a bug of the page costs its own request.
            logger.exception("page failed")
            connection.abort()

    async def _connect(self, connection: _Connection, secure: bool) -> None:
        try:
            port = await self._opened_secure_port() if secure else self.direct_port
            await asyncio.get_running_loop().create_connection(
                lambda: connection.inner, self._inner_host, port
            )
        except (OSError, PocketMQError) as error:
            # A stopping carrier listens no more, which is no news.
            level = logging.WARNING if self._emptied is None else logging.DEBUG
            logger.log(level, "connection not served secure=%s reason=%s", secure, error)
            connection.abort()

    async def _opened_secure_port(self) -> int:
        """Return where the secure carrier listens, which starts now if it has not yet."""
        async with self._securing:
            if self._secure_port is None:
                carrier = await self._make_secure()
                self._secure_port = await carrier.start(self._inner_host, 0)
                self._secure = carrier
            return self._secure_port


class _End(asyncio.BufferedProtocol):
    """One end of a relayed connection: what it reads is written at the other end."""

    def __init__(self, front: Front, connection: _Connection) -> None:
        self._front = front
        self._connection = connection
        self.transport: Any = None
        self.other: Any = None
        #: Its peer sends no more.
        self.has_ended = False
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)
        # asyncio does so only where a socket names its protocol. Without, small answers wait 40 ms for the peer.
        self.transport.get_extra_info("socket").setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)

    def name(self, side: str) -> str:
        """Return the address of a SIDE, "sockname" or "peername"."""
        host, port, *_ = self.transport.get_extra_info(side)
        return address_of(host.removeprefix("::ffff:"), port)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._front.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._front.pass_on(nbytes, self.other.transport)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        self.has_ended = True
        if self.other is None:
            return False
        with contextlib.suppress(OSError):  # The peer of the other end may have gone.
            self.other.transport.write_eof()
        self._connection.limit(LAST_BYTES_MS)
        return not self.other.has_ended

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self.other is not None and not self.other.is_lost:
            if exc is None:
                self._connection.limit(LAST_BYTES_MS)
                self.other.transport.close()  # Once what it holds has left.
            else:
                self.other.transport.abort()
        self._connection.end_lost()


class _Inner(_End):
    """The end at the carrier."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connection.join()


class _Connection(_End):
    """The end at the client, and all that is known of the connection."""

    def __init__(self, front: Front) -> None:
        super().__init__(front, self)
        self._timer: Timer | None = None
        self._first = b""
        self.inner = _Inner(front, self)
        #: The relay's own address at the carrier, once there is one.
        self.relayed_from = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._front.admit(self):
            self.limit(FIRST_BYTE_MS)
        else:
            self.transport.abort()

    def buffer_updated(self, nbytes: int) -> None:
        if self.other is not None:
            self._front.pass_on(nbytes, self.other.transport)
            return
        self._first += self._front.buffer[:nbytes]
        kind = self._first[0]
        if kind in (_TLS, _HTTP2):
            self.transport.pause_reading()
            self.limit(DIAL_MS)
            self._front.relay(self, secure=kind == _TLS)
        elif kind in _HTTP:
            self._answer()
        else:
            logger.debug("connection of no known kind first_byte=%d", kind)
            self.transport.abort()

    def _answer(self) -> None:
        """Have the HTTP request answered if its head is there."""
        head, end, _ = self._first.partition(_HEAD_END)
        if end:
            self.transport.pause_reading()
            self._front.answer(self, head)
        elif len(self._first) > _HEAD_BYTES_MAX:
            self.transport.abort()

    def end_with(self, answer: bytes) -> None:
        """Close, once ANSWER has left."""
        self.transport.write(answer)
        self.limit(LAST_BYTES_MS)
        self.transport.close()

    def join(self) -> None:
        """Relay: the carrier is there."""
        if self.is_lost:
            self.inner.transport.abort()
            return
        self._unlimit()
        self.inner.other, self.other = self, self.inner
        self._front.joined(self)
        self.inner.transport.write(self._first)
        self._first = b""
        self.transport.resume_reading()

    # --- time

    def limit(self, wait_ms: int) -> None:
        """Break the connection off in WAIT_MS, unless it has gone on by then."""
        self._unlimit()
        self._timer = self._front.timers.after(wait_ms, self.abort)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._front.timers.cancel(self._timer)
            self._timer = None

    # --- its end

    def give_up_if_idle(self) -> None:
        """Break off if nothing is relayed: nobody will end it."""
        if self.other is None:
            self.abort()

    def abort(self) -> None:
        """Close both ends now."""
        for end in (self, self.inner):
            if end.transport is not None:
                end.transport.abort()

    def end_lost(self) -> None:
        """Be over once both ends are."""
        if self.is_lost and (self.inner.is_lost or self.inner.transport is None):
            self._unlimit()
            self._front.closed(self)
