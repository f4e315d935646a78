"""Checks of transactions, as commands on the Telemetry streams of official producers.

The protocol has no producer groups: the group of a half message is its topic. Checks go to clients that have the topic
in their settings or have sent a transaction to it, with or without settings. Clients without settings are asked last,
because they may be producers without a checker. The broker remembers the producers of as many half messages as may be
open, 250 bytes each, until it restarts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ...proto.access.policies import PUB, of_topic
from ...proto.errors import Overloaded
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ..transactions.checks import Listeners
from .client_session import ClientSession
from .messages import delivered
from .sessions import Sessions


class CheckCommands:
    """Adds the producers of SESSIONS to LISTENERS. LIMIT: half messages whose producers are remembered."""

    def __init__(
        self, sessions: Sessions, listeners: Listeners, *, limit: Callable[[], int]
    ) -> None:
        self._sessions = sessions
        self._listeners = listeners
        self._limit = limit
        #: Client ids by transaction id.
        self._senders: OrderedDict[str, str] = OrderedDict()
        self._asked: dict[ClientSession, dict[str, _Asked]] = {}

    def remember(self, client_id: str, topic: str, transaction_id: str) -> None:
        """Record that CLIENT_ID sent the half message of TRANSACTION_ID for TOPIC."""
        self._senders[transaction_id] = client_id
        if len(self._senders) > self._limit():
            self._senders.popitem(last=False)
        session = self._sessions.find(client_id)
        if session is None:
            try:
                session = self._sessions.record_activity(client_id)
            except Overloaded:
                return  # Other clients of the topic may be asked instead.
        asked = self._asked_of(session, v2.Resource(name=topic))
        asked.has_sent = True

    def sender(self, transaction_id: str) -> str | None:
        """Return the client that sent the half message of TRANSACTION_ID; None if it is not known."""
        return self._senders.get(transaction_id)

    def settled(self, session: ClientSession) -> None:
        """Let SESSION be asked about the topics in its settings, and those to which it has sent transactions."""
        settings = session.settings
        named = settings.publishing.topics if settings is not None else ()
        topics = {topic.name for topic in named}
        for asked in list(self._asked.get(session, {}).values()):
            if asked.group not in topics and not asked.has_sent:
                self._drop(session, asked)
        for topic in named:
            self._asked_of(session, topic).topic = topic

    def _asked_of(self, session: ClientSession, topic: v2.Resource) -> _Asked:
        of_session = self._asked.setdefault(session, {})
        asked = of_session.get(topic.name)
        if asked is None:
            asked = of_session[topic.name] = _Asked(self, session, topic)
            self._listeners.add(asked)
        return asked

    def _drop(self, session: ClientSession, asked: _Asked) -> None:
        del self._asked[session][asked.group]
        self._listeners.remove(asked)

    def ended(self, session: ClientSession) -> None:
        """Forget SESSION, which has ended."""
        for asked in self._asked.pop(session, {}).values():
            self._listeners.remove(asked)


class _Asked:
    """One client and one topic. TOPIC is the resource as the client names it: it knows no other."""

    def __init__(self, commands: CheckCommands, session: ClientSession, topic: v2.Resource) -> None:
        self._commands = commands
        self._session = session
        self.topic = topic
        #: Whether it has sent a transaction.
        self.has_sent = False

    @property
    def group(self) -> str:
        return self.topic.name

    @property
    def has_room(self) -> bool:
        stream = self._session.stream
        return stream is not None and stream.has_room

    def may_see(self, topic: str) -> bool:
        stream = self._session.stream
        return stream is not None and stream.may(of_topic(topic, PUB))

    def is_for(self, topic: str) -> bool:
        return self.has_sent

    def sent(self, transaction_id: str) -> bool:
        return self._commands.sender(transaction_id) == self._session.client_id

    def send(self, check: pb.TransactionCheck) -> None:
        stream = self._session.stream
        if stream is None:
            return
        message = delivered(check.record, self.topic, attempt=1)
        stream.send(
            v2.TelemetryCommand(
                recover_orphaned_transaction_command=v2.RecoverOrphanedTransactionCommand(
                    message=message, transaction_id=check.transaction_id
                )
            )
        )
