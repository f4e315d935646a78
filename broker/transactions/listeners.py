"""Those who are asked what became of a transaction: producers that listen, by group, whatever they speak.

Of a group's listeners with room one is asked: who sent the half message, if that is known, or else each in turn, those
first that are there for the topic.

Bounds: `_QUEUED_BYTES_MAX` bytes on their way to one stream, which is passed over beyond that; `_TOPICS_MAX` topics of
one listener.
"""

from __future__ import annotations

from typing import Final, Protocol

from ...proto.errors import InvalidArgument
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import Stream
from ...proto.topics import check_group

_QUEUED_BYTES_MAX: Final = 1024 * 1024
#: Topics that one listener may name.
_TOPICS_MAX: Final = 10_000


class Answering(Protocol):
    """Somebody who can be asked."""

    @property
    def group(self) -> str:
        """The producer group that it answers for."""
        ...

    @property
    def has_room(self) -> bool:
        """Does it take what it is sent? Then it may be sent more."""
        ...

    def is_for(self, topic: str) -> bool:
        """Is it rather there for TOPIC than others?"""
        ...

    def sent(self, transaction_id: str) -> bool:
        """Is it known to have sent the half message of TRANSACTION_ID?"""
        ...

    def send(self, check: pb.TransactionCheck) -> None:
        """Ask."""
        ...


class Listener:
    """One open stream of a producer that answers checks."""

    def __init__(self, stream: Stream, listeners: Listeners) -> None:
        self._stream = stream
        self._listeners = listeners
        self.group = ""
        self.topics: frozenset[str] = frozenset()

    def on_message(self, message: pb.TransactionListener) -> None:
        """Listen for a group, from now on; a later message changes the topics."""
        check_group(message.group)
        if self.group and message.group != self.group:
            raise InvalidArgument(
                f"this stream listens for group {self.group!r}: open another for {message.group[:64]!r}",
                field="group",
                value=message.group[:64],
            )
        if len(message.topics) > _TOPICS_MAX:
            raise InvalidArgument(
                f"topics: {len(message.topics)} of one listener, the limit is {_TOPICS_MAX}: name fewer, or none for"
                " all of the group",
                field="topics",
                limit=_TOPICS_MAX,
                value=len(message.topics),
            )
        self.topics = frozenset(message.topics)
        if not self.group:
            self.group = message.group
            self._listeners.add(self)

    @property
    def has_room(self) -> bool:
        """Does it take what it is sent? Then it may be sent more."""
        return self._stream.queued_bytes < _QUEUED_BYTES_MAX

    def is_for(self, topic: str) -> bool:
        """Did it name TOPIC, or none at all?"""
        return not self.topics or topic in self.topics

    def sent(self, transaction_id: str) -> bool:
        """Nothing is known of that here."""
        return False

    def send(self, check: pb.TransactionCheck) -> None:
        self._stream.send(check)

    def on_end(self) -> None:
        self._listeners.remove(self)
        self._stream.finish()

    def on_close(self) -> None:
        self._listeners.remove(self)


class Listeners:
    """Those who answer checks, by group; each has his turn."""

    def __init__(self) -> None:
        self._by_group: dict[str, list[Answering]] = {}

    def __len__(self) -> int:
        return sum(len(listeners) for listeners in self._by_group.values())

    def add(self, listener: Answering) -> None:
        self._by_group.setdefault(listener.group, []).append(listener)

    def remove(self, listener: Answering) -> None:
        listeners = self._by_group.get(listener.group, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners:
            self._by_group.pop(listener.group, None)

    def choose(self, group: str, topic: str, transaction_id: str) -> Answering | None:
        """Return who of GROUP is asked next about TRANSACTION_ID, a message for TOPIC; None: nobody has room."""
        listeners = self._by_group.get(group, [])
        ready = [listener for listener in listeners if listener.has_room]
        if not ready:
            return None
        chosen = next((one for one in ready if one.sent(transaction_id)), None)
        if chosen is None:
            chosen = next((one for one in ready if one.is_for(topic)), ready[0])
        listeners.remove(chosen)
        listeners.append(chosen)
        return chosen
