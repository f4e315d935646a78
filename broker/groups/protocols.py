"""The protocol of a group: its members share queues as PocketMQ's clients do, or pop, or use remoting.

No group has two of these at once.

Members of two protocols would not know of each other, and both would get the same messages. The three parts that have
members are created one after the other, and each asks here about the others.
"""

from __future__ import annotations

from typing import Protocol

from ...proto.errors import GroupInUse


class HasMembers(Protocol):
    """A part whose groups have members."""

    def has_members(self, group: str, /) -> bool:
        """Return whether GROUP has members."""
        ...


class Pops(Protocol):
    """The part for groups that pop."""

    def check_not_popped(self, group: str) -> None:
        """Raise GroupInUse if GROUP pops."""
        ...


class GroupProtocols:
    """Answers once it knows all three parts."""

    def __init__(self) -> None:
        self._sharing: HasMembers | None = None
        self._remoting: HasMembers | None = None
        self._pops: Pops | None = None

    def connect(self, sharing: HasMembers, remoting: HasMembers, pops: Pops) -> None:
        """SHARING has the groups of PocketMQ's clients, REMOTING those of remoting clients."""
        self._sharing, self._remoting, self._pops = sharing, remoting, pops

    def check_sharing(self, group: str) -> None:
        """Raise GroupInUse if a client of PocketMQ must not join GROUP."""
        if self._remoting is not None and self._remoting.has_members(group):
            raise GroupInUse(
                f"group {group!r} has members that use the remoting protocol (RocketMQ 4.x clients), and share its"
                " queues in their own way: stop them, or use another group",
                group=group,
            )
        self._check_not_popped(group)

    def check_remoting(self, group: str) -> None:
        """Raise GroupInUse if a client of the remoting protocol must not consume as GROUP."""
        if self._sharing is not None and self._sharing.has_members(group):
            raise GroupInUse(
                f"group {group!r} has members that use PocketMQ's protocol, and share its queues in their own way: stop"
                " them, or use another group",
                group=group,
            )
        self._check_not_popped(group)

    def has_members(self, group: str) -> bool:
        """Return whether GROUP has members that share its queues, in either way."""
        parts = (self._sharing, self._remoting)
        return any(part.has_members(group) for part in parts if part is not None)

    def _check_not_popped(self, group: str) -> None:
        if self._pops is not None:
            self._pops.check_not_popped(group)
