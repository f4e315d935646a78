"""`pocketmq trace MESSAGE [STORE…]`: the history of one message, from the files of stores or from live brokers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...proto.errors import MessageNotFound
from .. import terminal
from ..find.search import LookupAnswer
from ..options import (
    COUNT,
    StoreCommand,
    broker_settings,
    json_option,
    nameserver_option,
    stores_argument,
)
from ..output import instant, print_json
from ..stores.locations import StoreLocation, locate
from .stores import WhyAsked, histories_in
from .timeline import Story

_STYLES = {
    "dead letter": "red",
    "gone": "red",
    "rolled back": "red",
    "given up": "red",
    "sent back": "yellow",
    "revived": "yellow",
    "waits": "cyan",
    "moved": "green",
    "committed": "green",
    "acknowledged": "green",
    "read": "green",
}
#: Width of the table if the output is not a terminal.
_WIDTH = 160
_NOT_FOUND = 3


def print_story(console: Console, story: Mapping[str, Any]) -> None:
    """Print STORY, a document of `Story.document`."""
    if story["state"] != "gone":  # Else only its end is known.
        _print_events(console, story)
    console.print(Text(f"→ {story['conclusion']}", style="bold"), soft_wrap=True)
    for note in story["notes"]:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)


def _print_events(console: Console, story: Mapping[str, Any]) -> None:
    words = [
        story["message_id"] or "a message without an id",
        f"topic {story['topic'] or '?'}",
        f"keys {story['keys'] or '-'}",
        f"tag {story['tags'] or '-'}",
        f"broker {story['broker']}",
    ]
    console.print(Text("  ".join(words), style="bold"), soft_wrap=True)
    if story["born_ms"] is not None:
        console.print(Text(f"born {instant(story['born_ms'])}"), soft_wrap=True)
    if story["trace"] is not None:
        console.print(Text(f"trace {story['trace']}"), soft_wrap=True)
    console.print(_events_table(story["events"]))
    for view in story["groups"]:
        if view["verdict"] != "read":  # Reading is in the table of events already.
            where = f"{view['topic']}/{view['queue']} at offset {view['queue_offset']:,}"
            console.print(Text(f"group {view['group']}, {where}: {view['text']}"), soft_wrap=True)


def _events_table(events: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=True)
    table.add_column("time", no_wrap=True)
    table.add_column("what", overflow="fold", ratio=1)
    table.add_column("log offset", justify="right", no_wrap=True)
    table.add_column("file", overflow="fold")
    for event in events:
        offset, file = event["log_offset"], event["file"] or ""
        place = "" if offset is None else f"{offset:,}"
        text = Text(event["text"], style=_STYLES.get(event["kind"], ""))
        table.add_row(_when(event), text, place, file.rsplit("/", 1)[-1])
    return table


def _when(event: Mapping[str, Any]) -> str:
    if event["time"] is None:
        return "?"
    return ("≤ " if event["time_is_bound"] else "  ") + instant(event["time"])


@click.command(cls=StoreCommand)
@click.argument("message")
@stores_argument
@click.option("--topic", metavar="TOPIC", help="Topic, if MESSAGE is a key.")
@click.option(
    "--limit",
    "count",
    type=COUNT,
    default=4,
    show_default=True,
    help="Maximum number of messages with this key; the newest are shown.",
)
@click.option("--scan", is_flag=True, help="Read the whole log, not the index.")
@click.option(
    "--broker-conf",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of the store's broker, as in broker.conf (maxHashSlotNum=500), if the files do not show it.",
)
@json_option("one history per line")
@nameserver_option
def trace(
    *,
    stores: Sequence[str],
    settings: Sequence[str],
    nameserver: str,
    as_json: bool,
    **asked_for: Any,
) -> None:
    """Show the history of one message.

    MESSAGE is an id, TOPIC/QUEUE/OFFSET, or with --topic a key. Prints when it was stored, why it waited, which group
    read it, how often it failed, and where it is now. Each STORE may be live, stopped or damaged; its files are only
    read. Without a STORE the brokers are asked: they answer on their own machine, or to a user who may read the topic.

    \b
    Example: pocketmq trace 42 --topic orders

    Exit code 3: the message is unknown, or it is deleted; 4: no broker answers.
    """
    asked = WhyAsked(**asked_for)
    given = broker_settings(settings)
    if not stores:
        if given or asked.scan:
            raise click.UsageError("--broker-conf and --scan need a STORE.")
        _print_live(nameserver, asked, as_json=as_json)
        return
    context = click.get_current_context()
    if context.get_parameter_source("nameserver") is ParameterSource.COMMANDLINE:
        raise click.UsageError("Give either a STORE or --nameserver.")
    histories: list[tuple[Story, StoreLocation]] = []
    answers: list[LookupAnswer] = []
    for place in locate(stores, settings=given):
        found, stories = histories_in(place, given, asked)
        answers.append(found)
        histories += [(story, place) for story in stories]
    if not histories:
        raise _not_found(asked, answers)
    _print([story.document(place.broker_name) for story, place in histories], as_json=as_json)


def _print_live(nameserver: str, asked: WhyAsked, *, as_json: bool) -> None:
    """Print the histories that the brokers of NAMESERVER return for ASKED."""
    from .live import histories_from_brokers

    stories, failures = asyncio.run(
        histories_from_brokers(nameserver, asked.message, asked.topic, asked.count)
    )
    for failure in failures if stories else failures[1:]:
        click.echo(f"pocketmq: {failure.message}", err=True)
    if not stories:
        raise failures[0]
    _print(stories, as_json=as_json)


def _not_found(asked: WhyAsked, answers: Sequence[LookupAnswer]) -> MessageNotFound:
    notes = "; ".join(sentence for found in answers for sentence in found.sentences())
    doubt = ". It may have existed: " if any(one.may_have_existed for one in answers) else "; "
    return MessageNotFound(
        f"message {asked.message!r} not found in any store" + (doubt + notes if notes else ""),
        asked_for=asked.message,
    )


def _print(histories: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print HISTORIES. If all messages are gone, print the first and exit with code 3."""
    whole = [story for story in histories if story["state"] != "gone"]
    chosen = whole or histories[:1]
    console = None if as_json else terminal.console(width=None if sys.stdout.isatty() else _WIDTH)
    for number, story in enumerate(chosen):
        if console is None:
            print_json(story)
            continue
        if number:
            console.print()
        print_story(console, story)
    if not whole:
        raise click.exceptions.Exit(_NOT_FOUND)
