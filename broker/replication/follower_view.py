"""What a follower shows to readers: its store up to the confirmed offset, and its master's tables."""

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
        """Return whether QUEUE of TOPIC may be read, as far as this follower knows."""
        found = self.topics.get(topic)
        return (
            found is not None
            and bool(found.permission & PERMISSION_READ)
            and 0 <= queue < found.read_queues
        )

    def may_consume(self, group: str) -> bool:
        """Return whether consumption is switched on for GROUP, as far as this follower knows."""
        found = self.groups.get(group)
        return found is None or found.consume_enable

    def committed(self, topic: str, group: str, queue: int) -> tuple[int, str]:
        """Return the committed offset of GROUP in QUEUE, −1 if there is none, and its metadata."""
        offset = self.offsets.committed(topic, group, queue)
        text = self.texts.get(ONE_SCOPE, (group, topic, queue))
        has_text = text is not None and text.offset == offset
        return -1 if offset is None else offset, text.text if text is not None and has_text else ""


@dataclass(frozen=True, slots=True)
class FollowerView:
    """STORE, of which readers see the confirmed part, and TABLES."""

    store: MessageStore
    tables: FollowerTables
    #: The epoch of the master that it follows.
    epoch: int
    #: Whether it has everything that its master had confirmed a moment ago: one heartbeat as a
    #: rule, up to 5 s (replica.SILENT_MS). If false, it may lack anything from some offset on.
    is_current: bool
