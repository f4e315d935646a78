"""Checks of transactions, for producers that speak `apache.rocketmq.v2`.

The protocol knows no group of producers; the half message's group is its topic. Whoever names the topic in his settings
may be asked, and whoever has sent a transaction to it, settings or not; those who have not are asked last, since they
may be producers without a checker. Who sent a half message is remembered for as many as may be open, 250 bytes each,
and not over a restart.

Source: v2-protocol §3.8, §4.7; the recording transaction.
"""

from __future__ import annotations

from collections import OrderedDict

from ...proto.errors import Overloaded
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.gen import rocketmq_v2_pb2 as v2
from ..transactions.listeners import Listeners
from .messages import delivered
from .sessions import Session, Sessions


class CheckCommands:
    """Has the producers among SESSIONS asked, as LISTENERS. LIMIT: half messages whose senders are remembered."""

    def __init__(self, sessions: Sessions, listeners: Listeners, *, limit: int) -> None:
        self._sessions = sessions
        self._listeners = listeners
        self._limit = limit
        #: By transaction id.
        self._senders: OrderedDict[str, str] = OrderedDict()
        self._asked: dict[Session, dict[str, _Asked]] = {}
        sessions.on_settings.append(self._settled)
        sessions.on_end.append(self._ended)

    def remember(self, client_id: str, topic: str, transaction_id: str) -> None:
        """Know that CLIENT_ID sent the half message of TRANSACTION_ID for TOPIC."""
        self._senders[transaction_id] = client_id
        if len(self._senders) > self._limit:
            self._senders.popitem(last=False)
        session = self._sessions.find(client_id)
        if session is None:
            try:
                session = self._sessions.hear(client_id)
            except Overloaded:
                return  # Its message is as good as any; others of the topic may answer for it.
        asked = self._asked_of(session, v2.Resource(name=topic))
        asked.has_sent = True

    def sender(self, transaction_id: str) -> str | None:
        """Return who sent the half message of TRANSACTION_ID, if that is known."""
        return self._senders.get(transaction_id)

    def _settled(self, session: Session) -> None:
        """Have SESSION asked about the topics of its settings, and about those that it has sent to."""
        settings = session.settings
        named = settings.publishing.topics if settings is not None else ()
        topics = {topic.name for topic in named}
        for asked in list(self._asked.get(session, {}).values()):
            if asked.group not in topics and not asked.has_sent:
                self._drop(session, asked)
        for topic in named:
            self._asked_of(session, topic).topic = topic

    def _asked_of(self, session: Session, topic: v2.Resource) -> _Asked:
        of_session = self._asked.setdefault(session, {})
        asked = of_session.get(topic.name)
        if asked is None:
            asked = of_session[topic.name] = _Asked(self, session, topic)
            self._listeners.add(asked)
        return asked

    def _drop(self, session: Session, asked: _Asked) -> None:
        del self._asked[session][asked.group]
        self._listeners.remove(asked)

    def _ended(self, session: Session) -> None:
        for asked in self._asked.pop(session, {}).values():
            self._listeners.remove(asked)


class _Asked:
    """One client and one topic. TOPIC is the resource as the client names it: it knows no other."""

    def __init__(self, commands: CheckCommands, session: Session, topic: v2.Resource) -> None:
        self._commands = commands
        self._session = session
        self.topic = topic
        #: Has it sent a transaction?
        self.has_sent = False

    @property
    def group(self) -> str:
        return self.topic.name

    @property
    def has_room(self) -> bool:
        stream = self._session.stream
        return stream is not None and stream.has_room

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
