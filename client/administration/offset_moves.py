"""Where a group is to go on instead: in each queue from one offset to another. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...proto.errors import InvalidArgument, QueueNotFound
from ..queue import Queue
from .descriptions import GroupPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetTarget:
    """Where to: exactly one of the four."""

    #: The first message stored at or after this instant.
    time_ms: int | None = None
    offset: int | None = None
    first: bool = False
    #: Behind the last message: what is there now is skipped.
    last: bool = False

    def __post_init__(self) -> None:
        given = (self.time_ms is not None) + (self.offset is not None) + self.first + self.last
        if given != 1:
            raise InvalidArgument(
                f"{given} targets are given: give a time, an offset, the first or the last message",
                field="target",
                value=given,
            )
        for field, value in (("time_ms", self.time_ms), ("offset", self.offset)):
            if value is not None and value < 0:
                raise InvalidArgument(
                    f"{field} is {value}: must not be negative", field=field, limit=0, value=value
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMove:
    """In QUEUE the group goes on at TO instead of FROM (−1: it never committed)."""

    queue: Queue
    from_offset: int
    to_offset: int
    min_offset: int
    max_offset: int

    @property
    def skipped(self) -> int:
        """Messages that the group will not get."""
        return max(0, self.to_offset - max(self.from_offset, self.min_offset))

    @property
    def repeated(self) -> int:
        """Messages that it gets once more."""
        return max(0, min(self.from_offset, self.max_offset) - self.to_offset)


def move(position: GroupPosition, target: OffsetTarget, offset_at_time: int) -> OffsetMove:
    """Return the move of POSITION to TARGET, within what the queue holds; OFFSET_AT_TIME is where its time lies."""
    low, high = position.min_offset, position.max_offset
    if target.offset is not None:
        wanted = target.offset
    elif target.time_ms is not None:
        wanted = offset_at_time
    else:
        wanted = low if target.first else high
    return OffsetMove(
        queue=position.queue,
        from_offset=position.offset,
        to_offset=min(max(wanted, low), high),
        min_offset=low,
        max_offset=high,
    )


def chosen(queues: Sequence[Queue], wanted: Collection[Queue | int]) -> list[Queue]:
    """Return those of QUEUES that are WANTED, a mere number on every broker; none wanted: all. Raises QueueNotFound."""
    if not wanted:
        return list(queues)
    for one in wanted:
        if not any(one in (queue, queue.number) for queue in queues):
            have = ", ".join(f"{queue.broker}:{queue.number}" for queue in queues[:32]) or "none"
            raise QueueNotFound(f"there is no queue {one}; there are {have}", queue=one)
    return [queue for queue in queues if queue in wanted or queue.number in wanted]
