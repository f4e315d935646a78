"""What is checked in requests for leases, each error with field, limit and value. Pure.

Bounds: QUEUES_MAX queues in one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...proto.errors import InvalidArgument
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..groups import check_own_choice
from .leases import Asker, QueueKey, Wanted
from .names import check_least, check_member, check_range

#: Queues in one request: the loop serves nobody else meanwhile.
QUEUES_MAX: Final = 10_000
LEASE_LEAST_MS: Final = 1_000
LEASE_MOST_MS: Final = 600_000
_TOKEN_MAX: Final = 1 << 62


def asker_of(request: pb.LeaseRequest, default_lease_ms: int) -> Asker:
    """Return who asks by REQUEST, for DEFAULT_LEASE_MS if it does not say for how long. Raises InvalidArgument."""
    check_own_choice(request.group)
    check_member("member_id", request.member_id)
    if request.instance_id:
        check_member("instance_id", request.instance_id)
    check_least("wait_ms", request.wait_ms, 0)
    check_least("generation", request.generation, 0)
    if request.lease_ms:
        check_range("lease_ms", request.lease_ms, LEASE_LEAST_MS, LEASE_MOST_MS)
    return Asker(
        group=request.group,
        member_id=request.member_id,
        instance_id=request.instance_id,
        lease_ms=request.lease_ms or default_lease_ms,
    )


def wanted_in(queues: Sequence[pb.QueueLease]) -> list[Wanted]:
    """Return QUEUES of a request, each once. Raises InvalidArgument."""
    if not 1 <= len(queues) <= QUEUES_MAX:
        raise InvalidArgument(
            f"queues: {len(queues)} in one request, must be 1 to {QUEUES_MAX}: ask in parts",
            field="queues",
            limit=QUEUES_MAX,
            value=len(queues),
        )
    wanted: dict[QueueKey, Wanted] = {}
    for one in queues:
        check_range("token", one.token, 0, _TOKEN_MAX)
        key = QueueKey(one.topic, one.queue)
        if key in wanted:
            raise InvalidArgument(
                f"queues: queue {key.queue} of {key.topic[:64]!r} stands twice: name it once",
                field="queues",
                value=key.queue,
            )
        wanted[key] = Wanted(key, one.token)
    return list(wanted.values())
