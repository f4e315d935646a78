"""Telemetry: one long stream per client, with settings in both directions and the commands of the broker.

The broker answers all settings with its own (client_settings.py) and status OK. It ignores commands from clients that
it did not ask for. Commands go to clients whose users may see their content: a check requires Pub on the topic at that
moment, a message to try Sub.

Invalid settings end the stream with INVALID_ARGUMENT, and so do those of a push consumer whose filter is malformed or
not that of the group (subscriptions.py). The reason is sent twice, because clients differ: as a status without a
command, which Node.js raises, and with the end of the stream, which Go raises and the others log. Simple consumers get
it in the answers to their receives.

Source: v2-protocol sections 3.4, 3.5, 3.8, 4.7 and 4.11; the recordings telemetry, server-command and transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Final

from ...proto.access.policies import Need
from ...proto.errors import Overloaded
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import MethodTable, Stream, bidi
from ...store.config import StoreConfig
from ..config import BrokerConfig
from ..consumer_groups import Groups
from ..events import BrokerEvents
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from ..transactions.checks import Listeners
from .client_addresses import Reach
from .client_session import ClientSession
from .client_settings import SettingsRules
from .heartbeats import LANGUAGE, Heartbeats
from .service import client_host, client_id, service
from .sessions import Sessions
from .statuses import OK, Refused, status_of
from .subscriptions import RefusedFilter, Subscriptions
from .transaction_checks import CheckCommands

logger = logging.getLogger(__name__)


#: The first answer of a stream is sent again: clients in Node.js expect it only after they have all
#: their routes.
_AGAIN_MS: Final = 1_500
#: With more unread bytes, a client gets no commands, and the stream ends at its next settings. Push
#: consumers in Python stop reading while nothing needs their metrics.
_QUEUED_BYTES_MAX: Final = 256 * 1024
_ANSWERS: Final = frozenset({"thread_stack_trace", "verify_message_result"})


class Telemetry:
    """The streams of all clients. MEASURED: clients send their metrics to the broker."""

    def __init__(
        self,
        sessions: Sessions,
        subscriptions: Subscriptions,
        rules: SettingsRules,
        reach: Reach,
        timers: Timers,
        events: BrokerEvents,
        *,
        measured: bool,
    ) -> None:
        self.sessions = sessions
        self._subscriptions = subscriptions
        self._rules = rules
        self._reach = reach
        self.timers = timers
        self._measured = measured
        self.events = events

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service({"Telemetry": bidi(v2.TelemetryCommand, v2.TelemetryCommand, self.open)})

    def open(self, stream: Stream) -> TelemetryStream:
        """Accept a stream."""
        try:
            who = client_id(stream)
        except Refused as error:
            stream.send(v2.TelemetryCommand(status=status_of(error)))
            stream.finish()
            return TelemetryStream(stream, self, "", is_over=True)
        return TelemetryStream(stream, self, who)

    def settle(self, session: ClientSession, settings: v2.Settings) -> None:
        """Store SETTINGS for SESSION; raise InvalidArgument for invalid ones, and for filters unlike those of the
        group.
        """
        self._rules.check(settings)
        self._subscriptions.settle(session, settings)
        self.sessions.settle(session, settings)

    def answer(self, settings: v2.Settings) -> v2.TelemetryCommand:
        """Return the answer for a client with SETTINGS."""
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
        self._session: ClientSession | None = None
        self._again: Timer | None = None
        self._has_answered = False

    def on_message(self, message: v2.TelemetryCommand) -> None:
        """Answer settings, pass on answers to commands."""
        if self._is_over:
            return
        host = client_host(self._stream)
        sessions = self._telemetry.sessions
        sessions.check_host(self._who, host)
        session = sessions.record_activity(self._who, self._stream.metadata.get(LANGUAGE, ""), host)
        what = message.WhichOneof("command")
        if what == "settings":
            try:
                self._take_settings(session, message.settings)
            except RefusedFilter as error:
                self.send(v2.TelemetryCommand(status=status_of(error)))
                raise
        elif what in _ANSWERS:
            for callback in self._telemetry.events.client_answered:
                callback(self._who, message)

    def _take_settings(self, session: ClientSession, settings: v2.Settings) -> None:
        self._telemetry.settle(session, settings)
        self._telemetry.sessions.connect(session, self, client_host(self._stream))
        self._session = session
        if not self.has_room:
            raise Overloaded(
                f"{self._stream.queued_bytes} bytes of this stream are unread, the limit is {_QUEUED_BYTES_MAX}:"
                " read the messages of the broker",
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
        """Return whether the client reads the stream fast enough."""
        return self._stream.queued_bytes < _QUEUED_BYTES_MAX

    def send(self, command: v2.TelemetryCommand) -> None:
        """Send COMMAND, unless the stream has ended."""
        if not self._is_over:
            self._stream.send(command)

    def may(self, need: Need) -> bool:
        """Return whether the client's user has the permission NEED."""
        return self._stream.user.may(self._stream, need)

    def end(self) -> None:
        """End the stream normally."""
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


class Clients:
    """Streams and heartbeats of all clients. TIMERS use the machine's time.

    OWN returns the broker's address, followed by those of its replicas. LISTENERS get the producers among the clients,
    for transaction checks.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        groups: Groups,
        timers: Timers,
        own: Callable[[], Sequence[str]],
        listeners: Listeners,
        events: BrokerEvents,
    ) -> None:
        #: The addresses for clients.
        self.reach = Reach(config.v2_endpoints, own)
        self.sessions = Sessions(timers, limit=lambda: config.clients_max, events=events)
        rules = SettingsRules(
            groups,
            store_config.delay_levels_ms,
            checks_types=config.topic_message_type_check,
            body_max=store_config.message_size_max_bytes,
        )
        self.subscriptions = Subscriptions(config, groups, self.sessions, timers)
        self.telemetry = Telemetry(
            self.sessions,
            self.subscriptions,
            rules,
            self.reach,
            timers,
            events,
            measured=config.client_metrics,
        )
        self._heartbeats = Heartbeats(self.sessions, groups)
        self.checks = CheckCommands(
            self.sessions, listeners, limit=lambda: config.transactions_open_max
        )
        events.connect(
            BrokerEvents(
                client_gone=[self.subscriptions.forget],
                client_settings_changed=[self.checks.settled],
                client_session_ended=[self.checks.ended],
            )
        )

    def start(self) -> None:
        """Start to check for clients that have gone."""
        self.sessions.start()
        self.subscriptions.start()

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        handlers = (self.telemetry, self._heartbeats)
        return reduce(or_, (each.methods() for each in handlers))
