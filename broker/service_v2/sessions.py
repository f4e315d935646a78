"""Sessions of `apache.rocketmq.v2`: one per client id, whatever connections it uses.

A session begins with the first settings or heartbeat. It ends when the client terminates (NotifyClientTermination), or
`EXPIRY_MS` after its last call, if none of its streams is open. Listeners (mainly leases) get

    alive   at every sign of life
    gone    at the end of a session; before that, when its streams have ended and it is silent for longer than between
            two heartbeats, or is silent for `EXPIRY_MS` with an open stream

With users, a client id belongs to one user (`client_id` in service.py). Without users, a session belongs to the host
that opened its streams: settings and terminations from other hosts are FORBIDDEN while a stream is open and that host
was active within `_SILENT_MS` or `_SILENT_SLOW_MS`. Heartbeats count from any host, because proxies use several
addresses.

Times are the machine's. Source: v2-protocol sections 3.6 to 3.9; the recording heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from ...proto.errors import Overloaded
from ...proto.gen import rocketmq_v2_pb2 as v2
from ..events import BrokerEvents
from ..timing.timers import Timers
from .client_session import EXPIRY_MS, ClientSession, CommandStream
from .service import CLIENT_ID
from .statuses import Refused

logger = logging.getLogger(__name__)

_SCAN_MS: Final = 2_000
#: Limit of streams per session; a further one ends the oldest.
_STREAMS_MAX: Final = 4


class Sessions:
    """The sessions of a broker. TIMERS use the machine's time. The event loop owns them."""

    def __init__(
        self, timers: Timers, *, limit: Callable[[], int], events: BrokerEvents | None = None
    ) -> None:
        self._timers = timers
        self._events = events or BrokerEvents()
        self._limit = limit
        self._sessions: dict[str, ClientSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._sessions.values()))

    def start(self) -> None:
        """Start to check for silent clients."""
        self._timers.every(_SCAN_MS, self._scan)

    def find(self, client_id: str) -> ClientSession | None:
        """Return the session of CLIENT_ID; None if there is none."""
        return self._sessions.get(client_id)

    def check_host(self, client_id: str, host: str) -> None:
        """Raise Refused if the session of CLIENT_ID belongs to another host than HOST."""
        session = self._sessions.get(client_id)
        if session is not None and session.is_held_against(host, self._timers.now_ms()):
            raise Refused(
                v2.FORBIDDEN,
                f"client id {client_id[:255]!r} is in use from {session.host}, which was active just now: use a"
                " separate id for each client, or try again in a minute",
                field=CLIENT_ID,
                host=session.host,
            )

    def record_activity(self, client_id: str, language: str = "", host: str = "") -> ClientSession:
        """Record a sign of life from HOST; return the session, perhaps a new one; raise Overloaded."""
        session = self._sessions.get(client_id)
        if session is None:
            session = self._open(client_id, language.upper())
        session.heard_ms = self._timers.now_ms()
        if host == session.host:
            session.host_heard_ms = session.heard_ms
        session.is_gone = False
        for callback in self._events.client_alive:
            callback(client_id)
        return session

    def _open(self, client_id: str, language: str) -> ClientSession:
        if len(self._sessions) >= self._limit():
            raise Overloaded(
                f"{len(self._sessions)} clients are connected, the limit is {self._limit()} (broker.clients_max):"
                " close some, or raise the limit",
                field="clients_max",
                limit=self._limit(),
                value=len(self._sessions),
            )
        session = ClientSession(
            client_id=client_id, language=language, heard_ms=self._timers.now_ms()
        )
        self._sessions[client_id] = session
        return session

    def settle(self, session: ClientSession, settings: v2.Settings) -> None:
        """Store SETTINGS as those of SESSION."""
        session.settings = settings
        for callback in self._events.client_settings_changed:
            callback(session)

    def connect(self, session: ClientSession, stream: CommandStream, host: str) -> None:
        """Use STREAM, from HOST, for commands to SESSION."""
        if stream in session.streams:
            return
        if host != session.host:
            for other in session.streams[:]:
                other.end()
            session.host, session.host_heard_ms = host, self._timers.now_ms()
        session.streams.append(stream)
        if len(session.streams) > _STREAMS_MAX:
            session.streams.pop(0).end()

    def disconnect(self, session: ClientSession, stream: CommandStream) -> None:
        """Forget STREAM, which has ended."""
        if stream in session.streams:
            session.streams.remove(stream)

    def end(self, client_id: str) -> None:
        """Forget CLIENT_ID, which terminates, known or not."""
        session = self._sessions.pop(client_id, None)
        if session is not None:
            self._forget(session)
        self._gone(client_id)

    def _forget(self, session: ClientSession) -> None:
        for callback in self._events.client_session_ended:
            callback(session)

    def _gone(self, client_id: str) -> None:
        for callback in self._events.client_gone:
            callback(client_id)

    def _scan(self) -> None:
        now_ms = self._timers.now_ms()
        for session in [one for one in self._sessions.values() if one.is_silent(now_ms)]:
            if not session.is_gone:
                session.is_gone = True
                logger.info("client session timed out client=%s", session.client_id)
                self._gone(session.client_id)
            if not session.streams and now_ms - session.heard_ms >= EXPIRY_MS:
                del self._sessions[session.client_id]
                self._forget(session)
