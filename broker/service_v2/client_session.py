"""The session of one official client: its settings, its Telemetry streams, and when the broker last heard from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from ...proto.access.policies import Need
from ...proto.gen import rocketmq_v2_pb2 as v2

EXPIRY_MS: Final = 120_000
#: Without a stream, a client that sends a heartbeat every 10 s is gone after this time …
_SILENT_MS: Final = 15_000
#: … and one that sends a heartbeat every 30 s (Rust and possibly others) after this time.
_SILENT_SLOW_MS: Final = 45_000
#: The languages of the official clients that send a heartbeat every 10 s; Node.js says HTTP.
_QUICK: Final = frozenset({"JAVA", "CPP", "GO", "GOLANG", "PYTHON", "HTTP", "NODE_JS", "DOT_NET"})


class CommandStream(Protocol):
    """A client's Telemetry stream."""

    @property
    def has_room(self) -> bool:
        """Return whether the client reads the stream fast enough."""
        ...

    def send(self, command: v2.TelemetryCommand) -> None:
        """Send COMMAND."""
        ...

    def end(self) -> None:
        """End the stream normally."""
        ...

    def may(self, need: Need) -> bool:
        """Return whether the client's user has the permission NEED."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class ClientSession:
    """The session of one client. SETTINGS: the latest that it sent; None: it has sent none since a restart of the
    broker.
    """

    client_id: str
    language: str
    heard_ms: int
    #: Host of its streams, and when it last sent anything; "": users identify clients.
    host: str = ""
    host_heard_ms: int = 0
    settings: v2.Settings | None = None
    streams: list[CommandStream] = field(default_factory=list)
    is_gone: bool = False

    @property
    def stream(self) -> CommandStream | None:
        """The stream for commands."""
        return self.streams[-1] if self.streams else None

    def _silence_ms(self) -> int:
        """Return after how many ms of silence it counts as gone."""
        if self.streams:
            return EXPIRY_MS
        return self._unheard_ms()

    def _unheard_ms(self) -> int:
        """Return after how many ms of silence a client without a stream may be gone."""
        return _SILENT_MS if self.language in _QUICK else _SILENT_SLOW_MS

    def is_held_against(self, host: str, now_ms: int) -> bool:
        """Return whether another host than HOST is using it."""
        is_heard = now_ms - self.host_heard_ms < self._unheard_ms()
        return host != self.host and bool(self.streams) and is_heard

    def silent_in_ms(self, now_ms: int) -> int:
        """Return in how many ms it counts as gone if it stays silent."""
        return max(0, self.heard_ms + self._silence_ms() - now_ms)

    def is_silent(self, now_ms: int) -> bool:
        """Return whether it was silent for so long that it counts as gone."""
        return now_ms - self.heard_ms >= self._silence_ms()
