"""Filters the names in replies: users see only the topics and groups that they may list or read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..rpc.methods import CallContext
from .policies import GET, LIST, Need, may_be_of_system, to_see_group, to_see_topic

T = TypeVar("T")


def visible(
    may: Callable[[Need], bool],
    rows: Sequence[T],
    name_of: Callable[[T], str],
    need: Callable[[str, int], Need],
) -> list[T]:
    """Return those of ROWS that a user may list; NEED makes a need of a name (NAME_OF a row) and actions.

    MAY returns whether the user may do what a need describes.

    If the user may list the whole kind, one check is enough, except for system topics and topics of groups.
    """
    sees_all = may(need("*", LIST | GET))
    kind = need("*", LIST | GET).type

    def sees(row: T) -> bool:
        one = need(name_of(row), LIST | GET)
        is_plain = one.type == kind and not may_be_of_system(one)
        return (sees_all and is_plain) or may(one)

    return [one for one in rows if sees(one)]


class SeenNames:
    """The topics and groups that the user of CALL may see. Each name is checked once."""

    def __init__(self, call: CallContext) -> None:
        self._call = call
        self._topics: dict[str, bool] = {}
        self._groups: dict[str, bool] = {}

    def has_topic(self, name: str) -> bool:
        """May the user see topic NAME?"""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = self._call.user.may(self._call, to_see_topic(name))
        return found

    def has_group(self, name: str) -> bool:
        """May the user see group NAME?"""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = self._call.user.may(self._call, to_see_group(name))
        return found

    @property
    def hidden_topics(self) -> int:
        """The number of checked topics that the user may not see."""
        return sum(not seen for seen in self._topics.values())
