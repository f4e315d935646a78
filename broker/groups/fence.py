"""The fence of a broker's queues: requests under a lease that is not the queue's are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from .kept_leases import KeptLeases
from .lease_table import QueueKey


class Fence:
    """Holds requests against LEASES; what it finds no record of lasts for LEASE_MS(). The event loop owns it."""

    def __init__(self, leases: KeptLeases, lease_ms: Callable[[], int]) -> None:
        self._leases = leases
        self._lease_ms = lease_ms

    def renew_by_fetch(self, group: str, topic: str, queue: int, token: int) -> None:
        """Renew the lease of GROUP's queue. Raises LeaseLost if TOKEN is not the one by which it is held."""
        key = QueueKey(topic, queue)
        self._check(group, key, token)
        leases = self._leases
        leases.table.extend(group, key, token, self._lease_ms(), leases.now_ms())

    def check_commit(self, group: str, offsets: Iterable[pb.GroupOffset]) -> None:
        """Raise LeaseLost if OFFSETS are not those of who holds the queues; without a token nobody may hold them."""
        table, now_ms = self._leases.table, self._leases.now_ms()
        for one in offsets:
            key = QueueKey(one.topic, one.queue)
            if one.lease:
                self._check(group, key, one.lease)
                table.believe(group, key, one.lease, self._lease_ms(), now_ms)
            elif table.holder(group, key, now_ms) is not None:
                raise self._lost(group, key, 0)

    def _check(self, group: str, key: QueueKey, token: int) -> None:
        if not self._leases.table.is_valid(group, key, token):
            raise self._lost(group, key, token)

    def _lost(self, group: str, key: QueueKey, token: int) -> errors.LeaseLost:
        holder = self._leases.holder(group, key)
        if not token:
            what = "give its lease, or commit when nobody holds it"
        else:
            what = "drop what was read, and ask for it anew"
        by = f"is held by member {holder.member_id!r}" if holder else "is held by nobody"
        under = f", not under token {token}" if token else ""
        return errors.LeaseLost(
            f"queue {key.queue} of {key.topic!r} {by} for group {group!r}{under}: {what}",
            topic=key.topic,
            queue=key.queue,
            group=group,
            holder=holder.member_id if holder else "",
        )
