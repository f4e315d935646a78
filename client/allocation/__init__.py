"""Which member of a group reads which queues: strategies, pure functions of members and queues.

    strategy = strategy_named("sticky")
    shares = allocated(strategy, [Member("a", topics=topics), Member("b", topics=topics)], queues)

| name | a member gets |
|---|---|
| `average` | of each topic a piece without gaps; Apache's default |
| `average-by-circle` | of each topic every n-th queue |
| `consistent-hash` | the queues whose hash falls before one of its points on a ring: who comes or goes moves few |
| `machine-room` | of each topic its part of the queues in the rooms that were named |
| `machine-room-nearby` | the queues of its own room, and its part of those in rooms without a member |
| `configured` | what a table says |
| `sticky` | what it has, as far as all have the same number; over all topics at once |

All but the last two compute what Apache RocketMQ 5.5 computes for members and queues of the same names. An own strategy
is any object with a `name` and `allocate`: see `Strategy`.
"""

from .sticky import Sticky
from .strategies import (
    Average,
    AverageByCircle,
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    known_strategies,
    strategy_named,
)
from .strategy import Member, Move, Strategy, allocated, moves

__all__ = [
    "Member",
    "Strategy",
    "allocated",
    "strategy_named",
    "known_strategies",
    "Average",
    "AverageByCircle",
    "ConsistentHash",
    "MachineRoom",
    "MachineRoomNearby",
    "Configured",
    "Sticky",
    "Move",
    "moves",
]
