"""`pocketmq consume`: the messages of a topic, from where the group stands, printed as they come.

Offsets are committed behind what was printed and flushed: what the reader of the pipe did not get comes again. A group
that is new starts with the oldest message. Without --json only bodies are printed, one a line, so that
`pocketmq consume A --group g | pocketmq send B --stdin` copies a topic of text. A message whose body cannot be decoded
is reported on standard error, and the next one follows. On a terminal control characters in
bodies are escaped, unless --raw says otherwise.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import click

from ..client import Filter, MessageBatch, PullConsumer, ReceivedMessage, Sql
from ..proto.errors import PocketMQError, RequestTimeout
from .completion import group_names, topic_names
from .options import json_option, nameserver_option, read_from_of, read_from_option
from .output import message_document, print_bytes, print_json, undecodable
from .terminal import one_line


def _filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --tag and --sql, which exclude each other: the filter `wanted`."""

    @click.option("--tag", metavar="'A || B'", help="Only messages with one of these tags.")
    @click.option(
        "--sql", metavar="CONDITION", help="Only messages for whose properties this is true: SQL92."
    )
    @wraps(function)
    def filtered(*arguments: Any, tag: str | None, sql: str | None, **named: Any) -> Any:
        if tag is not None and sql is not None:
            raise click.UsageError("--tag and --sql exclude each other: in SQL, TAGS = 'a'.")
        if tag is not None and "||" in tag and not all(part.strip() for part in tag.split("||")):
            raise click.UsageError(
                f"--tag {tag!r}: nothing stands on one side of ||: write 'a || b', or leave it out."
            )
        wanted: Filter = tag if sql is None else Sql(sql)
        return function(*arguments, wanted=wanted, **named)

    return filtered


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--group",
    shell_complete=group_names,
    required=True,
    help="The group; how far it is stays with the brokers.",
)
@click.option("--count", type=click.IntRange(1), help="End after so many.  [default: never]")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0),
    help="End when none came for so many seconds; with fewer than --count the exit code is 4.  [default: never]",
)
@_filter_options
@click.option("--raw", is_flag=True, help="Print bodies as they are, also on a terminal.")
@read_from_option("hand out the messages, a moment later than their master")
@json_option("a message a line, with everything known of it")
@nameserver_option
def consume(
    topic: str,
    *,
    group: str,
    count: int | None,
    timeout_s: float | None,
    wanted: Filter,
    raw: bool,
    as_json: bool,
    **brokers: Any,
) -> None:
    """Print the messages of TOPIC that GROUP has not had, and note that it has them."""
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other.")
    as_bytes = raw or not sys.stdout.isatty()
    printed = 0
    nameserver, read_from = brokers["nameserver"], read_from_of(brokers["read_from"])
    with PullConsumer(
        group, {topic: wanted}, nameserver, auto_commit=False, read_from=read_from
    ) as consumer:
        consumer.queues(topic)  # Says at once that the topic, or the name server, is not there.
        for messages in _batches(consumer, count, timeout_s):
            with _interrupts_held():
                for message in messages:
                    _print(message, as_json=as_json, as_bytes=as_bytes)
                sys.stdout.flush()
                consumer.commit()
            printed += len(messages)
    if count is not None and printed < count:
        raise RequestTimeout(
            f"{printed} of {count} messages came; none came for {timeout_s:g} s", topic=topic
        )


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block, so that what is printed is committed; a second one does not wait."""
    came: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _batches(
    consumer: PullConsumer, count: int | None, timeout_s: float | None
) -> Iterator[MessageBatch]:
    timeout_ms = None if timeout_s is None else round(timeout_s * 1000)
    while count is None or count > 0:
        messages = consumer.poll(count, timeout_ms)
        if not messages:
            return
        if count is not None:
            count -= len(messages)
        yield messages


def _print(message: ReceivedMessage, *, as_json: bool, as_bytes: bool) -> None:
    """Print MESSAGE; one whose body cannot be decoded is reported instead, so that it holds up nothing."""
    if as_json:
        print_json(message_document(message))
        return
    try:
        body = message.body
    except PocketMQError as error:
        place = f"{message.topic}, queue {message.queue}, offset {message.queue_offset}"
        told = undecodable(message, error.message)
        click.echo(one_line(f"pocketmq: message not printed: {place}: {told}"), err=True)
        return
    if as_bytes:
        print_bytes(body)
    else:
        click.echo(body.decode(errors="backslashreplace"))
