"""`pocketmq group`: create, update, list, describe, plan, reset offsets, delete.

Each change is done, and visible to the next call, when the command returns 0. A reset shows how many messages it skips
and how many are redelivered.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from ..client import Admin, GroupDescription, OffsetChange, OffsetTarget, Queue
from ..proto.errors import GroupExists, InvalidArgument
from ..proto.time_text import format_duration, parse_duration
from .completion import group_names, topic_names
from .counted import counted
from .group_description import CHECKS, describe
from .group_plan import plan
from .hidden_names import warn_of_hidden
from .instants import past_instant_of
from .options import (
    OFFSET,
    Decorator,
    confirm,
    help_with_default,
    json_option,
    nameserver_option,
    with_options,
    yes_option,
)
from .output import print_json, print_table


@click.group()
def group() -> None:
    """Create, update, list, describe, reset and delete consumer groups."""


def _setting_options(*, show_defaults: bool) -> Decorator:
    """Return what adds the options for the settings of a group; each is None where it is not given."""
    text = partial(help_with_default, shown=show_defaults)
    return with_options(
        click.option(
            "--fifo/--no-fifo",
            "order",
            default=None,
            help=text("Deliver messages in order.", "no-fifo"),
        ),
        click.option(
            "--retries",
            "retry_max_times",
            type=click.IntRange(0, 1000),
            help=text("Retries of a message that failed.", "16"),
        ),
        click.option(
            "--retry-intervals",
            "intervals",
            metavar="10s,30s,1m,…",
            help=text(
                'Wait before each retry; the last value is used for all further ones. "" means 10s to 2h.',
                "10s to 2h",
            ),
        ),
        click.option(
            "--retry-queues",
            type=click.IntRange(1, 1024),
            help=text("Queues of the retry topic on each broker.", "1"),
        ),
        click.option(
            "--subscriptions",
            "subscription_check",
            type=click.Choice(["grace", "warn", "refuse"]),
            help=text(
                "If subscriptions of members differ: serve both for subscription_grace_ms and then the newer (grace),"
                " serve both (warn), or refuse the newer.",
                "grace",
            ),
        ),
        click.option(
            "--consume/--no-consume",
            "consume_enable",
            default=None,
            help=text("Deliver messages to the group.", "consume"),
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
@click.option(
    "--lite", "lite_topic", metavar="TOPIC", help="Topic whose lite topics the group consumes."
)
@click.option(
    "--exclusive",
    "lite_exclusive",
    is_flag=True,
    default=None,
    help="One subscriber per lite topic: a new one evicts the others.",
)
@click.option("--if-missing", is_flag=True, help="Succeed if the group exists; do not change it.")
@json_option("the group")
@nameserver_option
def create(name: str, *, if_missing: bool, as_json: bool, nameserver: str, **settings: Any) -> None:
    """Create group NAME on every broker.

    \b
    Example: pocketmq group create billing --retries 5 --retry-intervals 10s,1m

    Exit code 5: the group exists already.
    """
    if settings["lite_exclusive"] and not settings["lite_topic"]:
        raise click.UsageError("--exclusive needs --lite TOPIC.")
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
    """Change the given settings of group NAME."""
    changes = _given(**settings)
    if not changes:
        raise click.UsageError(
            "Give a setting to change: --fifo, --retries, --retry-intervals, --retry-queues, --subscriptions"
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
        off = "" if made.consume_enable else "; delivery is off"
        lite = f"; lite topics of {made.lite_topic}" if made.lite_topic else ""
        lite += ", one subscriber each" if made.lite_exclusive else ""
        click.echo(f"group {made.name}: {kind}, up to {_retries(made)}{after}{off}{lite}")


def _retries(one: GroupDescription) -> str:
    return "1 retry" if one.retry_max_times == 1 else f"{one.retry_max_times} retries"


def _intervals(one: GroupDescription) -> str:
    return ",".join(map(format_duration, one.retry_intervals_ms))


@group.command("list")
@json_option("one group per line")
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
                CHECKS.get(one.subscription_check, one.subscription_check),
            ]
            for one in groups
        ],
    )


@group.command()
@click.argument("name", shell_complete=group_names)
@yes_option
@nameserver_option
def delete(name: str, *, yes: bool, nameserver: str) -> None:
    """Delete group NAME and its offsets on every broker.

    You cannot undo this.
    """
    with Admin(nameserver) as admin:
        if not yes:
            lag = admin.describe_group(name).lag
            confirm(f"Delete group {name}, with its offsets and {counted(lag, 'unread message')}?")
        admin.delete_group(name)
    click.echo(f"group {name} deleted")


@group.command("reset-offset")
@click.argument("name", shell_complete=group_names)
@click.option(
    "--topic",
    metavar="TOPIC",
    shell_complete=topic_names,
    required=True,
    help="Topic whose offsets are reset.",
)
@click.option(
    "--to-time",
    metavar="TIME",
    help="To the first message stored at this time or later: 2026-12-24T18:00:00, or Unix milliseconds.",
)
@click.option("--to-offset", type=OFFSET, metavar="N", help="To offset N of each queue.")
@click.option("--to-first", is_flag=True, help="To the oldest message of each queue.")
@click.option("--to-last", is_flag=True, help="To the end of each queue: all messages are skipped.")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="[BROKER:]N",
    help="Only this queue; a number alone means that queue on every broker. Repeatable.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Show the new offsets, but change nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Reset also while members are connected: they lose their queues and restart at the new offsets.",
)
@click.option("--create", is_flag=True, help="Create the group if it does not exist.")
@json_option("one queue per line")
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
    """Reset the offsets of group NAME in a topic.

    Prints for each queue how many messages are skipped, and how many are delivered again. It fails while members are
    connected, unless you give --force.

    \b
    Example: pocketmq group reset-offset billing --topic orders --to-first --dry-run

    Exit code 3: the group does not exist (see --create); 5: members are connected.
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
    receives = "receive" if dry_run else "receives"
    click.echo(
        f"group {name} {would} {counted(skipped, 'message')} and {receives} {repeated:,} again"
    )


def _target(
    to_time: str | None, to_offset: int | None, to_first: bool, to_last: bool
) -> OffsetTarget:
    if (to_time is not None) + (to_offset is not None) + to_first + to_last != 1:
        raise click.UsageError(
            "Give exactly one of --to-time, --to-offset, --to-first and --to-last."
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


def move_document(move: OffsetChange) -> dict[str, Any]:
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
