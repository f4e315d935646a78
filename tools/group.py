"""`pocketmq group`: create, list, describe, plan, reset offsets, delete.

Done, and visible to the next call, when they return 0. Offsets are reset after a look at what that skips and repeats.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ..client import Admin, GroupDescription, OffsetMove, OffsetTarget, Queue
from ..proto.duration import format_duration, parse_duration
from ..proto.errors import InvalidArgument
from .group_describe import describe
from .group_plan import plan
from .instants import past_instant_of
from .options import json_option, nameserver_option
from .output import print_json, print_table


@click.group()
def group() -> None:
    """Create, list, describe, move and delete consumer groups."""


@group.command()
@click.argument("name")
@click.option("--fifo", is_flag=True, help="Its messages are delivered in order.")
@click.option(
    "--retries",
    type=click.IntRange(0, 1000),
    default=16,
    show_default=True,
    help="How often a message that failed is delivered again.",
)
@click.option(
    "--retry-intervals",
    "intervals",
    metavar="10s,30s,1m,…",
    default="",
    help="How long it waits before the first retry, the second …; the last one repeats.  [default: 10s to 2h]",
)
@click.option(
    "--subscriptions",
    type=click.Choice(["refuse", "warn"]),
    default="refuse",
    show_default=True,
    help="What becomes of a member that wants something else than the others.",
)
@json_option("the group")
@nameserver_option
def create(
    name: str,
    *,
    fifo: bool,
    retries: int,
    intervals: str,
    subscriptions: str,
    as_json: bool,
    nameserver: str,
) -> None:
    """Create group NAME on every broker. One that exists is changed; what is left out gets its default again."""
    intervals_ms = [
        parse_duration(part, field="--retry-intervals")
        for part in intervals.split(",")
        if intervals
    ]
    with Admin(nameserver) as admin:
        made = admin.create_group(
            name, order=fifo, retry_max_times=retries, retry_intervals_ms=intervals_ms
        )
        if subscriptions != made.subscription_check:
            made = admin.set_subscription_check(name, subscriptions)
    if as_json:
        print_json(asdict(made))
    else:
        kind = "in order" if made.order else "in any order"
        after = f", after {_intervals(made)}" if made.retry_intervals_ms else ""
        click.echo(f"group {made.name}: {kind}, up to {made.retry_max_times} retries{after}")


def _intervals(one: GroupDescription) -> str:
    return ",".join(map(format_duration, one.retry_intervals_ms))


@group.command("list")
@json_option("a group a line")
@nameserver_option
def list_groups(*, as_json: bool, nameserver: str) -> None:
    """List all groups."""
    with Admin(nameserver) as admin:
        groups = admin.groups()
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
                "warned of" if one.subscription_check == "warn" else "refused",
            ]
            for one in groups
        ],
    )


@group.command()
@click.argument("name")
@nameserver_option
def delete(name: str, *, nameserver: str) -> None:
    """Delete group NAME and its offsets on every broker."""
    with Admin(nameserver) as admin:
        admin.delete_group(name)
    click.echo(f"group {name} deleted")


@group.command("reset-offset")
@click.argument("name")
@click.option("--topic", required=True, help="Of which the queues are.")
@click.option(
    "--to-time",
    metavar="TIME",
    help="To what was stored then: 2026-12-24T18:00:00, or Unix milliseconds.",
)
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To offset N of each queue.")
@click.option("--to-first", is_flag=True, help="To the oldest message that is there.")
@click.option("--to-last", is_flag=True, help="Behind the newest: all that is there is skipped.")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="[BROKER:]N",
    help="This queue alone; a number is that queue of every broker. Repeatable.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Show what would move, and move nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Though members are on: they lose their queues, take them anew, and go on from there.",
)
@click.option("--create", is_flag=True, help="Make the group if it does not exist.")
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
    click.echo(f"group {name} {would} {skipped:,} messages and gets {repeated:,} once more")


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
    if not (number.isascii() and number.isdigit()):
        raise InvalidArgument(
            f"--queue {text}: write a number, or broker:number", field="queue", value=text
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
