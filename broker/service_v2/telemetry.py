"""Telemetry: one long stream a client, settings in both directions and the broker's commands to it.

Every settings message is answered with what the client keeps to, and status OK. The first answer of a stream is sent
once more `_AGAIN_MS` later, because clients of Node.js look for it only when all their routes are there. Bad settings,
and filters that are not those of the group (subscriptions.py), end the stream with INVALID_ARGUMENT. A stream without a
client id is told so in a command, and ends well. Commands that nobody has asked for are passed over.

Python's push consumers stop reading while nothing wants their measurements: what a client does not read is bounded by
`_QUEUED_BYTES_MAX`, beyond which it gets no commands, and at its next settings the end of the stream.

Source: v2-protocol §3.4; the recordings telemetry and server-command.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ...proto.errors import Overloaded
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import MethodTable, Stream, bidi
from ..timers import Timers
from ..timing_wheel import Timer
from .endpoints import Reach
from .service import client_id, service
from .sessions import LANGUAGE, Session, Sessions
from .settings import SettingsRules
from .statuses import OK, Refused, status_of
from .subscriptions import Subscriptions

logger = logging.getLogger(__name__)

_AGAIN_MS: Final = 1_500
_QUEUED_BYTES_MAX: Final = 256 * 1024
_ANSWERS: Final = frozenset({"thread_stack_trace", "verify_message_result"})
#: Takes what a client answers to a diagnostic command: its id, and the answer.
TakeAnswer = Callable[[str, v2.TelemetryCommand], None]


class Telemetry:
    """The streams of all clients. MEASURED: they are to send what they measure to the broker."""

    def __init__(
        self,
        sessions: Sessions,
        subscriptions: Subscriptions,
        rules: SettingsRules,
        reach: Reach,
        timers: Timers,
        *,
        measured: bool,
    ) -> None:
        self.sessions = sessions
        self._subscriptions = subscriptions
        self._rules = rules
        self._reach = reach
        self.timers = timers
        self._measured = measured
        self.on_answer: list[TakeAnswer] = []

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service({"Telemetry": bidi(v2.TelemetryCommand, v2.TelemetryCommand, self.open)})

    def open(self, stream: Stream) -> TelemetryStream:
        """Take in a stream."""
        try:
            who = client_id(stream)
        except Refused as error:
            stream.send(v2.TelemetryCommand(status=status_of(error)))
            stream.finish()
            return TelemetryStream(stream, self, "", is_over=True)
        return TelemetryStream(stream, self, who)

    def settle(self, session: Session, settings: v2.Settings) -> None:
        """Keep SETTINGS for SESSION; raise InvalidArgument for bad ones, and filters unlike those of the group."""
        self._rules.check(settings)
        self._subscriptions.settle(session, settings)
        self.sessions.settle(session, settings)

    def answer(self, settings: v2.Settings) -> v2.TelemetryCommand:
        """Return what a client with SETTINGS is told."""
        measurements = self._reach.of_settings(settings.access_point) if self._measured else None
        return v2.TelemetryCommand(status=OK, settings=self._rules.answer(settings, measurements))


class TelemetryStream:
    """One stream of client WHO."""

    def __init__(
        self, stream: Stream, telemetry: Telemetry, who: str, *, is_over: bool = False
    ) -> None:
        self._stream = stream
        self._telemetry = telemetry
        self._who = who
        self._is_over = is_over
        self._session: Session | None = None
        self._again: Timer | None = None
        self._has_answered = False

    def on_message(self, message: v2.TelemetryCommand) -> None:
        """Answer settings, pass on answers to commands."""
        if self._is_over:
            return
        session = self._telemetry.sessions.hear(self._who, self._stream.metadata.get(LANGUAGE, ""))
        what = message.WhichOneof("command")
        if what == "settings":
            self._take_settings(session, message.settings)
        elif what in _ANSWERS:
            for take in self._telemetry.on_answer:
                take(self._who, message)

    def _take_settings(self, session: Session, settings: v2.Settings) -> None:
        self._telemetry.settle(session, settings)
        self._telemetry.sessions.connect(session, self)
        self._session = session
        if not self.has_room:
            raise Overloaded(
                f"{self._stream.queued_bytes} bytes of this stream were not read, the limit is {_QUEUED_BYTES_MAX}:"
                " read what the broker sends",
                field="queued_bytes",
                limit=_QUEUED_BYTES_MAX,
                value=self._stream.queued_bytes,
            )
        self.send(self._telemetry.answer(settings))
        if not self._has_answered:
            self._has_answered = True
            self._again = self._telemetry.timers.after(_AGAIN_MS, self._answer_again)

    def _answer_again(self) -> None:
        session = self._session
        if session is not None and session.settings is not None and self.has_room:
            self.send(self._telemetry.answer(session.settings))

    @property
    def has_room(self) -> bool:
        """Does the client read what it is sent?"""
        return self._stream.queued_bytes < _QUEUED_BYTES_MAX

    def send(self, command: v2.TelemetryCommand) -> None:
        """Send COMMAND, unless the stream is over."""
        if not self._is_over:
            self._stream.send(command)

    def end(self) -> None:
        """End the stream well."""
        if not self._is_over:
            self._let_go()
            self._stream.finish()

    def on_end(self) -> None:
        self.end()

    def on_close(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        self._is_over = True
        if self._again is not None:
            self._telemetry.timers.cancel(self._again)
            self._again = None
        if self._session is not None:
            self._telemetry.sessions.disconnect(self._session, self)
            self._session = None
