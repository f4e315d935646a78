"""Committed offsets that official clients set themselves, over gRPC or remoting.

A kill may lose a forward step, whose messages are redelivered. A backward step counts once it is saved, and so does
each step of a group that has popped: its messages in flight are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..proto.gen import pocketmq_v1_pb2 as pb
from .callbacks import Safe, Step, in_turn
from .consumer_groups import Groups
from .offsets import Offsets
from .pop.service import PopService

#: Raises LeaseLost or GroupInUse if clients of this protocol must not commit offsets.
CheckCommit: TypeAlias = Callable[[str, Sequence[pb.GroupOffset]], None]


class OffsetUpdates:
    """Sets OFFSETS of groups. The event loop owns it."""

    def __init__(
        self, groups: Groups, offsets: Offsets, pops: PopService, check_commit: CheckCommit
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._pops = pops
        self._check_commit = check_commit

    def update(self, group: str, topic: str, queue: int, offset: int) -> Step | None:
        """Set OFFSET, which is inside QUEUE; create GROUP if it does not exist.

        Returns what calls back once the step is saved; None: there is no need to wait for it. Raises LeaseLost or
        GroupInUse if another client owns the queue, and StoreFull if messages in flight could not be forgotten.
        """
        self._check_commit(group, [pb.GroupOffset(topic=topic, queue=queue, offset=offset)])
        self._pops.check_kept(group)
        self._groups.ensure(group)
        before = self._offsets.committed(topic, group, queue)
        self._offsets.commit(topic, group, queue, offset)
        self._pops.moved(group, topic, queue, offset)
        if self._pops.has_popped(group, topic):
            return self._when_all_saved
        return None if before is None or offset >= before else self._offsets.when_saved

    def _when_all_saved(self, done: Safe) -> None:
        """Call DONE once offsets, and the messages in flight that were forgotten, are on disk, or with the error."""
        in_turn(done, self._offsets.when_saved, self._pops.when_durable)
