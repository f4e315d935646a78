"""What changes hands between two divisions of queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..queue import Queue
from .member import ordered_queues


class Move(NamedTuple):
    """QUEUE goes from member SOURCE to member TARGET; empty: nobody has it before, or afterwards."""

    queue: Queue
    source: str
    target: str


def moves(
    before: Mapping[str, Iterable[Queue]], after: Mapping[str, Iterable[Queue]]
) -> list[Move]:
    """Return what moves from the shares BEFORE to those AFTER, queues in order."""
    old = {queue: member for member, share in before.items() for queue in share}
    new = {queue: member for member, share in after.items() for queue in share}
    return [
        Move(queue, old.get(queue, ""), new.get(queue, ""))
        for queue in ordered_queues(old.keys() | new.keys())
        if old.get(queue, "") != new.get(queue, "")
    ]
