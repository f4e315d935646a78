"""Checks of what members send: a join becomes a `JoinedMember`, a plan is one that can be kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...proto.errors import InvalidArgument, NotAuthorized
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import check_topic
from ..consumer_groups import check_own_choice
from ..timing.timers import Timers
from .field_checks import check_member, check_name, check_range
from .member_subscriptions import MemberSubscriptions
from .membership import JoinedMember

SESSION_LEAST_MS: Final = 6_000
SESSION_MOST_MS: Final = 30 * 60_000
SESSION_DEFAULT_MS: Final = 30_000
#: Queues that one member may hold, and that one plan may give.
HELD_MAX: Final = 10_000
PLANNED_MAX: Final = 100_000
GENERATION_MAX: Final = 1 << 53
_KIND_LENGTH_MAX: Final = 32
_QUEUE_MAX: Final = (1 << 31) - 1


def others_member(member_id: str, instance_id: str, group: str) -> NotAuthorized:
    """Return how another user's member is refused: what it is in GROUP is known by its id, or by its instance's."""
    who = f"member {member_id[:64]!r}"
    if instance_id:
        who += f" or instance {instance_id[:64]!r}"
    return NotAuthorized(
        f"{who} of group {group!r} is another user's: take an id of your own",
        resource=f"Group:{group}",
        member=member_id[:64],
    )


def member_of(join: pb.Join, peer: str, timers: Timers, user: str = "") -> JoinedMember:
    """Return who joins with JOIN from PEER, as USER, now, by TIMERS.

    Raises InvalidArgument, InvalidName or InvalidFilter, which name the field.
    """
    check_own_choice(join.group)
    check_member("member_id", join.member_id)
    check_name("instance_id", join.instance_id)
    check_name("room", join.room)
    check_name("kind", join.kind[: _KIND_LENGTH_MAX + 1])
    check_range("kind", len(join.kind), 0, _KIND_LENGTH_MAX)
    check_range("generation", join.generation, 0, GENERATION_MAX)
    timeout_ms = join.session_timeout_ms or SESSION_DEFAULT_MS
    check_range("session_timeout_ms", timeout_ms, SESSION_LEAST_MS, SESSION_MOST_MS)
    wire = pb.Member(
        member_id=join.member_id,
        instance_id=join.instance_id,
        subscriptions=join.subscriptions,
        held=check_held(join.held),
        room=join.room,
        kind=join.kind,
        peer=peer,
    )
    member = JoinedMember(
        wire=wire,
        subscriptions=MemberSubscriptions.of(join),
        session_timeout_ms=timeout_ms,
        joined_unix_ms=timers.unix_ms(),
        user=user,
    )
    member.heard(timers)
    return member


def check_held(queues: Sequence[pb.HeldQueue]) -> Sequence[pb.HeldQueue]:
    """Return QUEUES, which a member holds, if they are well-formed; raise InvalidArgument or InvalidName."""
    check_range("held", len(queues), 0, HELD_MAX)
    for queue in queues:
        _check_queue(queue)
    return queues


def check_plan(plan: pb.Plan) -> pb.Plan:
    """Return PLAN if it can be read; raise InvalidArgument or InvalidName."""
    check_range("generation", plan.generation, 0, GENERATION_MAX)
    check_range("shares", sum(len(share.queues) for share in plan.shares), 0, PLANNED_MAX)
    check_range("shares", len(plan.shares), 0, PLANNED_MAX)
    for share in plan.shares:
        check_member("member_id", share.member_id)
        for queue in share.queues:
            _check_queue(queue)
    return plan


def _check_queue(queue: pb.HeldQueue) -> None:
    check_topic(queue.topic)
    if not queue.broker_name:
        raise InvalidArgument(
            f"queue {queue.queue} of {queue.topic!r} names no broker: broker_name is empty",
            field="broker_name",
            value="",
        )
    check_name("broker_name", queue.broker_name)
    check_range("queue", queue.queue, 0, _QUEUE_MAX)
