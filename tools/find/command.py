"""`pocketmq find`: single messages by key, tag, id, offset or time.

It asks live brokers, or reads the files of stores without writing. Files are read as they are: a record that a start of
the broker would cut off at the end of a damaged log is found as well, and marked as faulty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from .. import options
from ..completion import topic_names
from ..instants import past_instant_of
from .live_messages import print_live
from .question import Question
from .stored_messages import print_from_files


@click.command(cls=options.StoreCommand)
@options.stores_argument
@click.option(
    "--key",
    metavar="KEY",
    help="Key of the message, or its producer's id. Live brokers need --topic.",
)
@click.option(
    "--tag", metavar="TAG", help="Tag of the message; needs --topic. Not every broker indexes tags."
)
@click.option(
    "--id", "message_id", help="Message id of either kind; --topic makes the search faster."
)
@click.option("--topic", metavar="TOPIC", shell_complete=topic_names, help="Topic of the message.")
@click.option("--queue", type=options.NUMBER, help="Queue of the message.")
@click.option(
    "--offset", type=options.OFFSET, help="Offset in the queue; needs --topic and --queue."
)
@click.option("--log-offset", type=options.OFFSET, help="Offset in the log; needs a STORE.")
@click.option("--since", metavar="TIME", help="Stored at this time or later.")
@click.option("--until", metavar="TIME", help="Stored before this time.")
@click.option(
    "--limit",
    "count",
    type=options.COUNT,
    help="Maximum number of messages.  [default: 32, for an offset 1]",
)
@click.option("--scan", is_flag=True, help="With a STORE: read the whole log, not the index.")
@click.option(
    "--broker-conf",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="With a STORE: setting of its broker, as in broker.conf (maxHashSlotNum=500), if the files do not show it.",
)
@options.read_from_option("search too; their master if they find nothing")
@click.option("--raw", is_flag=True, help="Print only bodies, unchanged, one per line.")
@options.json_option("one message per line, with all its fields")
@options.nameserver_option
def find(
    *,
    since: str | None,
    until: str | None,
    count: int | None,
    stores: Sequence[str],
    settings: Sequence[str],
    as_json: bool,
    nameserver: str,
    **asked: Any,
) -> None:
    """Find messages by key, tag, id, offset or time.

    Searches live brokers, or the files of each STORE: a folder, a URL (s3://bucket/store), or a pattern over many
    brokers ("/data/broker-*/store"). Times are ISO 8601 (without a zone: local time) or Unix milliseconds; with --key
    or --tag they narrow the search. Prints each message with its fields.

    \b
    Example: pocketmq find --topic orders --key 42

    Exit code 3: no message was found.
    """
    read_from = options.read_from_of(asked.pop("read_from"), stores)
    raw = asked.pop("raw")
    if raw and as_json:
        raise click.UsageError("Give only one of --raw and --json.")
    question = Question(
        since_ms=None if since is None else past_instant_of(since),
        until_ms=None if until is None else past_instant_of(until),
        asked_count=count,
        **asked,
    )
    question.check(from_files=bool(stores))
    if stores:
        print_from_files(
            question, stores, options.broker_settings(settings), as_json=as_json, raw=raw
        )
    else:
        print_live(question, nameserver, read_from, as_json=as_json, raw=raw)
