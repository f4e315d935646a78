"""Which names of a list its reader may see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..rpc.methods import CallContext
from .policies import GET, LIST, Need

T = TypeVar("T")


def visible(
    call: CallContext,
    rows: Sequence[T],
    name_of: Callable[[T], str],
    need: Callable[[str, int], Need],
) -> list[T]:
    """Return those of ROWS that the user of CALL may list; NEED makes a need of a name, NAME_OF, and actions."""
    if call.user.may(call, need("*", LIST | GET)):
        return list(rows)
    return [one for one in rows if call.user.may(call, need(name_of(one), LIST | GET))]
