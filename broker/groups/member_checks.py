"""Checks of requests of members: a join becomes a `JoinedMember`; an assignment must be well-formed."""

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
#: Limit of queues that one member may own, and that one assignment may contain.
HELD_MAX: Final = 10_000
PLANNED_MAX: Final = 100_000
GENERATION_MAX: Final = 1 << 53
_KIND_LENGTH_MAX: Final = 32
_QUEUE_MAX: Final = (1 << 31) - 1


def others_member(member_id: str, instance_id: str, group: str) -> NotAuthorized:
    """Return the error for a member id or instance id in GROUP that belongs to another user."""
    who = f"member {member_id[:64]!r}"
    if instance_id:
        who += f" or instance {instance_id[:64]!r}"
    return NotAuthorized(
        f"{who} of group {group!r} is another user's: use an id of your own",
        resource=f"Group:{group}",
        member=member_id[:64],
    )


def member_of(join: pb.Join, peer: str, timers: Timers, user: str = "") -> JoinedMember:
    """Return the member in JOIN, from PEER, of USER. It joins now, by TIMERS.

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
    member.record_sign_of_life(timers)
    return member


def check_held(queues: Sequence[pb.HeldQueue]) -> Sequence[pb.HeldQueue]:
    """Return QUEUES, which a member owns, if they are well-formed; raise InvalidArgument or InvalidName."""
    check_range("held", len(queues), 0, HELD_MAX)
    for queue in queues:
        _check_queue(queue)
    return queues


def check_plan(plan: pb.Plan) -> pb.Plan:
    """Return PLAN if it is well-formed; raise InvalidArgument or InvalidName."""
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
            f"queue {queue.queue} of {queue.topic!r} has no broker_name: set it to the name of the queue's broker",
            field="broker_name",
            value="",
        )
    check_name("broker_name", queue.broker_name)
    check_range("queue", queue.queue, 0, _QUEUE_MAX)
