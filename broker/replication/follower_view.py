"""What a replica that follows has of its set, as it is now: for whoever reads it there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...proto.topics import PERMISSION_READ
from ...store.format.state_tables import TopicConfig
from ...store.message_store import MessageStore
from ..accounts.accounts import Accounts
from ..groups.offsets import Offsets


@dataclass(frozen=True, slots=True)
class FollowerTables:
    """The tables that a master tells its followers."""

    topics: Mapping[str, TopicConfig]
    accounts: Accounts
    offsets: Offsets
    #: The epoch of the master that has told the offsets; 0: nobody has since the start.
    offsets_epoch: int

    def has_queue(self, topic: str, queue: int) -> bool:
        """May QUEUE of TOPIC be read, as far as is known here?"""
        found = self.topics.get(topic)
        return (
            found is not None
            and bool(found.permission & PERMISSION_READ)
            and 0 <= queue < found.read_queues
        )

    def committed(self, topic: str, group: str, queue: int) -> tuple[int, str]:
        """Return what GROUP has committed of QUEUE, −1 if it never has, and the text that goes with it."""
        offset = self.offsets.committed(topic, group, queue)
        text = self.accounts.metadata((group, topic, queue))
        has_text = text is not None and text[0] == offset
        return -1 if offset is None else offset, text[1] if text is not None and has_text else ""


@dataclass(frozen=True, slots=True)
class FollowerView:
    """STORE, of which readers see what is confirmed, and TABLES."""

    store: MessageStore
    tables: FollowerTables
    #: The epoch of the master that it follows.
    epoch: int
    #: Has it all that its master had confirmed a moment ago, a heartbeat as a rule and 5 s (replica.SILENT_MS) at the
    #: most? Else it may lack anything from some offset on.
    is_current: bool
