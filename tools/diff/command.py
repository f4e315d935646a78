"""`pocketmq diff A B`: compares two stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ...proto.clock import SystemClock
from ...store.open_files import allow_many_files
from ..counted import counted
from ..options import (
    StoreCommand,
    StoreFolder,
    broker_settings,
    broker_settings_option,
    json_option,
    store_option,
)
from ..output import print_json
from ..stores.names import KnownNames
from .differences import Compared, QueueComparison, QueueDifference, TableDifference, compare_tables
from .side import Bounds, Side

_LIMIT = 20
_SPANS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """The comparison of all queues and tables, equal ones included."""

    queues: list[QueueDifference]
    tables: list[TableDifference]

    @property
    def is_same(self) -> bool:
        """Is nothing different?"""
        queues = all(queue.is_same for queue in self.queues)
        return queues and all(table.is_same for table in self.tables)


def compare(
    a: Side, b: Side, what: Compared, *, topics: Sequence[str] = (), examples_max: int = _LIMIT
) -> Difference:
    """Compare the stores A and B, or only TOPICS of them if any are given."""
    names = sorted(a.names() | b.names())
    queues = [
        QueueComparison(a, b, name, what, examples_max).run()
        for name in names
        if not topics or name[0] in topics
    ]
    return Difference(queues, [] if topics else compare_tables(a.config, b.config))


@click.command(cls=StoreCommand)
@click.argument("a", type=StoreFolder())
@click.argument("b", type=StoreFolder())
@store_option
@click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, help="Compare only this topic. Repeatable."
)
@click.option("--compare-times", "times", is_flag=True, help="Also compare birth and store times.")
@click.option("--hosts", is_flag=True, help="Also compare birth and store hosts.")
@click.option("--places", is_flag=True, help="Also compare log offsets.")
@click.option(
    "--limit",
    type=click.IntRange(0, 10_000),
    default=_LIMIT,
    show_default=True,
    help="Maximum number of examples of each kind; all differences are counted.",
)
@broker_settings_option
@json_option("one JSON object")
@click.pass_context
def diff(
    context: click.Context,
    /,
    *,
    a: str,
    b: str,
    topics: Sequence[str],
    settings: Sequence[str],
    limit: int,
    as_json: bool,
    **what: bool,
) -> None:
    """Compare the contents of the stores A and B.

    Compares messages by topic, queue and offset, queue offsets, topics, groups and committed offsets, as PocketMQ would
    serve them. Log offsets, hosts and times are ignored unless you ask for them. --broker-conf applies to both stores.

    \b
    Example: pocketmq diff data/store backup/store

    Exit code 1: the stores differ.
    """
    allow_many_files()
    given, now_ms = broker_settings(settings), SystemClock().unix_ms
    sides = [Side.open(root, given, now_ms) for root in (a, b)]
    known = KnownNames()
    for side in sides:
        known.topics.update(side.config.topics, (topic for topic, _ in side.names()))
    known.check(topics=topics)
    found = compare(sides[0], sides[1], Compared(**what), topics=topics, examples_max=limit)
    if as_json:
        print_json(to_json(a, b, found, limit))
    else:
        for line in lines_of(a, b, found, limit):
            click.echo(line)
    if not found.is_same:
        context.exit(1)


def to_json(a: str, b: str, found: Difference, limit: int) -> dict[str, Any]:
    """Return FOUND as plain values: totals, and up to LIMIT queues that differ."""
    different = [queue for queue in found.queues if not queue.is_same]
    return {
        "a": a,
        "b": b,
        "same": found.is_same,
        "messages_compared": sum(queue.compared for queue in found.queues),
        "only_in_a": sum(queue.only_a for queue in found.queues),
        "only_in_b": sum(queue.only_b for queue in found.queues),
        "differing": sum(queue.differing for queue in found.queues),
        "fields": dict(sum((queue.fields for queue in found.queues), Counter())),
        "queue_count": len(found.queues),
        "queues_different": len(different),
        "queues": [_queue(queue) for queue in different[:limit]],
        "tables": [table.to_json(limit) for table in found.tables if not table.is_same],
    }


def _queue(queue: QueueDifference) -> dict[str, Any]:
    return {
        "topic": queue.name[0],
        "queue": queue.name[1],
        "bounds_a": queue.bounds_a,
        "bounds_b": queue.bounds_b,
        "only_in_a": {"count": queue.only_a, "spans": queue.spans_only_a},
        "only_in_b": {"count": queue.only_b, "spans": queue.spans_only_b},
        "differing": {
            "count": queue.differing,
            "first": [
                {"queue_offset": number, "fields": names} for number, names in queue.examples
            ],
        },
    }


def lines_of(a: str, b: str, found: Difference, limit: int) -> Iterator[str]:
    """Yield FOUND for people, with up to LIMIT queues and names of each kind."""
    document = to_json(a, b, found, limit)
    yield f"A {a}"
    yield f"B {b}"
    yield (
        f"{counted(document['messages_compared'], 'message')} in both, {document['differing']:,} of them differ,"
        f" {document['only_in_a']:,} only in A, {document['only_in_b']:,} only in B,"
        f" {document['queues_different']:,} of {counted(document['queue_count'], 'queue')} differ"
    )
    different = [queue for queue in found.queues if not queue.is_same]
    for queue in different[:limit]:
        yield from _queue_lines(queue)
    hidden = document["queues_different"] - len(document["queues"])
    if hidden:
        yield f"… and {counted(hidden, 'more queue')}"
    for table in document["tables"]:
        yield from _table_lines(table)
    yield "the same" if found.is_same else "different"


def _queue_lines(queue: QueueDifference) -> Iterator[str]:
    place = f"{queue.name[0]}/{queue.name[1]}"
    if queue.bounds_a != queue.bounds_b:
        yield f"{place}: {_bounds(queue.bounds_a)} in A, {_bounds(queue.bounds_b)} in B"
    for side, count, spans in (
        ("A", queue.only_a, queue.spans_only_a),
        ("B", queue.only_b, queue.spans_only_b),
    ):
        if count:
            yield f"{place}: {count:,} only in {side}: {_text(spans, count)}"
    if queue.differing:
        fields = ", ".join(f"{name} {count:,}" for name, count in queue.fields.most_common())
        yield f"{place}: {queue.differing:,} differ ({fields})"
        for number, names in queue.examples[:3]:
            yield f"  for example offset {number:,}: {', '.join(names)}"


def _bounds(bounds: Bounds | None) -> str:
    return "no such queue" if bounds is None else f"offsets {bounds[0]:,}–{bounds[1]:,}"


def _text(spans: Sequence[Sequence[int]], count: int) -> str:
    """Return the first of SPANS, which hold some of COUNT numbers."""
    shown = spans[:_SPANS_SHOWN]
    text = ", ".join(f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in shown)
    return text + (" …" if sum(b - a + 1 for a, b in shown) < count else "")


def _table_lines(table: dict[str, Any]) -> Iterator[str]:
    for side in ("A", "B"):
        found = table[f"onlyIn{side}"]
        if found["count"]:
            names = ", ".join(found["first"][:5])
            more = " …" if found["count"] > 5 else ""
            yield f"{table['table']}: {found['count']:,} only in {side}: {names}{more}"
    changed = table["changed"]
    if changed["count"]:
        yield f"{table['table']}: {changed['count']:,} differ"
    for row in changed["first"][:5]:
        yield f"  {row['name']}: {_short(row['a'])} in A, {_short(row['b'])} in B"


def _short(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= 100 else f"{text[:99]}…"
