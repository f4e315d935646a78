"""`pocketmq group`: create, update, list, describe, plan, reset offsets, delete.

Done, and visible to the next call, when they return 0. Offsets are reset after a look at what that skips and repeats.

`pocketmq group describe`: who is in a group, which queues it reads, how far behind it is and how fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from ..client import (
    Admin,
    GroupDescription,
    GroupMember,
    GroupMove,
    GroupQueue,
    GroupReport,
    OffsetMove,
    OffsetTarget,
    Queue,
    Skipped,
)
from ..proto.errors import GroupExists, InvalidArgument
from ..proto.time_text import format_duration, parse_duration
from .completion import group_names, topic_names
from .counted import counted
from .group_plan import plan
from .hidden_names import warn_of_hidden
from .instants import past_instant_of
from .options import (
    OFFSET,
    WAIT_MAX_MS,
    Decorator,
    confirm,
    help_with_default,
    json_option,
    nameserver_option,
    with_options,
    yes_option,
)
from .output import instant, print_json, print_pairs, print_table, warn

#: What happens to members with other subscriptions than the rest.
_CHECKS: Final = {
    "grace": "served for a while",
    "warn": "served with a warning",
    "refuse": "refused",
}

#: Consumers commit every 5 s by default: what is shorter sees bursts or nothing.
_INTERVAL: Final = "5s"


@click.command()
@click.argument("name", shell_complete=group_names)
@click.option(
    "--topic",
    shell_complete=topic_names,
    help="Only queues of this topic.  [default: all that the group reads]",
)
@click.option(
    "--interval",
    default=_INTERVAL,
    show_default=True,
    metavar="5s",
    help="Look twice at this interval and show rates; 0s: look once, without rates.",
)
@json_option("one document")
@nameserver_option
def describe(
    name: str, *, topic: str | None, interval: str, as_json: bool, nameserver: str
) -> None:
    """Show who is in group NAME, how far it has come in each queue, how fast it is, and when it will have caught up."""
    interval_ms = parse_duration(interval, field="--interval", max_ms=WAIT_MAX_MS)
    with Admin(nameserver) as admin:
        found = admin.describe_group(name, topic=topic, interval_ms=interval_ms)
    if hidden := found.hidden_topics:
        warn([f"left out {hidden:,} of its topics: this user may not see them"])
    if as_json:
        print_json(document(found))
        return
    print_pairs(_summary(found))
    if found.members:
        click.echo()
        titles = ["member", "instance", "kind", "address", "room", "queues", "heard", "reads"]
        print_table(titles, [_member_row(one) for one in found.members])
    if found.clients:
        click.echo()
        titles = ["official client", "type", "language", "heard", "reads"]
        print_table(titles, [_client_row(one) for one in found.clients])
    if differing := conflicts(found):
        click.echo()
        rows = [[", ".join(one["members"]), ", ".join(one["subscriptions"])] for one in differing]
        print_table(["these members", "read other things than the others"], rows)
        if found.grace_left_ms is not None:
            left = format_duration(found.grace_left_ms // 1_000 * 1_000)
            click.echo(
                f"all are served for another {left}, then those with the newest subscription"
            )
    if found.queues:
        click.echo()
        print_table(_QUEUE_TITLES, [_queue_row(one) for one in found.queues])
    texts = [_text_row(one) for one in found.queues if one.metadata]
    if texts:
        click.echo()
        print_table(["topic", "broker", "queue", "offset", "committed with"], texts)
    _print_accounts(found.queues)


def _print_accounts(queues: Sequence[GroupQueue]) -> None:
    """Print what filters stepped over, and how administrators moved the group, if they did."""
    skipped = [_skipped_row(queue, one) for queue in queues for one in queue.skipped]
    if skipped:
        click.echo()
        titles = ["topic", "broker", "queue", "stepped over", "first", "last", "by filter", "of"]
        print_table(titles, skipped)
    moves = [_move_row(queue, one) for queue in queues for one in queue.moves]
    if moves:
        click.echo()
        print_table(["topic", "broker", "queue", "moved", "from", "to", "by"], moves)


def document(found: GroupReport) -> dict[str, Any]:
    """Return FOUND as JSON shows it."""
    return {
        "group": found.name,
        "coordinator": found.coordinator or None,
        "generation": found.generation,
        "leader": found.leader or None,
        "strategy": found.strategy or None,
        "each_for_itself": found.each_for_itself,
        "rebalances": found.rebalance_count,
        "subscription_check": found.subscription_check,
        "grace_left_ms": found.grace_left_ms,
        "conflicts": conflicts(found),
        "lag": found.lag,
        "oldest_unread_ms": found.oldest_unread_ms,
        "finished_per_s": found.finished_per_s,
        "arrived_per_s": found.arrived_per_s,
        "catches_up_s": found.catches_up_s,
        "members": [
            {
                "member_id": one.member_id,
                "instance_id": one.instance_id or None,
                "address": one.peer,
                "kind": one.kind,
                "room": one.room or None,
                "is_leader": one.is_leader,
                "subscriptions": list(one.subscriptions),
                "joined_ms": one.joined_ms,
                "last_heard_ms": one.last_heard_ms,
                "queues": [_place(queue) for queue in one.queues],
            }
            for one in found.members
        ],
        "clients": [
            {
                "client_id": one.member_id,
                "type": one.kind,
                "language": one.peer or None,
                "subscriptions": list(one.subscriptions),
                "last_heard_ms": one.last_heard_ms,
            }
            for one in found.clients
        ],
        "queues": [
            _place(one.queue)
            | {
                "offset": one.offset if one.offset >= 0 else None,
                "metadata": one.metadata or None,
                "min_offset": one.min_offset,
                "max_offset": one.max_offset,
                "lag": one.lag,
                "ready": one.ready,
                "in_flight": one.lent_count,
                "oldest_unread_ms": one.oldest_unread_ms,
                "finished_per_s": one.finished_per_s,
                "arrived_per_s": one.arrived_per_s,
                "catches_up_s": one.catches_up_s,
                "holder": one.holder or None,
                "assigned_to": one.assigned_to or None,
                "stepped_over": one.filtered_count,
                "skipped": [_plain(skipped) for skipped in one.skipped],
                "moves": [_plain(move) for move in one.moves],
                "lost": one.lost_count,
            }
            for one in found.queues
        ],
    }


def conflicts(found: GroupReport) -> list[dict[str, Any]]:
    """Return who wants what, most members first, if those in FOUND want different things; else nothing."""
    wanted: dict[tuple[str, ...], list[str]] = {}
    for one in (*found.members, *found.clients):
        if one.subscriptions:
            wanted.setdefault(tuple(sorted(one.subscriptions)), []).append(one.member_id)
    if len(wanted) < 2:
        return []
    rows = sorted(wanted.items(), key=lambda row: (-len(row[1]), row[0]))
    return [{"subscriptions": list(what), "members": sorted(who)} for what, who in rows]


def _plain(value: Skipped | GroupMove) -> dict[str, Any]:
    return {
        name: list(one) if isinstance(one, tuple) else one for name, one in asdict(value).items()
    }


def _place(queue: Queue) -> dict[str, Any]:
    return {"topic": queue.topic, "broker": queue.broker, "queue": queue.number}


def _summary(found: GroupReport) -> dict[str, str]:
    who = "each for itself" if found.each_for_itself else f"by {found.leader or 'nobody'}"
    shared = (
        f"generation {found.generation} at {found.coordinator}, {found.strategy or 'no strategy'}, {who}"
        if found.coordinator
        else "nobody has joined"
        if not found.clients
        else f"each message by itself, among {counted(len(found.clients), 'official client')}"
    )
    rates = (
        f", {found.finished_per_s:,.1f}/s finished, {found.arrived_per_s:,.1f}/s arrive"
        if found.finished_per_s is not None and found.arrived_per_s is not None
        else ""
    )
    return {
        "group": f"{found.name}, {counted(len(found.members), 'member')}, other subscriptions are"
        f" {_CHECKS.get(found.subscription_check, found.subscription_check)}",
        "shared": shared,
        "rebalances": str(found.rebalance_count),
        "lag": f"{counted(found.lag, 'message')}{rates}",
        "oldest unread": _age(found.oldest_unread_ms),
        "catches up": _in(found.lag, found.catches_up_s, found.finished_per_s),
    }


def _member_row(one: GroupMember) -> list[object]:
    return [
        one.member_id + (" (leader)" if one.is_leader else ""),
        one.instance_id or "-",
        one.kind or "-",
        one.peer,
        one.room or "-",
        len(one.queues),
        instant(one.last_heard_ms),
        ", ".join(one.subscriptions) or "-",
    ]


def _client_row(one: GroupMember) -> list[object]:
    return [
        one.member_id,
        one.kind,
        one.peer or "-",
        instant(one.last_heard_ms),
        ", ".join(one.subscriptions) or "-",
    ]


def _skipped_row(queue: GroupQueue, one: Skipped) -> list[object]:
    topic, broker, number = queue.queue
    numbers = (f"{value:,}" for value in (one.count, one.first, one.last))
    return [topic, broker, number, *numbers, one.filter or "others", ", ".join(one.members) or "-"]


def _move_row(queue: GroupQueue, one: GroupMove) -> list[object]:
    topic, broker, number = queue.queue
    start = "-" if one.from_offset is None else f"{one.from_offset:,}"
    return [topic, broker, number, instant(one.at_ms), start, f"{one.to_offset:,}", one.who]


_QUEUE_TITLES: Final = [
    "topic",
    "broker",
    "queue",
    "offset",
    "min",
    "max",
    "lag",
    "oldest unread",
    "finished/s",
    "catches up",
    "stepped over",
    "lost",
    "holder",
]


def _queue_row(one: GroupQueue) -> list[object]:
    holder = one.holder or "-"
    if one.assigned_to and one.assigned_to != one.holder:
        holder += f" (to be {one.assigned_to})"
    return [
        one.queue.topic,
        one.queue.broker,
        one.queue.number,
        "-" if one.offset < 0 else one.offset,
        one.min_offset,
        one.max_offset,
        one.lag,
        _age(one.oldest_unread_ms),
        "-" if one.finished_per_s is None else f"{one.finished_per_s:.1f}",
        _in(one.lag, one.catches_up_s, one.finished_per_s),
        one.filtered_count,
        one.lost_count,
        holder,
    ]


def _text_row(one: GroupQueue) -> list[object]:
    # What a consumer wrote must not steer a terminal.
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one.metadata)
    return [*one.queue, one.offset, text]


def _age(age_ms: int) -> str:
    """Return AGE_MS for people: seconds from a second on."""
    if not age_ms:
        return "-"
    return format_duration(age_ms if age_ms < 1_000 else age_ms // 1_000 * 1_000)


def _in(lag: int, seconds: float | None, rate: float | None) -> str:
    if lag == 0:
        return "done"
    if rate is None:
        return "-"
    return (
        "not at this rate" if seconds is None else f"in {format_duration(round(seconds) * 1_000)}"
    )


# ---------------------------------------------------------------- `pocketmq group`


@click.group()
def group() -> None:
    """Create, change, list, describe, move and delete consumer groups."""


def _setting_options(*, show_defaults: bool) -> Decorator:
    """Return what adds the options for the settings of a group; each is None where it is not given."""
    told = partial(help_with_default, shown=show_defaults)
    return with_options(
        click.option(
            "--fifo/--no-fifo",
            "order",
            default=None,
            help=told("Deliver messages in order.", "no-fifo"),
        ),
        click.option(
            "--retries",
            "retry_max_times",
            type=click.IntRange(0, 1000),
            help=told("Retries of a message that failed.", "16"),
        ),
        click.option(
            "--retry-intervals",
            "intervals",
            metavar="10s,30s,1m,…",
            help=told(
                'Wait before the first retry, the second …; the last one repeats. "" means 10s to 2h.',
                "10s to 2h",
            ),
        ),
        click.option(
            "--retry-queues",
            type=click.IntRange(1, 1024),
            help=told("Queues of the retry topic on each broker.", "1"),
        ),
        click.option(
            "--subscriptions",
            "subscription_check",
            type=click.Choice(["grace", "warn", "refuse"]),
            help=told(
                "When members subscribe to different things: serve both for subscription_grace_ms and then the"
                " newer, serve both and warn, or refuse the newer.",
                "grace",
            ),
        ),
        click.option(
            "--consume/--no-consume",
            "consume_enable",
            default=None,
            help=told("Deliver messages at all.", "consume"),
        ),
    )


def _given(intervals: str | None, **settings: Any) -> dict[str, Any]:
    """Return the settings that are given, as an admin takes them."""
    given = {name: value for name, value in settings.items() if value is not None}
    if intervals is not None:
        parts = intervals.split(",") if intervals else []
        given["retry_intervals_ms"] = [
            parse_duration(part, field="--retry-intervals") for part in parts
        ]
    return given


@group.command()
@click.argument("name")
@_setting_options(show_defaults=True)
@click.option("--if-missing", is_flag=True, help="Leave one that exists as it is: no error.")
@json_option("the group")
@nameserver_option
def create(name: str, *, if_missing: bool, as_json: bool, nameserver: str, **settings: Any) -> None:
    """Create group NAME on every broker. It is an error if it exists (exit code 5)."""
    with Admin(nameserver) as admin:
        try:
            made = admin.create_group(name, **_given(**settings))
        except GroupExists:
            if not if_missing:
                raise
            made = next(one for one in admin.groups() if one.name == name)
    _show(made, as_json)


@group.command()
@click.argument("name", shell_complete=group_names)
@_setting_options(show_defaults=False)
@json_option("the group")
@nameserver_option
def update(name: str, *, as_json: bool, nameserver: str, **settings: Any) -> None:
    """Change what is given of group NAME. Everything else stays as it is."""
    changes = _given(**settings)
    if not changes:
        raise click.UsageError(
            "Give what is to change: --fifo, --retries, --retry-intervals, --retry-queues, --subscriptions"
            " or --consume."
        )
    with Admin(nameserver) as admin:
        made = admin.update_group(name, **changes)
    _show(made, as_json)


def _show(made: GroupDescription, as_json: bool) -> None:
    if as_json:
        print_json(asdict(made))
    else:
        kind = "in order" if made.order else "in any order"
        after = f", after {_intervals(made)}" if made.retry_intervals_ms else ""
        off = "" if made.consume_enable else "; consumption is switched off"
        click.echo(f"group {made.name}: {kind}, up to {made.retry_max_times} retries{after}{off}")


def _intervals(one: GroupDescription) -> str:
    return ",".join(map(format_duration, one.retry_intervals_ms))


@group.command("list")
@json_option("a group a line")
@nameserver_option
def list_groups(*, as_json: bool, nameserver: str) -> None:
    """List all groups."""
    with Admin(nameserver) as admin:
        groups = admin.groups()
        warn_of_hidden(groups=admin.hidden_groups())
    if as_json:
        for one in groups:
            print_json(asdict(one))
        return
    print_table(
        ["group", "order", "retries", "after", "consumes", "other subscriptions"],
        [
            [
                one.name,
                "fifo" if one.order else "-",
                one.retry_max_times,
                _intervals(one) or "-",
                "yes" if one.consume_enable else "no",
                _CHECKS.get(one.subscription_check, one.subscription_check),
            ]
            for one in groups
        ],
    )


@group.command()
@click.argument("name", shell_complete=group_names)
@yes_option
@nameserver_option
def delete(name: str, *, yes: bool, nameserver: str) -> None:
    """Delete group NAME and its offsets on every broker. This cannot be undone."""
    with Admin(nameserver) as admin:
        if not yes:
            lag = admin.describe_group(name).lag
            confirm(f"Delete group {name}, with its offsets and {counted(lag, 'unread message')}?")
        admin.delete_group(name)
    click.echo(f"group {name} deleted")


@group.command("reset-offset")
@click.argument("name", shell_complete=group_names)
@click.option("--topic", shell_complete=topic_names, required=True, help="Topic to reset.")
@click.option(
    "--to-time",
    metavar="TIME",
    help="To the first message stored at this time or later: 2026-12-24T18:00:00, or Unix milliseconds.",
)
@click.option("--to-offset", type=OFFSET, metavar="N", help="To offset N of each queue.")
@click.option("--to-first", is_flag=True, help="To the oldest message that is there.")
@click.option("--to-last", is_flag=True, help="To the end of each queue; skips all messages.")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="[BROKER:]N",
    help="This queue alone; a number is that queue of every broker. Repeatable.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Show the new offsets, but change nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Reset also while members are connected: they lose their queues and restart at the new offsets.",
)
@click.option("--create", is_flag=True, help="Create the group if it does not exist.")
@json_option("a queue a line")
@nameserver_option
def reset_offset(
    name: str,
    *,
    topic: str,
    queues: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    nameserver: str,
    **asked: Any,
) -> None:
    """Have group NAME go on elsewhere in TOPIC. Refused while members are on, unless it is forced.

    A group that does not exist is exit code 3, unless it is to be made.
    """
    allowed = {"force": asked.pop("force"), "create": asked.pop("create")}
    target = _target(**asked)
    wanted = [_queue(topic, text) for text in queues]
    with Admin(nameserver) as admin:
        moves = admin.reset_offsets(name, topic, target, queues=wanted, dry_run=dry_run, **allowed)
    if as_json:
        for move in moves:
            print_json(move_document(move) | {"dry_run": dry_run})
        return
    titles = ["broker", "queue", "from", "to", "skipped", "repeated"]
    documents = [move_document(move) for move in moves]
    rows = [
        ["-" if document[title] is None else document[title] for title in titles]
        for document in documents
    ]
    print_table(titles, rows)
    skipped, repeated = sum(m.skipped for m in moves), sum(m.repeated for m in moves)
    would = "would skip" if dry_run else "skips"
    click.echo(
        f"group {name} {would} {counted(skipped, 'message')} and gets {repeated:,} once more"
    )


def _target(
    to_time: str | None, to_offset: int | None, to_first: bool, to_last: bool
) -> OffsetTarget:
    if (to_time is not None) + (to_offset is not None) + to_first + to_last != 1:
        raise click.UsageError(
            "Give one of --to-time, --to-offset, --to-first and --to-last, and only one."
        )
    time_ms = None if to_time is None else past_instant_of(to_time)
    return OffsetTarget(time_ms=time_ms, offset=to_offset, first=to_first, last=to_last)


def _queue(topic: str, text: str) -> Queue | int:
    broker, _, number = text.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,10}", number):
        raise InvalidArgument(
            f"--queue {text[:64]}: write a number, or broker:number", field="queue", value=text
        )
    return Queue(topic, broker, int(number)) if broker else int(number)


def move_document(move: OffsetMove) -> dict[str, Any]:
    """Return MOVE as JSON shows it."""
    return {
        "topic": move.queue.topic,
        "broker": move.queue.broker,
        "queue": move.queue.number,
        "from": move.from_offset if move.from_offset >= 0 else None,
        "to": move.to_offset,
        "min_offset": move.min_offset,
        "max_offset": move.max_offset,
        "skipped": move.skipped,
        "repeated": move.repeated,
    }


group.add_command(plan)
group.add_command(describe)
