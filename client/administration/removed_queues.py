"""The check before queues of a topic are removed: every group of the topic must have read their messages.

A group reads a topic if it has committed an offset in one of its queues. Messages of a removed queue that it has not
committed are unread. Queues with messages that no group has read are not removed either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ...proto.errors import NotAuthorized, TopicInUse
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..queue import Queue, in_parts
from .brokers import Brokers

#: Number of groups whose offsets are requested at the same time, and maximum number of names in an error message.
_AT_ONCE: Final = 16
_NAMED_MAX: Final = 8


async def check_removed_are_read(
    brokers: Brokers, topic: str, readable: int, described: Mapping[str, pb.DescribeTopicReply]
) -> None:
    """Raise TopicInUse if queues of TOPIC from number READABLE on have unread messages."""
    removed = {
        Queue(topic, broker, one.queue): one
        for broker, reply in described.items()
        for one in reply.queues
        if one.queue >= readable and one.max_offset > one.min_offset
    }
    if not removed:
        return
    by_group, hidden = await _committed(brokers, topic, described)
    unread = {
        group: sum(
            max(0, one.max_offset - max(one.min_offset, offsets.get(queue, -1)))
            for queue, one in removed.items()
        )
        for group, offsets in by_group.items()
    }
    behind = {group: count for group, count in unread.items() if count}
    if by_group and not behind and not hidden:
        return
    messages = sum(one.max_offset - one.min_offset for one in removed.values())
    names = _some([f"{queue.broker}:{queue.number}" for queue in removed])
    if behind:
        why = "not read by " + _some([f"{name} ({_count(n)})" for name, n in behind.items()])
    elif hidden:
        why = f"perhaps not read by groups that you are not allowed to see: {hidden}"
    else:
        why = "not read by any group"
    raise TopicInUse(
        f"cannot reduce topic {topic!r} to {readable} readable queues: {_count(messages)} in removed queues ({names}),"
        f" {why}; reduce only the writable queues (--write-queues) until all is read, or use --force",
        topic=topic,
        limit=readable,
        messages=max(behind.values(), default=messages),
    )


async def _committed(
    brokers: Brokers, topic: str, described: Mapping[str, pb.DescribeTopicReply]
) -> tuple[dict[str, dict[Queue, int]], int]:
    """Return the committed offsets of each group in TOPIC, and the number of groups that the user may not see."""
    listed = await brokers.ask_all("ListGroups", pb.GroupListRequest(), pb.GroupListReply)
    hidden = max((reply.hidden for reply in listed.values()), default=0)
    groups = sorted({group.name for reply in listed.values() for group in reply.groups})

    async def of(group: str) -> dict[Queue, int] | None:
        found: dict[Queue, int] = {}
        for broker, reply in described.items():
            for some in in_parts(reply.queues):
                ids = [pb.QueueId(topic=topic, queue=one.queue) for one in some]
                request = pb.GroupOffsetsRequest(group=group, queues=ids)
                try:
                    answer = await brokers.ask(
                        broker, "GroupOffsets", request, pb.GroupOffsetsReply
                    )
                except NotAuthorized:
                    return None
                found |= {
                    Queue(topic, broker, one.queue): one.offset
                    for one in answer.offsets
                    if one.offset >= 0
                }
        return found

    by_group: dict[str, dict[Queue, int]] = {}
    for first in range(0, len(groups), _AT_ONCE):
        part = groups[first : first + _AT_ONCE]
        for group, found in zip(part, await asyncio.gather(*map(of, part)), strict=True):
            hidden += found is None
            if found:
                by_group[group] = found
    return by_group, hidden


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def _count(messages: int) -> str:
    return f"{messages:,} message" + ("" if messages == 1 else "s")
