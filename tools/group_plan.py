"""`pocketmq group plan`: who would read which queues if members, queues or the strategy changed.

Pure arithmetic over the strategies of `pocketmq.client.allocation`: nothing is changed, and without a group nobody is
asked. What moves is told against the present: the shares that GROUP has, or those that the strategy makes of the
numbers given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import click

from ..client import Queue
from ..client.allocation import (
    Member,
    Move,
    Strategy,
    allocated,
    known_strategies,
    moves,
    strategy_named,
)
from .options import json_option
from .output import print_json, print_table

_DEFAULT_STRATEGY: Final = "sticky"
_DEFAULT_BROKER: Final = "broker-a"
_MEMBERS_MAX: Final = 10_000
_QUEUES_MAX: Final = 65_536
#: TOPIC[@BROKER]=[NOW:]THEN
_COUNT: Final = re.compile(r"([^@=]+)(?:@([^=]+))?=(?:(\d+):)?(\d+)")


@dataclass(frozen=True, slots=True)
class Situation:
    """Who is there, which queues there are, and who reads which."""

    members: list[Member]
    queues: list[Queue]
    shares: Mapping[str, Sequence[Queue]]


@dataclass(frozen=True, slots=True)
class Count:
    """TOPIC has NOW queues on BROKER, and would have THEN. An empty broker: wherever the topic is."""

    topic: str
    broker: str
    now: int
    then: int


@click.command()
@click.option("--members", "member_count", type=click.IntRange(1, _MEMBERS_MAX), required=True)
@click.option(
    "--queues",
    "counts",
    multiple=True,
    required=True,
    metavar="TOPIC[@BROKER]=[NOW:]N",
    help="A topic and its queues; 8:16 are 8 now, and 16 then. Again for more topics and brokers.",
)
@click.option("--add-member", "added", multiple=True, metavar="ID", help="If ID came. Repeatable.")
@click.option(
    "--remove-member", "removed", multiple=True, metavar="ID", help="If ID went. Repeatable."
)
@click.option(
    "--strategy",
    help=f"One of {', '.join(known_strategies())}, or module:Class.  [default: sticky]",
)
@json_option("one document")
def plan(
    *,
    member_count: int,
    counts: tuple[str, ...],
    added: tuple[str, ...],
    removed: tuple[str, ...],
    strategy: str | None,
    as_json: bool,
) -> None:
    """Show who would get which queues, and what moves, if members, queues or the strategy changed.

    Members are called member-1, member-2 and so on.
    """
    chosen = strategy_named(strategy or _DEFAULT_STRATEGY)
    parsed = [parse_count(text) for text in counts]
    present = imagined(chosen, member_count, parsed)
    future = changed(present, added, removed, [queue for one in parsed for queue in _then(one)])
    show(chosen, present, allocated(chosen, future.members, future.queues), as_json=as_json)


def parse_count(text: str) -> Count:
    """Return what TEXT, "orders@broker-a=8:16", says; raise BadParameter if it says nothing."""
    found = _COUNT.fullmatch(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not TOPIC=N, TOPIC@BROKER=N or TOPIC=NOW:N", param_hint="--queues"
        )
    topic, broker, now, then = found.groups()
    count = Count(topic, broker or _DEFAULT_BROKER, int(now or then), int(then))
    if max(count.now, count.then) > _QUEUES_MAX:
        raise click.BadParameter(
            f"{text!r}: a topic has {_QUEUES_MAX} queues at most", param_hint="--queues"
        )
    return count


def _now(count: Count) -> list[Queue]:
    return [Queue(count.topic, count.broker, number) for number in range(count.now)]


def _then(count: Count) -> list[Queue]:
    return [Queue(count.topic, count.broker, number) for number in range(count.then)]


def imagined(strategy: Strategy, member_count: int, counts: Iterable[Count]) -> Situation:
    """Return a group of MEMBER_COUNT members with the shares that STRATEGY makes."""
    queues = [queue for count in counts for queue in _now(count)]
    topics = frozenset(queue.topic for queue in queues)
    width = len(str(member_count))
    members = [
        Member(f"member-{number:0{width}}", topics=topics) for number in range(1, member_count + 1)
    ]
    return Situation(members, queues, allocated(strategy, members, queues))


def changed(
    present: Situation, added: Sequence[str], removed: Sequence[str], queues: list[Queue]
) -> Situation:
    """Return PRESENT with members ADDED and REMOVED, over QUEUES; members say what they hold.

    Raises BadParameter for a member that is there already, or that is not.
    """
    known = {member.member_id for member in present.members}
    for member_id in removed:
        if member_id not in known:
            names = ", ".join(sorted(known)[:20])
            raise click.BadParameter(
                f"{member_id!r} is no member; there are: {names}", param_hint="--remove-member"
            )
    if twice := known.intersection(added):
        raise click.BadParameter(f"{min(twice)!r} is a member already", param_hint="--add-member")
    topics = frozenset(queue.topic for queue in queues)
    stay = [
        replace(one, held=tuple(present.shares.get(one.member_id, ())), topics=one.topics | topics)
        for one in present.members
        if one.member_id not in removed
    ]
    come = [Member(member_id, topics=topics) for member_id in dict.fromkeys(added)]
    return Situation([*stay, *come], queues, present.shares)


def show(
    strategy: Strategy, present: Situation, then: Mapping[str, list[Queue]], *, as_json: bool
) -> None:
    """Print what STRATEGY would do, against the PRESENT shares."""
    changes = moves(present.shares, then)
    if as_json:
        print_json(document(strategy, present, then, changes))
        return
    queue_count = sum(map(len, then.values()))
    first = sum(not move.source for move in changes)
    click.echo(
        f"strategy {strategy.name}: {_counted(len(then), 'member')}, {_counted(queue_count, 'queue')};"
        f" {len(changes) - first} change hands, {first} had no reader"
    )
    names = list(dict.fromkeys([*present.shares, *then]))
    print_table(
        ["member", "now", "then", "gains", "loses", "queues then"],
        [
            [
                name if name in then else f"{name} (gone)",
                len(present.shares.get(name, ())),
                len(then.get(name, ())),
                sum(move.target == name for move in changes),
                sum(move.source == name for move in changes),
                shortened(then.get(name, ())),
            ]
            for name in names
        ],
    )
    if nobodys := [move.queue for move in changes if not move.target]:
        click.echo(f"read by nobody then: {shortened(nobodys)}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def document(
    strategy: Strategy,
    present: Situation,
    then: Mapping[str, Sequence[Queue]],
    changes: Sequence[Move],
) -> dict[str, Any]:
    """Return everything as JSON shows it."""
    return {
        "strategy": strategy.name,
        "now": {
            name: [_fields(queue) for queue in share] for name, share in present.shares.items()
        },
        "then": {name: [_fields(queue) for queue in share] for name, share in then.items()},
        "moves": [
            {**_fields(move.queue), "from": move.source or None, "to": move.target or None}
            for move in changes
        ],
    }


def _fields(queue: Queue) -> dict[str, Any]:
    return {"topic": queue.topic, "broker": queue.broker, "queue": queue.number}


def shortened(queues: Iterable[Queue]) -> str:
    """Return QUEUES for people, neighbours as ranges: "orders@broker-a:0-3,7 orders@broker-b:0"."""
    parts = []
    for (topic, broker), group in groupby(sorted(queues), key=lambda queue: queue[:2]):
        ranges = []
        for _, run in groupby(enumerate(group), key=lambda pair: pair[1].number - pair[0]):
            numbers = [queue.number for _, queue in run]
            ranges.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
        parts.append(f"{topic}@{broker}:{','.join(ranges)}")
    return " ".join(parts) or "-"
