"""`pocketmq group describe`: the members of a group, the queues it reads, its lag and its rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from ..client import Admin, FilterStats, GroupMember, GroupQueue, GroupStatus, OffsetReset, Queue
from ..proto.time_text import format_duration, parse_duration
from .completion import group_names, topic_names
from .counted import counted
from .options import WAIT_MAX_MS, json_option, nameserver_option
from .output import instant, print_json, print_pairs, print_table, warn

#: What happens to members whose subscription differs from that of the others, by setting.
CHECKS: Final = {
    "grace": "served for a while",
    "warn": "served with a warning",
    "refuse": "refused",
}

#: Consumers commit every 5 s by default: shorter intervals show bursts or nothing.
_INTERVAL: Final = "5s"


@click.command()
@click.argument("name", shell_complete=group_names)
@click.option(
    "--topic",
    metavar="TOPIC",
    shell_complete=topic_names,
    help="Only queues of this topic.  [default: all that the group reads]",
)
@click.option(
    "--interval",
    default=_INTERVAL,
    show_default=True,
    metavar="5s",
    help="Time over which rates are measured; 0s: no rates.",
)
@json_option("one document")
@nameserver_option
def describe(
    name: str, *, topic: str | None, interval: str, as_json: bool, nameserver: str
) -> None:
    """Show the members, queues, lag and rates of group NAME.

    Prints for each queue the committed offset, the lag, the owner, and when it will have caught up. Measuring rates
    takes --interval.

    Exit code 3: the group does not exist.
    """
    interval_ms = parse_duration(interval, field="--interval", max_ms=WAIT_MAX_MS)
    with Admin(nameserver) as admin:
        found = admin.describe_group(name, topic=topic, interval_ms=interval_ms)
    if hidden := found.hidden_topics:
        warn([f"left out {counted(hidden, 'topic')} that this user may not see"])
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
        print_table(["members", "subscription differs from that of the others"], rows)
        if found.grace_left_ms is not None:
            left = format_duration(found.grace_left_ms // 1_000 * 1_000)
            click.echo(
                f"all are served for another {left}, then only those with the newest subscription"
            )
    if found.queues:
        click.echo()
        print_table(_QUEUE_TITLES, [_queue_row(one) for one in found.queues])
    texts = [_text_row(one) for one in found.queues if one.metadata]
    if texts:
        click.echo()
        print_table(["topic", "broker", "queue", "offset", "offset metadata"], texts)
    _print_stats(found.queues)


def _print_stats(queues: Sequence[GroupQueue]) -> None:
    """Print the messages that filters left out, and the offset resets by administrators."""
    skipped = [_skipped_row(queue, one) for queue in queues for one in queue.skipped]
    if skipped:
        click.echo()
        titles = ["topic", "broker", "queue", "filtered", "first", "last", "by filter", "of"]
        print_table(titles, skipped)
    moves = [_move_row(queue, one) for queue in queues for one in queue.moves]
    if moves:
        click.echo()
        print_table(["topic", "broker", "queue", "moved", "from", "to", "by"], moves)


def document(found: GroupStatus) -> dict[str, Any]:
    """Return FOUND as JSON shows it."""
    return {
        "group": found.name,
        "coordinator": found.coordinator or None,
        "generation": found.generation,
        "leader": found.leader or None,
        "strategy": found.strategy or None,
        "assigned_by_clients": found.assigned_by_clients,
        "rebalances": found.rebalance_count,
        "subscription_check": found.subscription_check,
        "grace_left_ms": found.grace_left_ms,
        "conflicts": conflicts(found),
        "lag": found.lag,
        "oldest_unread_ms": found.oldest_unread_ms,
        "processed_per_s": found.processed_per_s,
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
                "in_flight": one.in_flight_count,
                "oldest_unread_ms": one.oldest_unread_ms,
                "processed_per_s": one.processed_per_s,
                "arrived_per_s": one.arrived_per_s,
                "catches_up_s": one.catches_up_s,
                "owner": one.owner or None,
                "assigned_to": one.assigned_to or None,
                "filtered_count": one.filtered_count,
                "skipped": [_plain(skipped) for skipped in one.skipped],
                "moves": [_plain(move) for move in one.moves],
                "lost": one.lost_count,
            }
            for one in found.queues
        ],
    }


def conflicts(found: GroupStatus) -> list[dict[str, Any]]:
    """Return the subscriptions in FOUND with their members, most members first; nothing if all agree."""
    wanted: dict[tuple[str, ...], list[str]] = {}
    for one in (*found.members, *found.clients):
        if one.subscriptions:
            wanted.setdefault(tuple(sorted(one.subscriptions)), []).append(one.member_id)
    if len(wanted) < 2:
        return []
    rows = sorted(wanted.items(), key=lambda row: (-len(row[1]), row[0]))
    return [{"subscriptions": list(what), "members": sorted(who)} for what, who in rows]


def _plain(value: FilterStats | OffsetReset) -> dict[str, Any]:
    return {
        name: list(one) if isinstance(one, tuple) else one for name, one in asdict(value).items()
    }


def _place(queue: Queue) -> dict[str, Any]:
    return {"topic": queue.topic, "broker": queue.broker, "queue": queue.number}


def _summary(found: GroupStatus) -> dict[str, str]:
    how = (
        "each member assigns its own queues"
        if found.assigned_by_clients
        else f"assigned by {found.leader or 'no member'}"
    )
    shared = (
        f"generation {found.generation} at {found.coordinator}, {found.strategy or 'no strategy'}, {how}"
        if found.coordinator
        else "no members"
        if not found.clients
        else f"message by message, among {counted(len(found.clients), 'official client')}"
    )
    rates = (
        f", {found.processed_per_s:,.1f}/s processed, {found.arrived_per_s:,.1f}/s arrive"
        if found.processed_per_s is not None and found.arrived_per_s is not None
        else ""
    )
    return {
        "group": f"{found.name}, {counted(len(found.members), 'member')}, differing subscriptions are"
        f" {CHECKS.get(found.subscription_check, found.subscription_check)}",
        "shared": shared,
        "rebalances": str(found.rebalance_count),
        "lag": f"{counted(found.lag, 'message')}{rates}",
        "oldest unread": _age(found.oldest_unread_ms),
        "catches up": _in(found.lag, found.catches_up_s, found.processed_per_s),
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


def _skipped_row(queue: GroupQueue, one: FilterStats) -> list[object]:
    topic, broker, number = queue.queue
    numbers = (f"{value:,}" for value in (one.count, one.first, one.last))
    return [topic, broker, number, *numbers, one.filter or "others", ", ".join(one.members) or "-"]


def _move_row(queue: GroupQueue, one: OffsetReset) -> list[object]:
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
    "processed/s",
    "catches up",
    "filtered",
    "lost",
    "owner",
]


def _queue_row(one: GroupQueue) -> list[object]:
    owner = one.owner or "-"
    if one.assigned_to and one.assigned_to != one.owner:
        owner += f" (to be {one.assigned_to})"
    return [
        one.queue.topic,
        one.queue.broker,
        one.queue.number,
        "-" if one.offset < 0 else one.offset,
        one.min_offset,
        one.max_offset,
        one.lag,
        _age(one.oldest_unread_ms),
        "-" if one.processed_per_s is None else f"{one.processed_per_s:.1f}",
        _in(one.lag, one.catches_up_s, one.processed_per_s),
        one.filtered_count,
        one.lost_count,
        owner,
    ]


def _text_row(one: GroupQueue) -> list[object]:
    # Control characters from a consumer must not reach the terminal.
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one.metadata)
    return [*one.queue, one.offset, text]


def _age(age_ms: int) -> str:
    """Return AGE_MS for people, in whole seconds from 1 s on."""
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
