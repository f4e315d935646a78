"""Which names of a list its reader may see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..rpc.methods import CallContext
from .policies import GET, LIST, Need, may_be_of_system

T = TypeVar("T")


def visible(
    call: CallContext,
    rows: Sequence[T],
    name_of: Callable[[T], str],
    need: Callable[[str, int], Need],
) -> list[T]:
    """Return those of ROWS that the user of CALL may list; NEED makes a need of a name, NAME_OF, and actions.

    A user who may list all of a kind is asked once, except about topics of groups and of the system: these need more.
    """
    sees_all = call.user.may(call, need("*", LIST | GET))
    kind = need("*", LIST | GET).type

    def sees(row: T) -> bool:
        one = need(name_of(row), LIST | GET)
        is_plain = one.type == kind and not may_be_of_system(one)
        return (sees_all and is_plain) or call.user.may(call, one)

    return [one for one in rows if sees(one)]
