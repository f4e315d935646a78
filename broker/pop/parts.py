"""What the tables of deliveries share, and what they are told of a receive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ...store.message_store import MessageStore
from ...store.run import Appended
from ..accounts.accounts import Accounts
from ..offsets import Offsets
from .asked import Delivery
from .changes import PopJournal
from .leases import Leases


class Rules(NamedTuple):
    """What a group and a topic say of a receive."""

    attempts_max: int
    #: The topic's queues, in the order in which they are looked at.
    queues: Sequence[int]
    #: A group that is new begins with the oldest message of a queue, otherwise behind the newest.
    from_oldest: bool = True


#: Puts a record among the dead letters of a group: record, group, reason, reconsume times.
Bury: TypeAlias = Callable[[bytes, str, str, int], Appended]


@dataclass(kw_only=True, slots=True)
class PopParts:
    """What all tables share."""

    store: MessageStore
    offsets: Offsets
    leases: Leases
    journal: PopJournal
    serials: Iterator[int]
    bury: Bury
    in_flight_max: int
    #: Of the records that one receive delivers.
    bytes_max: int
    #: Lets those who wait for something of (group, topic) try again.
    wake: Callable[[tuple[str, str]], object] = lambda key: None
    #: Knows what groups step over.
    accounts: Accounts = field(default_factory=Accounts)
    in_flight: int = 0


class Taken(NamedTuple):
    """What a look found: DELIVERIES; how many messages were BURIED; MORE: there is more to look at."""

    deliveries: list[Delivery]
    buried: int
    more: bool
