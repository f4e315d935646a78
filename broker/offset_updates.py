"""Committed offsets that official clients set themselves, over gRPC or remoting.

A kill may lose a forward step, whose messages are redelivered. A backward step counts once it is saved, and so does
each step of a group that has popped: its messages in flight are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..proto.errors import InvalidArgument
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..store.message_store import MessageStore
from .callbacks import Step, in_turn
from .consumer_groups import Groups
from .offsets import Offsets
from .pop.service import PopService

#: Raises LeaseLost or GroupInUse if clients of this protocol must not commit offsets.
CheckCommit: TypeAlias = Callable[[str, Sequence[pb.GroupOffset]], None]


def check_committable(store: MessageStore, one: pb.GroupOffset, field: str = "offset") -> None:
    """Raise InvalidArgument, which names FIELD, if the offset ONE is negative or after the end of its queue."""
    _, high = store.queue_bounds(one.topic, one.queue)
    if not 0 <= one.offset <= high:
        raise InvalidArgument(
            f"offset {one.offset} of {one.topic}/{one.queue} cannot be committed: the queue ends at {high}",
            field=field,
            limit=high,
            value=one.offset,
        )


class OffsetUpdates:
    """Sets OFFSETS of groups. The event loop owns it."""

    def __init__(
        self, groups: Groups, offsets: Offsets, pops: PopService, check_commit: CheckCommit
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._pops = pops
        self._check_commit = check_commit

    def update(self, group: str, topic: str, queue: int, offset: int) -> Step:
        """Set OFFSET, which is inside QUEUE; create GROUP if it does not exist.

        Returns what calls back once the client may be answered. Raises LeaseLost or GroupInUse if another client owns
        the queue, and StoreFull if messages in flight could not be forgotten.
        """
        self._check_commit(group, [pb.GroupOffset(topic=topic, queue=queue, offset=offset)])
        self._pops.check_kept(group)
        self._groups.ensure(group)
        before = self._offsets.committed(topic, group, queue)
        self._offsets.commit(topic, group, queue, offset)
        self._pops.moved(group, topic, queue, offset)
        if self._pops.has_popped(group, topic):
            return lambda done: in_turn(done, self._offsets.when_saved, self._pops.when_durable)
        if before is None or offset >= before:
            return lambda done: done(None)
        return self._offsets.when_saved
