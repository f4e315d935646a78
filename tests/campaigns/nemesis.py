"""What is done to a replica set, drawn from a seed: steps of a plan that replays, whatever the machine makes of it.

A step says what goes wrong, with whom, and for how long; who is master then is found out when it is done. Several
things go wrong at once now and then. `failover` steps end the master's reign, if anything does; the others are for
what must not end it, or what makes the next one harder.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Trouble(Enum):
    """What goes wrong. WHO: "master", or "follower": one of the others."""

    KILL = "kill -9 of {who}, which comes back"
    KILL_SOON = "kill -9 of {who}, which comes back at once"
    KILL_ALL = "kill -9 of all at once"
    STOP = "SIGSTOP of {who}, and SIGCONT"
    RESTART = "{who} is stopped cleanly, and comes back"
    MOVE = "mastership is handed over"
    CUT = "{who} is cut off from one of the others"
    CUT_ONE_WAY = "nothing that {who} says arrives at the others"
    CUT_FROM_ALL = "{who} is cut off from all of the others"
    CUT_REGISTRY = "{who} is cut off from ZooKeeper"
    CUT_REGISTRY_ALL = "nobody reaches ZooKeeper"
    CUT_CLIENTS = "{who} is cut off from clients"
    ALONE = "{who} is cut off from the others and from ZooKeeper"
    SNAP = "connections of {who} with the others break"
    SLOW = "what {who} and the others say takes a tenth of a second"
    REGISTRY_LEADER = "kill -9 of ZooKeeper's leader, which comes back"
    SLOW_DISK = "each sync of {who} takes a fifth of a second"
    FULL_DISK = "the disk of {who} is full"
    CLOCK = "the wall clock of {who} jumps by an hour"


#: What ends the master's reign, how often it is drawn, and for how many seconds it lasts, least and most.
FAILOVERS: Final[Mapping[Trouble, tuple[int, float, float]]] = {
    Trouble.KILL: (6, 2.5, 4.0),
    Trouble.STOP: (4, 3.0, 5.0),
    Trouble.CUT_REGISTRY: (3, 3.0, 5.0),
    Trouble.ALONE: (3, 3.0, 5.0),
    Trouble.RESTART: (2, 0.0, 3.0),
    Trouble.MOVE: (2, 0.0, 0.5),
}
#: What need not end it.
OTHERS: Final[Mapping[Trouble, tuple[int, float, float]]] = {
    Trouble.KILL: (2, 0.0, 3.0),
    Trouble.KILL_SOON: (2, 0.0, 0.0),
    Trouble.KILL_ALL: (1, 0.0, 0.5),
    Trouble.STOP: (2, 0.1, 4.0),
    Trouble.CUT: (3, 0.5, 5.0),
    Trouble.CUT_ONE_WAY: (2, 0.5, 4.0),
    Trouble.CUT_FROM_ALL: (2, 0.5, 5.0),
    Trouble.CUT_REGISTRY: (2, 0.5, 3.0),
    Trouble.CUT_REGISTRY_ALL: (1, 0.5, 3.0),
    Trouble.CUT_CLIENTS: (1, 0.5, 2.0),
    Trouble.SNAP: (2, 0.1, 1.0),
    Trouble.SLOW: (1, 1.0, 3.0),
    Trouble.REGISTRY_LEADER: (2, 0.5, 2.0),
    Trouble.SLOW_DISK: (2, 1.0, 3.0),
    Trouble.FULL_DISK: (1, 1.0, 3.0),
    Trouble.CLOCK: (1, 0.5, 2.0),
}
_MASTER: Final = "master"
_FOLLOWER: Final = "follower"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """TROUBLE befalls WHO, AFTER_S into its step, for LASTS_S; CHANCE, below 1, chooses whatever is left open."""

    trouble: Trouble
    who: str
    after_s: float
    lasts_s: float
    chance: float

    def __str__(self) -> str:
        return f"{self.trouble.value.format(who=self.who)} ({self.lasts_s:.1f} s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Strikes after a while of calm; when they are over all is mended."""

    calm_s: float
    strikes: tuple[Strike, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.strikes))


def plan(seed: int, *, others_share: float = 0.35, calm_s_max: float = 1.0) -> Iterator[Step]:
    """Yield steps without end; each has one that may end a reign, and OTHERS_SHARE of them another trouble besides."""
    chooser = random.Random(seed)
    while True:
        strikes = [_draw(chooser, FAILOVERS, _MASTER, 0.0)]
        if chooser.random() < others_share:
            who = chooser.choice((_MASTER, _FOLLOWER, _FOLLOWER))
            strikes.append(_draw(chooser, OTHERS, who, chooser.uniform(0.0, 2.0)))
        yield Step(calm_s=chooser.uniform(0.2, calm_s_max), strikes=tuple(strikes))


def _draw(
    chooser: random.Random,
    among: Mapping[Trouble, tuple[int, float, float]],
    who: str,
    after_s: float,
) -> Strike:
    trouble = chooser.choices(list(among), [weight for weight, _, _ in among.values()])[0]
    _, least_s, most_s = among[trouble]
    return Strike(
        trouble=trouble,
        who=who,
        after_s=after_s,
        lasts_s=chooser.uniform(least_s, most_s),
        chance=chooser.random(),
    )
