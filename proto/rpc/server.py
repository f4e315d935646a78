"""A gRPC server on HTTP/2: plaintext, TLS and an HTML page on one port.

    server = Server([service(…)], limits=Limits())
    port = await server.start("127.0.0.1", 0)
    await server.stop(grace_s=2.0)

`connection.py` is the protocol and `conversation.py` adds gRPC, both without sockets and clocks. `server_link.py`
connects one socket to them. This file has what all connections share: the port, the certificate, deadlines, and a
graceful stop.

A connection beyond `Limits.connections_max` is closed at once. `stop` closes the port, sends GOAWAY in two steps on
every connection, and calls `on_end` of every receiver. Calls still open after the grace period fail with Stopping. Not
thread-safe: its event loop owns everything.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from itertools import islice
from random import Random
from typing import Any, Final

from .carrier import ConnectionFigures, ConnectionTotals
from .conversation import OpenCall
from .deadlines import Deadlines
from .errors import Describe, RpcError, RpcFailure, described
from .limits import ConnectionLimits, Limits
from .listening import BACKLOG, Certificate, listen
from .methods import MethodTable
from .other_protocol import OtherProtocol
from .pages import Page
from .served import Served
from .server_link import ServerLink, loop_ms
from .turn_loop import reading

logger = logging.getLogger(__name__)

#: Bytes of one read from a connection; of one with large bodies.
READ_BYTES: Final = 32 * 1024
LARGE_READ_BYTES: Final = 256 * 1024
#: The share of the grace period that calls and streams have to end by themselves.
_WIND_DOWN_SHARE: Final = 0.8
#: How long a stop waits for peers to read what is left.
_CLOSE_S: Final = 1.0
#: How often `replace` checks whether calls of the old tables have ended.
_LOOK_S: Final = 0.005
#: Turns of the event loop from the listening socket to the protocol, plus one.
_ACCEPT_TURNS: Final = 3
#: Delay between freeing much memory and returning it to the system, and the minimum interval between two returns.
_GIVE_BACK_MS: Final = 1_000
#: Minimum interval between two log lines about refused connections.
_TELL_MS: Final = 1_000
#: Connections of one age do not all end together: they get up to this share less.
_AGE_SPREAD: Final = 0.1


class Server:
    """One gRPC server over the methods of TABLES. Its event loop owns it."""

    def __init__(
        self,
        tables: Iterable[MethodTable],
        *,
        limits: Limits | None = None,
        certificate: Callable[[], Awaitable[Certificate]] | None = None,
        secure_only: bool = False,
        page: Page | None = None,
        random: Random | None = None,
        describe: Describe | None = None,
    ) -> None:
        """CERTIFICATE is called at each handshake and returns the one to show; None: there is no TLS.

        SECURE_ONLY: plaintext is refused.
        PAGE answers GET and HEAD, in HTTP/1.1 and HTTP/2, and POST in HTTP/1.1; None: they are refused.
        """
        self.limits = limits or Limits()
        self.connection_limits = ConnectionLimits(
            streams_max=self.limits.concurrent_streams_max,
            field_list_bytes_max=self.limits.metadata_bytes_max,
            stalled_ms=self.limits.stalled_ms,
        )
        self._certificate = certificate
        self.is_secure = certificate is not None
        self.secure_only = secure_only
        self._random = random or Random()
        self.deadlines = Deadlines(self._wake_at)
        self.now_ms: Callable[[], int] = loop_ms
        self.served = Served(
            tables,
            self.limits,
            self.deadlines,
            self.now_ms,
            self.spawn,
            page,
            describe or self.describe,
            released=self._plan_to_give_back,
        )
        self.other: OtherProtocol | None = None
        self._is_giving_back = False
        #: All connections read into this buffer, and empty it at once.
        self.large_view = memoryview(bytearray(LARGE_READ_BYTES))
        self.view = self.large_view[:READ_BYTES]
        self._servers: list[asyncio.Server] = []
        self._open: dict[int, ServerLink] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._shown: tuple[Certificate, ssl.SSLContext] | None = None
        self._was_full = False
        self._quiet_until_ms = 0
        self._accepted = 0
        self._refused = 0
        self._closed: Counter[str] = Counter()

    @staticmethod
    def describe(error: RpcError) -> RpcFailure:
        """Return the sent form of ERROR, unless another function was given."""
        return described(error)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen on HOST and PORT (0: any free one), serve, and return the port; raise CannotListen if that fails."""
        assert not self._servers, "a server starts once"
        self.loop = asyncio.get_running_loop()
        self.reading = reading(self.loop)
        self.served.begin()
        sockets = listen(host, port)
        bound: int = sockets[0].getsockname()[1]
        for socket in sockets:
            server = await self.loop.create_server(self._accept, sock=socket, backlog=BACKLOG)
            self._servers.append(server)
        return bound

    def speak(self, other: OtherProtocol | None) -> None:
        """Serve the protocol OTHER too, on new connections from now on; None: HTTP only."""
        self.other = other

    async def replace(
        self, tables: Iterable[MethodTable], grace_s: float, *, page: Page | None = None
    ) -> None:
        """Serve TABLES and PAGE from now on, on the same port and the open connections.

        Open calls belong to the old tables: their streams are asked to end, and calls that are open after GRACE_S
        seconds fail with Stopping. Returns once they have ended, except for calls that outlast their tables.
        """
        self.page = page
        self.served.serve(tables, page)
        before: list[OpenCall] = []
        for connection in self._open.values():
            if connection.conversation is not None:
                calls = connection.conversation.calls()
                before += [call for call in calls if not call.outlasts]
        for call in before:
            call.wind_down()
        self._schedule_all_flushes()
        deadline_s = self.loop.time() + grace_s
        left = before
        while left and self.loop.time() < deadline_s:
            await asyncio.sleep(min(_LOOK_S, grace_s))
            left = [call for call in left if not call.is_over]
        for call in left:
            call.give_up()
        self._schedule_all_flushes()

    def _schedule_all_flushes(self) -> None:
        for connection in list(self._open.values()):
            if connection.conversation is not None:
                connection.conversation.schedule_flush()

    async def stop(self, grace_s: float = 2.0) -> None:
        """Refuse new calls, let open ones end within GRACE_S seconds, fail the rest, and close."""
        if not self._servers:
            return
        await self._stop_listening()
        for connection in list(self._open.values()):
            connection.goaway("stopped")
            if connection.conversation is not None:
                connection.conversation.wind_down()
        await self._wait_closed(grace_s * _WIND_DOWN_SHARE)
        for connection in list(self._open.values()):
            connection.give_up("stopped")
        await self._wait_closed(_CLOSE_S)
        for connection in list(self._open.values()):
            connection.abort("stopped")
        await self._wait_closed(_CLOSE_S)
        self.served.inflater.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _stop_listening(self) -> None:
        """Accept no more connections. Finish accepted ones first: asyncio's server would forget them unclosed."""
        servers, self._servers = self._servers, []
        self.served.begin_to_stop()
        for server in servers:
            for listening in server.sockets:
                self.loop.remove_reader(listening.fileno())
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        for server in servers:
            server.close()

    def _accept(self) -> ServerLink:
        """Return the handler of a new connection; it has number 0 if the limit is reached or the server is stopping."""
        if self.served.stopping:
            return ServerLink(self, 0)
        if len(self._open) >= self.limits.connections_max:
            if not self._was_full:
                logger.warning("connections refused limit=%d", self.limits.connections_max)
            self._was_full = True
            self._refused += 1
            return ServerLink(self, 0)
        self._was_full = False
        self._accepted += 1
        connection = self._open[self._accepted] = ServerLink(self, self._accepted)
        return connection

    async def _wait_closed(self, timeout_s: float) -> None:
        """Return when no connection is open any more, or after TIMEOUT_S."""
        if self._open and timeout_s > 0:
            self._emptied = self.loop.create_future()
            await asyncio.wait((self._emptied,), timeout=timeout_s)

    def closed(self, number: int, reason: str) -> None:
        """Forget connection NUMBER, which has ended for REASON."""
        if self._open.pop(number, None) is not None:
            self._closed[reason] += 1
        if not self._open and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def age_ms(self) -> int:
        """Return the maximum age of a new connection; 0: no limit."""
        spread = 1 - self._random.random() * _AGE_SPREAD
        return int(self.limits.connection_age_ms * spread)

    async def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of a new handshake; None, and a log line, if there is none."""
        assert self._certificate is not None
        try:
            certificate = await self._certificate()
            if self._shown is None or self._shown[0] is not certificate:
                self._shown = certificate, certificate.server_context()
        except (RpcError, ssl.SSLError, OSError) as error:
            logger.warning("TLS not served reason=%s", error)
            return None
        return self._shown[1]

    def handshake_failed(self, peer: str, error: ssl.SSLError) -> None:
        """Count a failed TLS handshake of PEER. If clients need certificates, log it, up to one line per second."""
        reason = getattr(error, "verify_message", "") or (error.reason or "").lower()
        reason = reason.replace("_", " ") or str(error)
        now_ms = self.now_ms()
        if self._shown is None or not self._shown[0].authorities or now_ms < self._quiet_until_ms:
            logger.debug("TLS failed peer=%s reason=%s", peer, reason)
            return
        self._quiet_until_ms = now_ms + _TELL_MS
        logger.warning(
            "client refused at the handshake peer=%s reason=%s: it must show a certificate of an authority that this"
            " server trusts",
            peer,
            reason,
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run WORK as a task. A stop cancels it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _plan_to_give_back(self) -> None:
        """Return freed memory to the system soon."""
        if not self._is_giving_back:
            self._is_giving_back = True
            self.deadlines.add(self.now_ms() + _GIVE_BACK_MS, self._give_back)

    def _give_back(self) -> None:
        self._is_giving_back = False
        self.loop.run_in_executor(None, _trim_heap)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def connection_figures(self, first_id: int, limit: int) -> list[ConnectionFigures]:
        """Return up to LIMIT open connections in the order of their ids, from FIRST_ID on."""
        now_ms = self.now_ms()
        found = (
            open_ for number, open_ in self._open.items() if number >= first_id and open_.is_made
        )
        return [connection.figures(now_ms) for connection in islice(found, limit)]

    def close_connection(self, number: int) -> bool:
        """Close connection NUMBER and fail its open calls; return whether it was open."""
        found = self._open.get(number)
        if found is None:
            return False
        found.abort("closed by an administrator")
        return True

    def connection_totals(self) -> ConnectionTotals:
        """Return the counters of all connections."""
        return ConnectionTotals(
            open=len(self._open),
            accepted=self._accepted,
            refused=self._refused,
            closed=dict(self._closed),
            requests_held_bytes=self.served.requests.held,
            answers_held_bytes=self.served.answers.held,
        )

    def _wake_at(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(due_ms / 1000, self._meet_deadlines)

    def _meet_deadlines(self) -> None:
        self._timer = None
        # A timer may fire a little early, by the resolution of the clock.
        for action in self.deadlines.take_due(self.now_ms() + 1):
            try:
                action()
            except Exception:  # A bug in one action must not keep the others from being called.
                logger.exception("deadline failed")
        next_ms = self.deadlines.next_ms
        if next_ms is not None:
            self._wake_at(next_ms)


def _trim_heap() -> None:
    """Return freed memory to the system: glibc keeps free pages below any block in use. Takes 10 ms for 100 MiB.

    Other C libraries have no such function, and do not need it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@asynccontextmanager
async def serve(
    *tables: MethodTable,
    host: str = "127.0.0.1",
    port: int = 0,
    limits: Limits | None = None,
    certificate: Callable[[], Awaitable[Certificate]] | None = None,
    page: Page | None = None,
    describe: Describe | None = None,
    grace_s: float = 2.0,
) -> AsyncIterator[int]:
    """Serve TABLES at HOST and PORT (0: any free one) during the block, whose value is the port; then stop.

    Calls open at the end have GRACE_S seconds. The other parameters are those of `Server`. Raises CannotListen.
    """
    server = Server(tables, limits=limits, certificate=certificate, page=page, describe=describe)
    bound = await server.start(host, port)
    try:
        yield bound
    finally:
        await server.stop(grace_s)
