"""`pocketmq lookup`: single messages by key or id. Exit code 3 when there is none."""

from __future__ import annotations

import click

from ..client import Admin, ReceivedMessage
from ..proto.errors import MessageNotFound
from .options import json_option, nameserver_option
from .output import message_document, print_json, print_message


@click.command()
@click.option("--key", help="A key, or an id that the producer gave; needs --topic.")
@click.option("--id", "message_id", help="A message id, of either kind; --topic makes it quicker.")
@click.option("--topic", help="The topic to look in.")
@click.option(
    "--count", type=click.IntRange(1), default=32, show_default=True, help="At most so many."
)
@json_option("a message a line, with everything known of it")
@nameserver_option
def lookup(
    *,
    key: str | None,
    message_id: str | None,
    topic: str | None,
    count: int,
    as_json: bool,
    nameserver: str,
) -> None:
    """Find messages by key or by id."""
    if (key is None) == (message_id is None):
        raise click.UsageError("Give --key or --id.")
    if key is not None and topic is None:
        raise click.UsageError("--key needs --topic: keys are indexed by topic.")
    with Admin(nameserver) as admin:
        found = _found(admin, key, message_id, topic, count)
    for at, message in enumerate(found):
        if as_json:
            print_json(message_document(message))
            continue
        if at:
            click.echo()
        print_message(message)


def _found(
    admin: Admin, key: str | None, message_id: str | None, topic: str | None, count: int
) -> list[ReceivedMessage]:
    if message_id is not None:
        return [admin.lookup_id(message_id, topic)]
    assert key is not None
    assert topic is not None
    if found := admin.lookup(topic, key, max_messages=count):
        return found
    raise MessageNotFound(
        f"topic {topic!r} has no message with the key {key!r}: keys are whole words, as they were sent",
        topic=topic,
        key=key,
    )
