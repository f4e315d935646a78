"""What a reply about a group leaves out: everything about topics that the user who asks may not see."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

from ...proto.access.listing import SeenNames
from ...proto.gen import pocketmq_v1_pb2 as pb


def without_hidden_topics(reply: pb.GroupStateReply, seen: SeenNames) -> pb.GroupStateReply:
    """Return REPLY, from which all about topics that are not SEEN is removed; count those topics in it."""
    _keep(reply.leases, seen)
    _keep(reply.filtered, seen)
    for share in reply.shares:
        _keep(share.queues, seen)
    for member in (*reply.members, *reply.official):
        keep_seen_wishes(member, seen)
    reply.hidden_topics = seen.hidden_topics
    return reply


def keep_seen_wishes(member: pb.Member, seen: SeenNames) -> None:
    """Remove from MEMBER what it reads and holds of topics that are not SEEN."""
    _keep(member.subscriptions, seen)
    _keep(member.held, seen)


def _keep(rows: MutableSequence[Any], seen: SeenNames) -> None:
    """Remove those of ROWS whose topic is not SEEN."""
    kept = [row for row in rows if seen.has_topic(row.topic)]
    if len(kept) < len(rows):
        del rows[:]
        rows.extend(kept)
