"""Strategy `configured`: a table says who reads what. Apache's "CONFIG", with one table for the whole group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...proto.errors import ConfigError
from ..queue import Queue
from .member import Member, ordered_members, ordered_queues
from .strategy import Shares


class Configured:
    """SHARES: queues by instance id, or by member id for members without one. What it leaves out goes to nobody.

    Queues that do not exist, or whose topic the member does not subscribe to, are passed over. Raises ConfigError for a
    queue that stands there twice.
    """

    name = "configured"

    def __init__(self, shares: Mapping[str, Iterable[Queue]]) -> None:
        self._owners: dict[Queue, str] = {}
        for place, queues in shares.items():
            for queue in queues:
                owner = self._owners.setdefault(queue, place)
                if owner != place:
                    raise ConfigError(
                        f"queue {queue} is configured for {owner!r} and for {place!r}: leave one of them",
                        field="shares",
                        value=queue,
                    )

    def allocate(self, members: Sequence[Member], queues: Sequence[Queue]) -> Shares:
        present = ordered_members(members)
        by_place = {member.place: member for member in present}
        shares: Shares = {member.member_id: [] for member in present}
        for queue in ordered_queues(queues):
            owner = by_place.get(self._owners.get(queue, ""))
            if owner is not None and queue.topic in owner.topics:
                shares[owner.member_id].append(queue)
        return shares
