"""`pocketmq consume`: prints the messages of a topic as they arrive.

With --group it continues at the group's offset. Offsets are committed after the messages are printed and flushed:
messages that the reader of the pipe did not get are redelivered. A new group starts with the oldest message. Without
--group it starts at --from, commits nothing and creates no group; filters are then applied by the command.

Without --json and --format only bodies are printed, one per line, so that
`pocketmq consume A --group g | pocketmq send B --stdin` copies a topic of text. A message whose body cannot be decoded
is reported on standard error, and the next one follows. On a terminal control characters in bodies are escaped, except
with --raw.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from string import Formatter
from typing import Any, Final, TypeAlias

import click

from ..client import Filter, PullConsumer, Queue, ReceivedMessage, Sql
from ..proto.clock import SystemClock
from ..proto.errors import InvalidArgument, NotReadable, PocketMQError, RequestTimeout
from ..proto.filters.expressions import parse_tags
from ..proto.filters.sql_evaluation import compiled
from ..proto.time_text import check_unix_ms, format_instant
from .completion import group_names, topic_names
from .counted import counted
from .instants import past_instant_of
from .options import COUNT, Seconds, json_option, nameserver_option, read_from_of, read_from_option
from .output import message_document, print_bytes, print_json, undecodable
from .terminal import one_line

#: Limit of --timeout: a year.
_TIMEOUT_MAX_S: Final = 31_536_000

#: Longer numbers are Unix milliseconds.
_OFFSET_DIGITS_MAX: Final = 11
#: Fields of --format.
_FIELDS: Final[dict[str, Callable[[ReceivedMessage], object]]] = {
    "body": lambda message: message.body.decode(errors="backslashreplace"),
    "key": lambda message: message.key or "",
    "keys": lambda message: " ".join(message.keys),
    "tag": lambda message: message.tag or "",
    "sharding_key": lambda message: message.sharding_key or "",
    "priority": lambda message: "" if message.priority is None else str(message.priority),
    "id": lambda message: message.message_id,
    "topic": lambda message: message.topic,
    "broker": lambda message: message.broker,
    "queue": lambda message: message.queue,
    "offset": lambda message: message.queue_offset,
    "stored": lambda message: format_instant(message.store_timestamp_ms),
    "born": lambda message: format_instant(message.born_timestamp_ms),
    "retries": lambda message: message.reconsume_times,
    "properties": lambda message: json.dumps(message.properties, ensure_ascii=False),
}
#: Fields that are numbers to a format spec.
_NUMBERS: Final = ("queue", "offset", "retries")
#: Limit of a width or precision in --format, so that a line stays below a megabyte.
_DIGITS_MAX: Final = 5
_LONG_NUMBER: Final = re.compile(rf"\d{{{_DIGITS_MAX + 1}}}")


def _filter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --tag and --sql, which exclude each other: the filter `wanted`."""

    @click.option("--tag", metavar="'A || B'", help="Only messages with one of these tags.")
    @click.option(
        "--sql",
        metavar="CONDITION",
        help="Only messages whose properties fulfil this SQL92 condition.",
    )
    @wraps(function)
    def filtered(*arguments: Any, tag: str | None, sql: str | None, **named: Any) -> Any:
        if tag is not None and sql is not None:
            raise click.UsageError(
                "Give only one of --tag and --sql. In SQL, write TAGS = 'a' for a tag."
            )
        if tag is not None and "||" in tag and not all(part.strip() for part in tag.split("||")):
            raise click.UsageError(
                f"--tag {tag!r}: a side of || is empty. Write 'a || b', or leave || out."
            )
        wanted: Filter = tag if sql is None else Sql(sql)
        return function(*arguments, wanted=wanted, **named)

    return filtered


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.option(
    "--group",
    metavar="GROUP",
    shell_complete=group_names,
    help="Consumer group; its offset is committed.  [default: none]",
)
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|TIME|OFFSET",
    help="Start without --group: TIME is 2026-12-24T18:00:00 or Unix milliseconds; a number of up to 11 digits is an"
    " OFFSET in each queue.  [default: earliest]",
)
@click.option(
    "--key", "keys", metavar="KEY", multiple=True, help="Only messages with this key. Repeatable."
)
@click.option(
    "--format",
    "pattern",
    metavar="TEXT",
    help=r"Line to print for each message, such as '{key}\t{body}': " + f"{', '.join(_FIELDS)}.",
)
@click.option(
    "--limit", "count", type=COUNT, help="Stop after this number of messages.  [default: never]"
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(0, _TIMEOUT_MAX_S),
    help="Stop after this long without a message: seconds, or 500ms, 2m.  [default: never]",
)
@_filter_options
@click.option("--raw", is_flag=True, help="Print bodies unchanged, also on a terminal.")
@read_from_option("deliver too, a moment later than their master")
@json_option("one message per line, with all its fields")
@nameserver_option
def consume(
    topic: str,
    *,
    group: str | None,
    start: str | None,
    keys: tuple[str, ...],
    count: int | None,
    timeout_s: float | None,
    **given: Any,
) -> None:
    """Print the messages of TOPIC as they arrive.

    With --group it prints the messages that the group has not processed, and commits them. Without, it prints all
    messages from --from on, and commits nothing.

    \b
    Examples: pocketmq consume orders --limit 10
              pocketmq consume orders --group billing --tag 'paid || refunded'

    Exit code 4: --timeout ended it before --limit messages arrived.
    """
    if group is not None and start is not None:
        raise click.UsageError(
            "--from cannot be used with --group. To reset a group, use `pocketmq group reset-offset`."
        )
    show, wanted, is_wanted = _printer(given), given["wanted"], _any_key(keys)
    begin = _start_of(start or "earliest")
    printed = 0
    with PullConsumer(
        group,
        () if group is None else {topic: wanted},
        given["nameserver"],
        auto_commit=False,
        read_from=read_from_of(given["read_from"]),
    ) as consumer:
        queues = consumer.queues(topic)  # Raises if the topic or the name server is not there.
        if not queues:
            raise NotReadable(
                f"topic {topic!r} is not readable. To change that:"
                f" `pocketmq topic update {topic} --permission read-write`",
                topic=topic,
            )
        if group is None:
            _begin(consumer, queues, begin)
            is_wanted = _all_of(is_wanted, _filter(wanted))
        for messages in _batches(consumer, count, timeout_s, is_wanted):
            with _interrupts_held():
                for message in messages:
                    show(message)
                sys.stdout.flush()
                if group is not None:
                    consumer.commit()
            printed += len(messages)
    if count is not None and printed < count and timeout_s is not None:
        raise RequestTimeout(
            f"received {printed} of {counted(count, 'message')}; none arrived for {timeout_s:g} s",
            topic=topic,
        )


def _start_of(text: str) -> str | int | datetime:
    """Parse --from: "earliest", "latest", an offset, or a store time. Raises BadParameter."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS_MAX:
        return int(text)
    try:
        return datetime.fromtimestamp(past_instant_of(text) / 1000, UTC)
    except InvalidArgument as error:
        raise click.BadParameter(
            f"{text[:64]!r} is not earliest, latest, an offset or a time such as 2026-12-24T18:00:00",
            param_hint="--from",
        ) from error


def _begin(consumer: PullConsumer, queues: Sequence[Queue], begin: str | int | datetime) -> None:
    """Let CONSUMER read QUEUES from BEGIN on, outside of all groups."""
    consumer.assign(queues)
    if isinstance(begin, datetime):
        consumer.seek_to_time(queues, begin)
        return
    firsts = {} if begin == "latest" else consumer.seek_to_first(queues)
    if begin == "earliest":
        return
    lasts = consumer.seek_to_last(queues)
    if isinstance(begin, int):
        if begin > max(lasts.values(), default=0):
            # Probably a time in seconds. Without this check the command would wait for ever.
            check_unix_ms(begin, "--from")
        for queue in queues:
            consumer.seek(queue, min(max(begin, firsts[queue]), lasts[queue]))


#: The command commits at this interval or more often, also past messages that a filter left out.
_LOOK_MS: Final = 1_000
_Test: TypeAlias = Callable[[ReceivedMessage], bool]


def _any_key(keys: Sequence[str]) -> _Test:
    chosen = frozenset(keys)
    return lambda message: not chosen or not chosen.isdisjoint(message.keys)


def _filter(wanted: Filter) -> _Test:
    """Return the test that a broker would apply for WANTED."""
    if isinstance(wanted, Sql):
        sql = compiled(wanted.expression)
        return lambda message: sql.evaluate(tuple(map(message.properties.get, sql.names))) is True
    tags = parse_tags(wanted or "")
    return lambda message: not tags or message.tag in tags


def _all_of(*tests: _Test) -> _Test:
    return lambda message: all(test(message) for test in tests)


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
    consumer: PullConsumer, count: int | None, timeout_s: float | None, is_wanted: _Test
) -> Iterator[list[ReceivedMessage]]:
    """Yield the wanted messages of each batch, COUNT in all, until none arrived for TIMEOUT_S.

    Filtered messages must be committed as well. So an empty list is yielded at the end, and after each _LOOK_MS without
    messages.
    """
    now_ms = SystemClock().now_ms
    wait_ms = None if timeout_s is None else round(timeout_s * 1000)
    heard_ms = now_ms()
    while count is None or count > 0:
        left_ms = _LOOK_MS if wait_ms is None else max(0, heard_ms + wait_ms - now_ms())
        batch = consumer.poll(count, min(left_ms, _LOOK_MS))
        messages = [message for message in batch if is_wanted(message)]
        if messages:
            heard_ms = now_ms()
        if count is not None:
            count -= len(messages)
        yield messages
        if not messages and wait_ms is not None and now_ms() >= heard_ms + wait_ms:
            return


def _printer(given: Mapping[str, Any]) -> Callable[[ReceivedMessage], None]:
    """Return the function that prints a message. One that cannot be decoded is reported, and does not stop the rest."""
    pattern, raw, as_json = given["pattern"], given["raw"], given["as_json"]
    if raw + as_json + (pattern is not None) > 1:
        raise click.UsageError("Give only one of --raw, --json and --format.")
    as_bytes = raw or not sys.stdout.isatty()
    if as_json:
        return lambda message: print_json(message_document(message))
    text = None if pattern is None else _pattern(pattern)

    def show(message: ReceivedMessage) -> None:
        try:
            body = message.body
        except PocketMQError as error:
            place = f"{message.topic}, queue {message.queue}, offset {message.queue_offset}"
            why = undecodable(message, error.message)
            click.echo(one_line(f"pocketmq: message not printed: {place}: {why}"), err=True)
            return
        if text is not None:
            click.echo(text.format(**{name: of(message) for name, of in _FIELDS.items()}))
        elif as_bytes:
            print_bytes(body)
        else:
            click.echo(body.decode(errors="backslashreplace"))

    return show


def _pattern(text: str) -> str:
    """Return TEXT, with its escapes, if every message can be printed with it. Raises BadParameter."""
    text = text.replace("\\t", "\t").replace("\\n", "\n")
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise _bad_format(repr(text[:64]), error) from error
    for _, name, specification, conversion in parts:
        if name is None:
            continue
        if name not in _FIELDS:
            known = ", ".join(f"{{{field}}}" for field in _FIELDS)
            raise _bad_format(f"{{{name}}} is not a field", f"write one of {known}")
        spec = f":{specification}" if specification else ""
        field = f"{{{name}{'!' + conversion if conversion else ''}{spec}}}"
        if "{" in spec:
            raise _bad_format(field, "a format spec cannot contain fields")
        if _LONG_NUMBER.search(spec):
            raise _bad_format(field, f"numbers in a format spec have up to {_DIGITS_MAX} digits")
        try:
            field.format(**{name: 1 << 62 if name in _NUMBERS else ""})
        except (ValueError, OverflowError) as error:
            raise _bad_format(field, error) from error
    return text


def _bad_format(what: str, why: object) -> click.BadParameter:
    return click.BadParameter(f"{what[:80]}: {why}", param_hint="--format")
