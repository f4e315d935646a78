"""Remove topics that the calling user may not see from a reply about a group."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from typing import Any

from ...proto.access.listing import SeenNames
from ...proto.gen import pocketmq_v1_pb2 as pb


def without_hidden_topics(reply: pb.GroupStateReply, seen: SeenNames) -> pb.GroupStateReply:
    """Remove all rows of topics that are not SEEN from REPLY, and set the number of these topics in it; return it."""
    sees = seen.has_topic
    _keep(reply.leases, sees)
    _keep(reply.filtered, sees)
    for share in reply.shares:
        _keep(share.queues, sees)
    for member in (*reply.members, *reply.official):
        seen_member(member, sees)
    reply.hidden_topics = seen.hidden_topics
    return reply


def seen_member(member: pb.Member, sees: Callable[[str], bool]) -> pb.Member:
    """Return MEMBER without rows of topics that the calling user may not see."""
    _keep(member.subscriptions, sees)
    _keep(member.held, sees)
    return member


def _keep(rows: MutableSequence[Any], sees: Callable[[str], bool]) -> None:
    """Remove the ROWS of topics that are not seen."""
    kept = [row for row in rows if sees(row.topic)]
    if len(kept) < len(rows):
        del rows[:]
        rows.extend(kept)
