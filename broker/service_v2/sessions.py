"""Sessions of `apache.rocketmq.v2`: who is connected, one a client id, whatever connections it uses; and heartbeats.

A session begins with the first settings or heartbeat. It ends when the client says so (NotifyClientTermination), or
`_EXPIRY_MS` after it was last heard, if no stream of it is open. Whoever hangs on clients (leases, mainly) is told

    alive   at every sign of life
    gone    at the end of a session; and before that, when its streams have broken off and it keeps silent for longer
            than between two of its heartbeats, or is silent for `_EXPIRY_MS` with a stream that nobody has closed

A client that was gone and is heard again is alive. Of several streams the newest gets the broker's commands.

Whose session it is: with users, a client id is one of its user (`client_id` in service.py), and nobody else's call has
to do with it. Without users, a session is that of the host that opened its streams: settings and the goodbye of another
host are refused (FORBIDDEN) while a stream is open and that host was heard of within `_SILENT_MS`, or
`_SILENT_SLOW_MS`. Then, or once its streams have ended, a client with the same id may go on from another host. Any
host's heartbeats are signs of life: proxies may send them by several addresses.

Heartbeat and NotifyClientTermination answer OK to a client that the broker does not know: after a restart of the broker
some clients go on for minutes before they send their settings again. A heartbeat that says nothing at all, not even who
beats, is a probe of clients in Go after a broken stream. A consumer's group need not exist yet.

Bounds: `clients_max` sessions, and `_STREAMS_MAX` streams of each; further clients are refused (Overloaded), a further
stream ends the oldest. A scan of all sessions every `_SCAN_MS`, 0.3 µs each. Times are the machine's.

Source: v2-protocol §3.6 to §3.9; the recording heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from ...proto.access.policies import Need
from ...proto.errors import Overloaded
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import Call, MethodTable
from ..timing.timers import Timers
from .messages import KnownGroups, group_name
from .service import CLIENT_ID, client_host, client_id, service, unary
from .statuses import OK, Refused

logger = logging.getLogger(__name__)

_EXPIRY_MS: Final = 120_000
_SCAN_MS: Final = 2_000
_STREAMS_MAX: Final = 4
#: Without a stream a client that beats every 10 s is gone after so long …
_SILENT_MS: Final = 15_000
#: … and one that beats every 30 s, as Rust's and perhaps those of others, after so long.
_SILENT_SLOW_MS: Final = 45_000
LANGUAGE: Final = "x-mq-language"
#: What the official clients that beat every 10 s say of themselves; Node.js says HTTP.
_QUICK: Final = frozenset({"JAVA", "CPP", "GO", "GOLANG", "PYTHON", "HTTP", "NODE_JS", "DOT_NET"})
_NO_CONSUMERS: Final = frozenset({v2.CLIENT_TYPE_UNSPECIFIED, v2.PRODUCER})


class CommandStream(Protocol):
    """A client's Telemetry stream."""

    @property
    def has_room(self) -> bool:
        """Does the client read what it is sent?"""
        ...

    def send(self, command: v2.TelemetryCommand) -> None:
        """Send COMMAND."""
        ...

    def end(self) -> None:
        """End the stream well."""
        ...

    def may(self, need: Need) -> bool:
        """May the client's user do what NEED says?"""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class ClientSession:
    """One client. SETTINGS are its own, as it sent them last; None: it has sent none, or not again since a restart."""

    client_id: str
    language: str
    heard_ms: int
    #: Where its streams come from, and when anything came from there; "": users tell clients apart.
    host: str = ""
    host_heard_ms: int = 0
    settings: v2.Settings | None = None
    streams: list[CommandStream] = field(default_factory=list)
    is_gone: bool = False

    @property
    def stream(self) -> CommandStream | None:
        """The stream that commands go to."""
        return self.streams[-1] if self.streams else None

    def _silence_ms(self) -> int:
        """Return how long it may keep silent before it counts as gone."""
        if self.streams:
            return _EXPIRY_MS
        return self._unheard_ms()

    def _unheard_ms(self) -> int:
        """Return after how long without a word from it a client may be gone."""
        return _SILENT_MS if self.language in _QUICK else _SILENT_SLOW_MS

    def is_held_against(self, host: str, now_ms: int) -> bool:
        """Is it that of another host than HOST?"""
        is_heard = now_ms - self.host_heard_ms < self._unheard_ms()
        return host != self.host and bool(self.streams) and is_heard

    def silent_in_ms(self, now_ms: int) -> int:
        """Return in how long it counts as gone, if it is not heard until then."""
        return max(0, self.heard_ms + self._silence_ms() - now_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Is it time to take the client for gone?"""
        return now_ms - self.heard_ms >= self._silence_ms()


class Sessions:
    """The sessions of a broker; TIMERS turn by the machine's time. The event loop owns them."""

    def __init__(self, timers: Timers, *, limit: Callable[[], int]) -> None:
        self._timers = timers
        self._limit = limit
        self._sessions: dict[str, ClientSession] = {}
        #: Told a client id.
        self.on_alive: list[Callable[[str], None]] = []
        self.on_gone: list[Callable[[str], None]] = []
        #: Told a session whose settings are new, and one that ends.
        self.on_settings: list[Callable[[ClientSession], None]] = []
        self.on_end: list[Callable[[ClientSession], None]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._sessions.values()))

    def start(self) -> None:
        """Begin to look for clients that keep silent."""
        self._timers.every(_SCAN_MS, self._scan)

    def find(self, client_id: str) -> ClientSession | None:
        """Return the session of CLIENT_ID, if there is one."""
        return self._sessions.get(client_id)

    def check_host(self, client_id: str, host: str) -> None:
        """Raise Refused where the session of CLIENT_ID is that of another host than HOST."""
        session = self._sessions.get(client_id)
        if session is not None and session.is_held_against(host, self._timers.now_ms()):
            raise Refused(
                v2.FORBIDDEN,
                f"client id {client_id[:255]!r} is in use from {session.host}, and was heard of there just now: give"
                " each client its own id, or try again in a minute",
                field=CLIENT_ID,
                host=session.host,
            )

    def hear(self, client_id: str, language: str = "", host: str = "") -> ClientSession:
        """Note a sign of life from HOST, and return the session, a new one if need be; raise Overloaded."""
        session = self._sessions.get(client_id)
        if session is None:
            session = self._open(client_id, language.upper())
        session.heard_ms = self._timers.now_ms()
        if host == session.host:
            session.host_heard_ms = session.heard_ms
        session.is_gone = False
        for tell in self.on_alive:
            tell(client_id)
        return session

    def _open(self, client_id: str, language: str) -> ClientSession:
        if len(self._sessions) >= self._limit():
            raise Overloaded(
                f"{len(self._sessions)} clients are connected, the limit is {self._limit()}: close some, or raise"
                " broker.clients_max",
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
        """Keep SETTINGS as those of SESSION."""
        session.settings = settings
        for tell in self.on_settings:
            tell(session)

    def connect(self, session: ClientSession, stream: CommandStream, host: str) -> None:
        """Let STREAM, from HOST, be the one that commands for SESSION go to."""
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
        """Forget STREAM, which is over."""
        if stream in session.streams:
            session.streams.remove(stream)

    def end(self, client_id: str) -> None:
        """Forget CLIENT_ID, which says goodbye, known or not."""
        session = self._sessions.pop(client_id, None)
        if session is not None:
            self._forget(session)
        self._gone(client_id)

    def _forget(self, session: ClientSession) -> None:
        for tell in self.on_end:
            tell(session)

    def _gone(self, client_id: str) -> None:
        for tell in self.on_gone:
            tell(client_id)

    def _scan(self) -> None:
        now_ms = self._timers.now_ms()
        for session in [one for one in self._sessions.values() if one.is_silent(now_ms)]:
            if not session.is_gone:
                session.is_gone = True
                logger.info("client is silent client=%s", session.client_id)
                self._gone(session.client_id)
            if not session.streams and now_ms - session.heard_ms >= _EXPIRY_MS:
                del self._sessions[session.client_id]
                self._forget(session)


# --- signs of life


class Heartbeats:
    """The signs of life of SESSIONS; GROUPS are those of the broker."""

    def __init__(self, sessions: Sessions, groups: KnownGroups) -> None:
        self._sessions = sessions
        self._groups = groups

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "Heartbeat": unary(
                    v2.HeartbeatRequest, v2.HeartbeatResponse, self.beat, anonymous=True
                ),
                "NotifyClientTermination": unary(
                    v2.NotifyClientTerminationRequest,
                    v2.NotifyClientTerminationResponse,
                    self.terminate,
                ),
            }
        )

    def beat(self, request: v2.HeartbeatRequest, call: Call) -> v2.HeartbeatResponse:
        """Note that a client lives. The type that its settings say counts more than the request's."""
        metadata = call.metadata
        if not metadata.get(CLIENT_ID, "") and not request.ByteSize():
            return v2.HeartbeatResponse(status=OK)
        who = client_id(call)
        session = self._sessions.find(who)
        if _is_consumer(session, request):
            group_name(request.group, self._groups)
        self._sessions.hear(who, metadata.get(LANGUAGE, ""), client_host(call))
        return v2.HeartbeatResponse(status=OK)

    def terminate(
        self, request: v2.NotifyClientTerminationRequest, call: Call
    ) -> v2.NotifyClientTerminationResponse:
        """Forget a client, whatever becomes of its request otherwise."""
        who = client_id(call)
        self._sessions.check_host(who, client_host(call))
        self._sessions.end(who)
        if request.group.name:
            group_name(request.group, self._groups)
        return v2.NotifyClientTerminationResponse(status=OK)


def _is_consumer(session: ClientSession | None, request: v2.HeartbeatRequest) -> bool:
    if session is not None and session.settings is not None:
        return session.settings.HasField("subscription")
    return request.client_type not in _NO_CONSUMERS
