"""The events of a broker, and the callbacks that react to them. `assembly.py` has the list of reactions.

`assemble` creates one `BrokerEvents` first, and gives it to each part that reports events. Once all parts exist, it
connects the parts that react. All callbacks run in the event loop's thread, in the order of their lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from ..proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ..store.format.state_tables import TopicConfig
from .pop.receives import ReceiveRequest, ReceiveResult
from .service_v2.client_session import ClientSession

#: Called with the reply to a fetch, or with the result of a receive.
FetchDone: TypeAlias = Callable[[pb.FetchReply], None]
ReceiveDone: TypeAlias = Callable[[ReceiveResult], None]


@dataclass(frozen=True, slots=True)
class BrokerEvents:
    """Lists of callbacks, one list per event."""

    topic_changed: list[Callable[[str], None]] = field(default_factory=list)
    """A topic was created, changed or deleted. Argument: its name."""

    topic_auto_created: list[Callable[[TopicConfig], None]] = field(default_factory=list)
    """A producer sent to a topic that did not exist, and the broker created it."""

    messages_stored: list[Callable[[str], None]] = field(default_factory=list)
    """Consumers can read new messages. Argument: their topic."""

    fetch_began: list[Callable[[pb.FetchRequest, FetchDone], FetchDone]] = field(
        default_factory=list
    )
    """A consumer fetches. The callback returns what gets the reply instead of its second argument."""

    receive_began: list[Callable[[ReceiveRequest, ReceiveDone], ReceiveDone]] = field(
        default_factory=list
    )
    """An official client receives. The callback returns what gets the result instead of its second argument."""

    message_returned: list[Callable[[str, str, int, int], None]] = field(default_factory=list)
    """A consumer returned a message. Arguments: group, topic, queue, queue offset."""

    client_alive: list[Callable[[str], None]] = field(default_factory=list)
    """An official client sent something. Argument: its id."""

    client_gone: list[Callable[[str], None]] = field(default_factory=list)
    """An official client closed, or is silent for too long. Argument: its id."""

    client_settings_changed: list[Callable[[ClientSession], None]] = field(default_factory=list)
    """An official client sent its settings."""

    client_session_ended: list[Callable[[ClientSession], None]] = field(default_factory=list)
    """The broker forgot an official client."""

    client_answered: list[Callable[[str, v2.TelemetryCommand], None]] = field(default_factory=list)
    """An official client answered a diagnostic command. Arguments: its id, the answer."""

    def connect(self, reactions: BrokerEvents) -> None:
        """Add the callbacks of REACTIONS to those of each event."""
        for event in fields(self):
            getattr(self, event.name).extend(getattr(reactions, event.name))
