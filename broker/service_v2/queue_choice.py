"""Which queue a message goes to: the broker chooses, whatever queue a request names.

    with a message group        the consistent hash of the group, as Apache's proxy and our own clients choose
    with a lite topic           the same of the lite topic, so that it keeps its order
    with a priority             the queue of this number, the last one for higher priorities
    everything else             each queue in turn

Not thread-safe: the event loop owns it. Bound: topics that have a turn, `TURNS_MAX`; beyond, all begin anew.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ...proto.consistent_hash import consistent_bucket
from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.java_hash import java_hash
from ...store.state_tables import TopicConfig

TURNS_MAX: Final = 100_000
#: Groups whose queue is kept: nearly all messages are of groups that were there a moment ago.
_GROUPS_KEPT: Final = 4096


class QueueChoice:
    """Chooses queues."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def of(self, topic: TopicConfig, system: v2.SystemProperties, kind: v2.MessageType) -> int:
        """Return the queue of TOPIC, which has at least one to write, for a message of KIND."""
        if kind != v2.NORMAL:
            if key := system.message_group or system.lite_topic:
                return queue_of_group(key, topic.write_queues)
            if kind == v2.PRIORITY:
                return min(system.priority, topic.write_queues - 1)
        return self.next_of(topic)

    def next_of(self, topic: TopicConfig) -> int:
        """Return the queue of TOPIC whose turn it is."""
        turn = self._turns.get(topic.name, -1) + 1
        if turn >= topic.write_queues:
            turn = 0
        if len(self._turns) >= TURNS_MAX:
            self._turns.clear()
        self._turns[topic.name] = turn
        return turn


@lru_cache(_GROUPS_KEPT)
def queue_of_group(group: str, queues: int) -> int:
    """Return which of QUEUES takes the messages of GROUP."""
    return consistent_bucket(java_hash(group), queues)
