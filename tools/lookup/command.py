"""`pocketmq lookup`: single messages by key, tag, id, offset or time; exit code 3 when there is none.

It asks live brokers, or reads the files of stores of either broker, live or not, without writing. The files are read as
they are: a record that a broker would cut off at the end of a damaged log is found, too, and marked as faulty.
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


@click.command(cls=options.TakesStores)
@options.stores_argument
@click.option("--key", help="A key, or an id that the producer gave. Live brokers need --topic.")
@click.option("--tag", help="A tag; needs --topic. Not every broker indexes tags.")
@click.option("--id", "message_id", help="A message id, of either kind; --topic makes it quicker.")
@click.option("--topic", shell_complete=topic_names, help="The topic to look in.")
@click.option("--queue", type=options.NUMBER, help="The queue to look in.")
@click.option("--offset", type=options.OFFSET, help="A queue offset; needs --topic and --queue.")
@click.option("--log-offset", type=options.OFFSET, help="A log offset; needs a STORE.")
@click.option("--since", metavar="TIME", help="Stored at this time or later.")
@click.option("--until", metavar="TIME", help="Stored before this time.")
@click.option(
    "--limit", "count", type=options.COUNT, help="Messages to show.  [default: 32, for an offset 1]"
)
@click.option("--scan", is_flag=True, help="With a STORE: read the whole log, not the index.")
@click.option(
    "--broker-conf",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="With a STORE: sizes by Apache's names (maxHashSlotNum=500), where the files do not tell them.",
)
@options.read_from_option("look, and their master where they find nothing")
@click.option("--raw", is_flag=True, help="Print bodies alone, as they are, one per line.")
@options.json_option("a message a line, with everything known of it")
@options.nameserver_option
def lookup(
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
    """Find messages by key, tag, id, offset or time: of live brokers, or in the files of each STORE.

    STORE is the folder of a store, a URL (s3://bucket/store), or a pattern over many brokers ("/data/broker-*/store").
    Times are ISO 8601 (without a zone: local time) or Unix milliseconds. A range of time narrows --key and --tag too.
    """
    read_from = options.read_from_of(asked.pop("read_from"), stores)
    raw = asked.pop("raw")
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other.")
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
