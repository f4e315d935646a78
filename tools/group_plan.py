"""`pocketmq group plan`: which member would read which queues if members, queues or the strategy changed.

Computes assignments with the strategies of `pocketmq.client.allocation_strategies`. Nothing is changed, and without a
group no broker is asked. The command shows which queues move, compared with the assignment that GROUP has, or with the
one that the strategy computes for the given numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import click
import yaml

from ..client import Admin, GroupStatus, Queue
from ..client.allocation import Member, Move, Strategy, allocated, moves
from ..client.allocation_strategies import Configured, MachineRoom, known_strategies, strategy_named
from ..proto.errors import TopicNotFound
from .completion import group_names
from .counted import counted
from .options import json_option, nameserver_option
from .output import print_json, print_table

_DEFAULT_STRATEGY: Final = "sticky"
_DEFAULT_BROKER: Final = "broker-a"
_MEMBERS_MAX: Final = 10_000
_QUEUES_MAX: Final = 65_536
#: TOPIC[@BROKER]=[NOW:]THEN
_COUNT: Final = re.compile(r"([^@=]+)(?:@([^=]+))?=(?:(\d{1,19}):)?(\d{1,19})")
#: TOPIC@BROKER:0-3,7
_SHARE: Final = re.compile(
    r"([^@]+)@([^:]+(?:@[^:]+)?):(\d{1,5}(?:-\d{1,5})?(?:,\d{1,5}(?:-\d{1,5})?)*)"
)


@dataclass(frozen=True, slots=True)
class Situation:
    """The members, the queues, and the assigned queues of each member."""

    members: list[Member]
    queues: list[Queue]
    shares: Mapping[str, Sequence[Queue]]


@dataclass(frozen=True, slots=True)
class Count:
    """TOPIC has NOW queues (None: not given) on BROKER ("": each broker that has it), and would have THEN."""

    topic: str
    broker: str
    now: int | None
    then: int

    def queues(self, number: int, broker: str = "") -> list[Queue]:
        """Return NUMBER queues."""
        there = broker or self.broker or _DEFAULT_BROKER
        return [Queue(self.topic, there, at) for at in range(number)]


@click.command()
@click.argument("name", shell_complete=group_names, metavar="[GROUP]", default="")
@click.option(
    "--members",
    "member_count",
    type=click.IntRange(1, _MEMBERS_MAX),
    help="Number of members, if no GROUP is given; they are named member-1, member-2 …",
)
@click.option(
    "--queues",
    "counts",
    multiple=True,
    metavar="TOPIC[@BROKER]=[NOW:]N",
    help="Number of queues of a topic, on each broker that has it. Without a GROUP, 8:16 means 8 now and 16 then."
    " Repeatable.",
)
@click.option(
    "--add-member", "added", multiple=True, metavar="ID", help="Member that joins. Repeatable."
)
@click.option(
    "--remove-member",
    "removed",
    multiple=True,
    metavar="ID",
    help="Member that leaves. Repeatable.",
)
@click.option(
    "--strategy",
    metavar="NAME",
    help=f"One of {', '.join(known_strategies())}, or module:Class.  [default: the group's, or sticky]",
)
@click.option(
    "--shares",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="For strategy configured: YAML file with a list of queues by member, such as `orders@broker-a:0-3,7`.",
)
@click.option(
    "--rooms",
    metavar="ROOM[,…]",
    help="For strategy machine-room: machine rooms whose queues are assigned.",
)
@click.option(
    "--member-room",
    "member_rooms",
    multiple=True,
    metavar="ID=ROOM",
    help="For the strategies by machine room: the room of a member. Repeatable.",
)
@json_option("one document")
@nameserver_option
def plan(
    *,
    name: str,
    member_count: int | None,
    counts: tuple[str, ...],
    strategy: str | None,
    as_json: bool,
    nameserver: str,
    **asked: Any,
) -> None:
    """Show how queues would move if members, queues or the strategy changed.

    Prints the queues of each member now and then. Nothing is changed. With GROUP it starts with that group's members;
    without one it computes from --members and --queues, and asks no broker.

    \b
    Examples: pocketmq group plan billing --add-member new
              pocketmq group plan --members 3 --queues orders=8:16
    """
    parsed = [parse_count(text) for text in counts]
    if bool(name) == (member_count is not None):
        raise click.UsageError("Give either a GROUP, or --members and --queues.")
    if name:
        report, there = _asked(name, nameserver)
        chosen = _strategy(strategy or report.strategy or _DEFAULT_STRATEGY, asked)
        present = placed(live(report, there), asked["member_rooms"])
        queues = with_counts(present.queues, parsed)
    else:
        chosen = _strategy(strategy or _DEFAULT_STRATEGY, asked)
        present = imagined(chosen, member_count or 0, parsed, asked["member_rooms"])
        queues = [queue for count in parsed for queue in count.queues(count.then)]
    future = changed(present, asked["added"], asked["removed"], queues)
    future = placed(future, asked["member_rooms"], must_know=True)
    show(chosen, present, allocated(chosen, future.members, future.queues), as_json=as_json)


def _strategy(name: str, asked: Mapping[str, Any]) -> Strategy:
    """Return strategy NAME with what it divides by: the `shares` or `rooms` that are ASKED for."""
    shares, rooms = asked["shares"], asked["rooms"]
    if shares is not None and name != Configured.name:
        raise click.UsageError(f"--shares is for strategy {Configured.name}, not {name}.")
    if rooms is not None and name != MachineRoom.name:
        raise click.UsageError(f"--rooms is for strategy {MachineRoom.name}, not {name}.")
    if name == Configured.name:
        if shares is None:
            raise click.UsageError(f"Strategy {name} needs --shares FILE.")
        return Configured(read_shares(shares))
    if rooms is not None:
        return MachineRoom(room.strip() for room in rooms.split(","))
    return strategy_named(name)


def read_shares(path: Path) -> dict[str, list[Queue]]:
    """Return the queues by member in the YAML file PATH. Raises BadParameter."""
    try:
        table = yaml.safe_load(path.read_text("utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise click.BadParameter(f"{path}: {reason}", param_hint="--shares") from error
    if not isinstance(table, dict):
        raise click.BadParameter(f"{path}: no list of queues by member", param_hint="--shares")
    found: dict[str, list[Queue]] = {}
    for member, listed in table.items():
        texts = [listed] if isinstance(listed, str) else listed or []
        if not isinstance(texts, list):
            raise click.BadParameter(f"{path}: {member}: no list of queues", param_hint="--shares")
        found[str(member)] = [queue for text in texts for queue in _queues_of(str(text), path)]
    return found


def _queues_of(text: str, path: Path) -> list[Queue]:
    match = _SHARE.fullmatch(text)
    if match is None:
        raise click.BadParameter(
            f"{path}: {text!r} is not TOPIC@BROKER:0-3,7", param_hint="--shares"
        )
    numbers: list[int] = []
    for part in match[3].split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), min(int(last or first), _QUEUES_MAX) + 1)
    return [Queue(match[1], match[2], number) for number in numbers]


def placed(situation: Situation, rooms: Sequence[str], *, must_know: bool = False) -> Situation:
    """Return SITUATION with its members in ROOMS, "id=room" each. MUST_KNOW: refuse ids of no member."""
    by_member = {}
    for text in rooms:
        member_id, equals, room = text.rpartition("=")
        if not (equals and member_id and room):
            raise click.BadParameter(f"{text!r} is not ID=ROOM", param_hint="--member-room")
        by_member[member_id] = room
    unknown = by_member.keys() - {one.member_id for one in situation.members}
    if must_know and unknown:
        raise click.BadParameter(f"{min(unknown)!r} is not a member", param_hint="--member-room")
    members = [
        replace(one, room=by_member.get(one.member_id, one.room)) for one in situation.members
    ]
    return replace(situation, members=members)


def _asked(name: str, nameserver: str) -> tuple[GroupStatus, list[Queue]]:
    """Return the state of group NAME, and the queues of its topics."""
    with Admin(nameserver) as admin:
        report = admin.describe_group(name)
        topics = {topic for one in report.members for topic in _topics(one.subscriptions)}
        queues: list[Queue] = []
        for topic in sorted(topics):
            # The retry topic does not exist until a message fails.
            with suppress(TopicNotFound):
                queues += [one.queue for one in admin.describe_topic(topic).queues]
    return report, queues


def _topics(subscriptions: Iterable[str]) -> frozenset[str]:
    """Return the topics of SUBSCRIPTIONS, "orders" or "orders: a || b"."""
    return frozenset(text.partition(":")[0] for text in subscriptions)


def live(report: GroupStatus, queues: list[Queue]) -> Situation:
    """Return the group of REPORT, over QUEUES, as it is. Raises UsageError if it has no members."""
    if not report.members:
        raise click.UsageError(
            f"Group {report.name!r} has no members at present. Give --members and --queues instead."
        )
    members = [
        Member(one.member_id, one.instance_id, one.room, topics=_topics(one.subscriptions))
        for one in report.members
    ]
    return Situation(members, queues, {one.member_id: one.queues for one in report.members})


def with_counts(queues: Sequence[Queue], counts: Iterable[Count]) -> list[Queue]:
    """Return QUEUES with as many of some topics as COUNTS say. Raises BadParameter for a topic that is not there."""
    found = list(queues)
    for count in counts:
        if count.now is not None:
            raise click.BadParameter(
                f"{count.topic}={count.now}:{count.then}: with a GROUP, give {count.topic}={count.then}",
                param_hint="--queues",
            )
        brokers = {one.broker for one in found if one.topic == count.topic}
        if not brokers:
            topics = ", ".join(sorted({one.topic for one in queues})) or "none"
            raise click.BadParameter(
                f"the group reads no topic {count.topic!r}; it reads {topics}",
                param_hint="--queues",
            )
        brokers = {count.broker} if count.broker else brokers
        found = [one for one in found if one.topic != count.topic or one.broker not in brokers]
        for broker in sorted(brokers):
            found += count.queues(count.then, broker)
    return found


def parse_count(text: str) -> Count:
    """Parse TEXT, such as "orders@broker-a=8:16". Raises BadParameter."""
    found = _COUNT.fullmatch(text)
    if found is None:
        raise click.BadParameter(
            f"{text[:64]!r} is not TOPIC=N, TOPIC@BROKER=N or TOPIC=NOW:N", param_hint="--queues"
        )
    topic, broker, now, then = found.groups()
    count = Count(topic, broker or "", int(now) if now else None, int(then))
    if max(count.now or 0, count.then) > _QUEUES_MAX:
        raise click.BadParameter(
            f"{text[:64]!r}: the limit is {_QUEUES_MAX} queues per topic", param_hint="--queues"
        )
    return count


def imagined(
    strategy: Strategy, member_count: int, counts: Iterable[Count], rooms: Sequence[str] = ()
) -> Situation:
    """Return a group of MEMBER_COUNT members, some in ROOMS, with the assignment by STRATEGY."""
    counts = list(counts)
    queues = [
        queue
        for count in counts
        for queue in count.queues(count.then if count.now is None else count.now)
    ]
    topics = frozenset(count.topic for count in counts)
    width = len(str(member_count))
    members = [
        Member(f"member-{number:0{width}}", topics=topics) for number in range(1, member_count + 1)
    ]
    present = placed(Situation(members, queues, {}), rooms)
    return replace(present, shares=allocated(strategy, present.members, queues))


def changed(
    present: Situation, added: Sequence[str], removed: Sequence[str], queues: list[Queue]
) -> Situation:
    """Return PRESENT with members ADDED and REMOVED, over QUEUES; members keep their current queues in `held`.

    Raises BadParameter for a new member that exists, or one to remove that does not.
    """
    known = {member.member_id for member in present.members}
    for member_id in removed:
        if member_id not in known:
            names = ", ".join(sorted(known)[:20])
            raise click.BadParameter(
                f"{member_id!r} is not a member; members are: {names}", param_hint="--remove-member"
            )
    if twice := known.intersection(added):
        raise click.BadParameter(f"{min(twice)!r} is a member already", param_hint="--add-member")
    topics = frozenset[str]().union(*(one.topics for one in present.members))
    stay = [
        replace(one, held=tuple(present.shares.get(one.member_id, ())))
        for one in present.members
        if one.member_id not in removed
    ]
    come = [Member(member_id, topics=topics) for member_id in dict.fromkeys(added)]
    return Situation([*stay, *come], queues, present.shares)


def show(
    strategy: Strategy, present: Situation, then: Mapping[str, list[Queue]], *, as_json: bool
) -> None:
    """Print the assignment by STRATEGY, next to the PRESENT one."""
    changes = moves(present.shares, then)
    if as_json:
        print_json(document(strategy, present, then, changes))
        return
    queue_count = sum(map(len, then.values()))
    first = sum(not move.source for move in changes)
    moved = len(changes) - first
    click.echo(
        f"strategy {strategy.name}: {counted(len(then), 'member')}, {counted(queue_count, 'queue')};"
        f" {counted(moved, 'queue')} {'moves' if moved == 1 else 'move'}, {first} had no owner"
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
    if unread := [move.queue for move in changes if not move.target]:
        click.echo(f"not assigned then: {shortened(unread)}")


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
    """Return QUEUES for people, consecutive ones as ranges: "orders@broker-a:0-3,7 orders@broker-b:0"."""
    parts = []
    for (topic, broker), group in groupby(sorted(queues), key=lambda queue: queue[:2]):
        ranges = []
        for _, run in groupby(enumerate(group), key=lambda pair: pair[1].number - pair[0]):
            numbers = [queue.number for _, queue in run]
            ranges.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
        parts.append(f"{topic}@{broker}:{','.join(ranges)}")
    return " ".join(parts) or "-"
