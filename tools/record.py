"""`pocketmq record` and `replay`: write the messages of a topic to a file, and send them again at the same pace.

Each line of the file is a JSON object:

    topic                                   topic of the message
    body                                    text, or null with `body_base64` if the bytes are not UTF-8
    keys, tag, sharding_key, priority       as the producer gave them; absent if there are none
    properties                              of the application; absent if there are none
    stored_ms, born_ms                      Unix milliseconds, of the broker and of the producer
    queue, message_id                       for information: a replay chooses queues again, and makes new ids

A recording begins with the oldest message, in the order of storing; --follow adds new messages as they arrive. No
offset is committed. A replay keeps the time between messages by `stored_ms`, divided by the speed; a line that is
older than the one before it is sent at once.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import click

from ..client import Admin, AsyncProducer, Message, PullConsumer, QueueDescription, ReceivedMessage
from ..client.message import is_reserved
from ..proto.clock import Clock, SystemClock
from ..proto.errors import InvalidArgument
from ..proto.properties import PRIORITY, SHARDING_KEY, whole_number
from .completion import topic_names
from .counted import counted
from .options import nameserver_option
from .output import decoded_fields

#: Limit of messages in one batch.
_BATCH_MAX: Final = 500
_LINE_MAX: Final = 64 * 1024 * 1024
_SPEED: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]+)?)x?")


def line_of(message: ReceivedMessage) -> str:
    """Return MESSAGE as a line of a record, with its end."""
    properties = message.properties
    document: dict[str, Any] = {
        "topic": message.topic,
        **decoded_fields(message),
        "keys": list(message.keys),
        "tag": message.tag,
        "sharding_key": properties.get(SHARDING_KEY),
        # A group and a priority exclude each other; of both, the group counts.
        "priority": None if SHARDING_KEY in properties else message.priority,
        "properties": {name: value for name, value in properties.items() if _is_own(name)},
        "stored_ms": message.store_timestamp_ms,
        "born_ms": message.born_timestamp_ms,
        "queue": message.queue,
        "message_id": message.message_id,
    }
    present = {
        name: value
        for name, value in document.items()
        if name == "body" or value not in ([], {}, None)
    }
    return json.dumps(present, ensure_ascii=False, separators=(",", ":")) + "\n"


#: Set by producers and brokers for themselves.
_SYSTEM: Final = frozenset({"WAIT", "CLUSTER", "TRACE_ON", "MSG_REGION", "INSTANCE_ID"})


def _is_own(name: str) -> bool:
    return not (is_reserved(name) or name.startswith("__") or name in _SYSTEM)


def message_of(line: str, place: str, topic: str | None = None) -> tuple[int, Message]:
    """Return when the message of LINE was stored, and the message, for TOPIC if that is given.

    Raises InvalidArgument, which names PLACE, if LINE is not a line of a recording.
    """
    try:
        found = json.loads(line)
        body = found.get("body")
        data = (
            base64.b64decode(found["body_base64"], validate=True) if body is None else body.encode()
        )
        stored_ms = found["stored_ms"]
        if type(stored_ms) is not int:
            raise TypeError("stored_ms is not a whole number")
        properties = dict(found.get("properties") or {})
        message = Message(
            topic or found["topic"],
            data,
            keys=found.get("keys", ()),
            tag=found.get("tag"),
            sharding_key=found.get("sharding_key"),
            priority=found.get("priority", _priority_among(properties)),
            properties=properties,
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"{place}: {error.message}", field="line", value=place) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgument(
            f"{place} is not a line that `pocketmq record` wrote ({error!r:.80})",
            field="line",
            value=place,
        ) from None
    return stored_ms, message


def _priority_among(properties: dict[str, str]) -> int | None:
    """Take the priority out of PROPERTIES, where earlier versions wrote it."""
    return whole_number(properties.pop(PRIORITY, ""))


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--follow", is_flag=True, help="Continue with new messages, until Ctrl-C.")
@nameserver_option
def record(topic: str, file: Path, *, follow: bool, nameserver: str) -> None:
    """Write the messages of TOPIC to FILE, a new JSON Lines file.

    Writes one message per line, the oldest first. No offset is committed. Send them again with `pocketmq replay`.

    \b
    Example: pocketmq record orders orders.jsonl
    """
    with (
        Admin(nameserver) as admin,
        PullConsumer(None, (), nameserver) as consumer,
    ):
        bounds = admin.queue_offsets(topic)
        with _new(file) as written:
            pages = [_pages(consumer, one) for one in bounds]
            count = 0
            for message in heapq.merge(*pages, key=lambda one: one.store_timestamp_ms):
                written.write(line_of(message))
                count += 1
            written.flush()
            click.echo(f"{counted(count, 'message')} of {topic} in {file}")
            if follow:
                _follow(consumer, bounds, written)


def _new(file: Path) -> IO[str]:
    try:
        return file.open("x", encoding="utf-8", newline="\n")
    except FileExistsError:
        raise InvalidArgument(
            f"{file} exists already: give the name of a new file", field="file", value=str(file)
        ) from None


def _pages(consumer: PullConsumer, bounds: QueueDescription) -> Iterator[ReceivedMessage]:
    """Yield the messages of a queue between the offsets of BOUNDS, one fetch after the other."""
    offset = bounds.min_offset
    while offset < bounds.max_offset:
        pulled = consumer.pull(bounds.queue.topic, bounds.queue, offset)
        yield from (one for one in pulled.messages if one.queue_offset < bounds.max_offset)
        if pulled.next_offset <= offset:
            return
        offset = pulled.next_offset


def _follow(consumer: PullConsumer, bounds: Iterable[QueueDescription], written: IO[str]) -> None:
    ends = {one.queue: one.max_offset for one in bounds}
    consumer.assign(list(ends))
    for queue, offset in ends.items():
        consumer.seek(queue, offset)
    while True:
        for message in consumer.poll(timeout_ms=None):
            written.write(line_of(message))
        written.flush()


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--speed",
    metavar="FACTOR",
    default="1x",
    show_default=True,
    help="Speed compared with the recording: 10x, 0.5x, or max (no pauses).",
)
@click.option(
    "--topic",
    metavar="TOPIC",
    shell_complete=topic_names,
    help="Topic to send all messages to.  [default: the topic in each line]",
)
@nameserver_option
def replay(file: Path, *, speed: str, topic: str | None, nameserver: str) -> None:
    """Send the messages of a file that `pocketmq record` wrote.

    Keeps the time between messages as recorded, unless you give --speed. Prints how many messages were sent.

    \b
    Example: pocketmq replay orders.jsonl --speed max --topic orders-test
    """
    factor = speed_of(speed)

    async def run() -> int:
        async with AsyncProducer(nameserver) as producer:
            with file.open(encoding="utf-8-sig", newline="\n") as lines:
                return await resend(read(lines, str(file), topic), producer, factor, SystemClock())

    click.echo(f"{counted(asyncio.run(run()), 'message')} of {file} sent")


def speed_of(text: str) -> float:
    """Parse a speed such as "10x"; return its factor, 0 for "max". Raises InvalidArgument."""
    found = _SPEED.fullmatch(text)
    if text == "max" or (found and float(found[1]) > 0):
        return float(found[1]) if found else 0.0
    raise InvalidArgument(f"--speed {text}: write 10x, 0.5x, or max", field="speed", value=text)


def read(lines: IO[str], name: str, topic: str | None) -> Iterator[tuple[int, Message]]:
    """Yield when each message of LINES, of the file NAME, was stored, and the message. Raises InvalidArgument."""
    number = 0
    while line := lines.readline(_LINE_MAX):
        number += 1
        if line.strip():
            yield message_of(line, f"{name}:{number}", topic)


async def resend(
    recorded: Iterable[tuple[int, Message]], producer: AsyncProducer, speed: float, clock: Clock
) -> int:
    """Send RECORDED messages, SPEED times faster (0: without pauses), by CLOCK; return their number.

    Messages that are due at the same time are sent in one batch. The next wait begins when they are stored.
    """
    count, begin_ms, first_ms = 0, clock.now_ms(), None
    batch: list[Message] = []
    for stored_ms, message in recorded:
        first_ms = stored_ms if first_ms is None else first_ms
        due_ms = begin_ms + int((stored_ms - first_ms) / speed) if speed else begin_ms
        if batch and (len(batch) >= _BATCH_MAX or due_ms > clock.now_ms()):
            await producer.send_many(batch)
            batch = []
        await clock.sleep_until(due_ms)
        batch.append(message)
        count += 1
    if batch:
        await producer.send_many(batch)
    return count
