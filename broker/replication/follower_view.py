"""What a following replica shows to readers: its store up to the confirmed offset, and its master's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...proto.topics import PERMISSION_READ
from ...store.format.state_tables import GroupConfig, TopicConfig
from ...store.message_store import MessageStore
from ..commit_texts import CommitTextTable
from ..group_queues import ONE_SCOPE
from ..offsets import Offsets


@dataclass(frozen=True, slots=True)
class FollowerTables:
    """The tables that a master sends to its followers."""

    topics: Mapping[str, TopicConfig]
    texts: CommitTextTable
    offsets: Offsets
    #: The epoch of the master that sent the offsets; 0: none since the start.
    offsets_epoch: int
    groups: Mapping[str, GroupConfig] = field(default_factory=dict)

    def has_queue(self, topic: str, queue: int) -> bool:
        """May QUEUE of TOPIC be read, as far as is known here?"""
        found = self.topics.get(topic)
        return (
            found is not None
            and bool(found.permission & PERMISSION_READ)
            and 0 <= queue < found.read_queues
        )

    def may_consume(self, group: str) -> bool:
        """Is consumption switched on for GROUP, as far as is known here?"""
        found = self.groups.get(group)
        return found is None or found.consume_enable

    def committed(self, topic: str, group: str, queue: int) -> tuple[int, str]:
        """Return what GROUP has committed of QUEUE, −1 if it never has, and the text that goes with it."""
        offset = self.offsets.committed(topic, group, queue)
        text = self.texts.get(ONE_SCOPE, (group, topic, queue))
        has_text = text is not None and text.offset == offset
        return -1 if offset is None else offset, text.text if text is not None and has_text else ""


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
