"""How many messages of a queue a group stepped over: its filters did not want them, or they are lost (damaged, or gone
with a file). In memory: a broker that starts counts from 0.

Fetches of a group may look at the same messages twice, after a rebalance for instance. Each is counted once: of each
queue it is known up to where it was counted, and only what lies behind that counts. A group that goes back counts
again once it is further than ever.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.record_run import Longs

#: Queues of groups that are counted; beyond it the one that was looked at longest ago is forgotten.
COUNTED_MAX: Final = 10_000


@dataclass(slots=True)
class _Counted:
    up_to: int = 0
    count: int = 0
    lost: int = 0


class Counts:
    """Counts by group, topic and queue. Not thread-safe: the event loop owns it.

    lost: lost messages that groups stepped over, each once a group.
    """

    def __init__(self, limit: int = COUNTED_MAX) -> None:
        self._limit = limit
        self._counted: OrderedDict[tuple[str, str, int], _Counted] = OrderedDict()
        self.lost = 0

    def add(
        self,
        key: tuple[str, str, int],
        begin: int,
        end: int,
        *,
        stepped: int,
        wanted: Longs,
        queue_end: int,
        lost: int = 0,
    ) -> None:
        """Note that of the messages [BEGIN, END) of KEY (group, topic, queue) STEPPED were not wanted, LOST are lost.

        WANTED: queue offsets of the others; QUEUE_END: where the queue ends.
        """
        counted = self._of(key)
        if (
            counted.up_to > queue_end
        ):  # The topic was deleted and made again: its queues began anew.
            counted.up_to = 0
        if end <= counted.up_to:
            return
        if begin < counted.up_to:
            new = end - counted.up_to - int((wanted >= counted.up_to).sum())
            lost = min(lost, max(0, new))
            stepped = min(stepped, max(0, new - lost))
        counted.up_to = end
        counted.count += stepped
        counted.lost += lost
        self.lost += lost

    def lose(self, key: tuple[str, str, int]) -> None:
        """Note that a message of KEY that was delivered before is lost, and does not come again."""
        self._of(key).lost += 1
        self.lost += 1

    def _of(self, key: tuple[str, str, int]) -> _Counted:
        counted = self._counted.setdefault(key, _Counted())
        self._counted.move_to_end(key)
        if len(self._counted) > self._limit:
            self._counted.popitem(last=False)
        return counted

    def of_group(self, group: str) -> list[pb.FilteredCount]:
        """Return what GROUP stepped over, by topic and queue; queues of which it got all are left out."""
        return [
            pb.FilteredCount(
                topic=topic,
                queue=queue,
                group=name,
                count=counted.count,
                lost_count=counted.lost,
            )
            for (name, topic, queue), counted in sorted(
                self._counted.items(), key=lambda item: item[0]
            )
            if name == group and (counted.count or counted.lost)
        ]
