"""`pocketmq group reset-offset`: have a group go on elsewhere, after a look at what that skips and repeats."""

from __future__ import annotations

from typing import Any

import click

from ..client import Admin, OffsetMove, OffsetTarget, Queue
from ..proto.errors import InvalidArgument
from .instants import past_instant_of
from .options import json_option, nameserver_option
from .output import print_json, print_table


@click.command("reset-offset")
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
            print_json(_document(move) | {"dry_run": dry_run})
        return
    titles = ["broker", "queue", "from", "to", "skipped", "repeated"]
    documents = [_document(move) for move in moves]
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


def _document(move: OffsetMove) -> dict[str, Any]:
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
