"""A strategy's result, held to the rules: anybody may write a strategy, and a group must not suffer from its faults."""

from __future__ import annotations

from collections.abc import Sequence

from ...proto.errors import ConfigError
from ..queue import Queue
from .member import Member
from .strategy import Shares, Strategy


def allocated(strategy: Strategy, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
    """Return what STRATEGY gives each of MEMBERS, an entry for each, also where it gave none.

    Raises ConfigError if it gave a queue twice, one that is not there, one to a stranger, or one to a member that does
    not subscribe to its topic. Queues that it gave to nobody are no fault.
    """
    shares = strategy.allocate(members, queues)
    topics = {member.member_id: member.topics for member in members}
    there = set(queues)
    owners: dict[Queue, str] = {}
    for member_id, share in shares.items():
        for queue in share:
            if member_id not in topics:
                raise _fault(strategy, queue, f"to {member_id!r}, which is no member")
            if queue not in there:
                raise _fault(strategy, queue, f"to {member_id!r}, but there is no such queue")
            if queue.topic not in topics[member_id]:
                raise _fault(strategy, queue, f"to {member_id!r}, which does not subscribe to it")
            if queue in owners:
                raise _fault(strategy, queue, f"to {owners[queue]!r} and to {member_id!r}")
            owners[queue] = member_id
    return {member_id: list(shares.get(member_id, ())) for member_id in topics}


def _fault(strategy: Strategy, queue: Queue, where: str) -> ConfigError:
    return ConfigError(
        f"allocation strategy {strategy.name!r} gave queue {queue} {where}: correct the strategy",
        field="strategy",
        value=strategy.name,
        queue=queue,
    )
