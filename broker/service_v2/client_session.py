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
            return EXPIRY_MS
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
