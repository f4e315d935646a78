"""The fence of a broker's queues: it refuses requests with another lease than the present one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from .kept_leases import LeaseStore
from .lease_table import QueueKey


class LeaseGuard:
    """Checks requests against LEASES. A valid lease without a record is recorded for LEASE_MS(). The event loop owns
    it.
    """

    def __init__(self, leases: LeaseStore, lease_ms: Callable[[], int]) -> None:
        self._leases = leases
        self._lease_ms = lease_ms

    def renew_by_fetch(self, group: str, topic: str, queue: int, token: int) -> None:
        """Renew the lease of GROUP's queue. Raises LeaseLost if TOKEN is not the present one."""
        key = QueueKey(topic, queue)
        self._check(group, key, token)
        leases = self._leases
        leases.table.extend(group, key, token, self._lease_ms(), leases.now_ms())

    def check_commit(self, group: str, offsets: Iterable[pb.GroupOffset]) -> None:
        """Raise LeaseLost unless OFFSETS have the tokens of their queues; without a token, a queue must be free."""
        table, now_ms = self._leases.table, self._leases.now_ms()
        for one in offsets:
            key = QueueKey(one.topic, one.queue)
            if one.lease:
                self._check(group, key, one.lease)
                table.accept_unrecorded(group, key, one.lease, self._lease_ms(), now_ms)
            elif table.holder(group, key, now_ms) is not None:
                raise self._lost(group, key, 0)

    def _check(self, group: str, key: QueueKey, token: int) -> None:
        if not self._leases.table.is_valid(group, key, token):
            raise self._lost(group, key, token)

    def _lost(self, group: str, key: QueueKey, token: int) -> errors.LeaseLost:
        holder = self._leases.holder(group, key)
        if not token:
            what = "commit with the lease of the queue, or when no member owns it"
        else:
            what = "drop the messages that were read, and request the queue again"
        by = f"is owned by member {holder.member_id!r}" if holder else "has no owner"
        under = f", not under token {token}" if token else ""
        return errors.LeaseLost(
            f"queue {key.queue} of {key.topic!r} {by} for group {group!r}{under}: {what}",
            topic=key.topic,
            queue=key.queue,
            group=group,
            holder=holder.member_id if holder else "",
        )
