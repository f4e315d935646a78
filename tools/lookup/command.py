"""`pocketmq lookup`: single messages by key, tag, id, offset or time; exit code 3 when there is none.

It asks live brokers, or reads the files of stores of either broker, live or not, without writing. The files are read as
they are: a record that a broker would cut off at the end of a damaged log is found, too, and marked as faulty.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ...client import Admin, ReceivedMessage
from ...client.config import ReadFrom
from ...proto.errors import MessageNotFound, PocketMQError
from ...proto.properties import KEYS, PRIORITY, SHARDING_KEY, TAGS, UNIQ_KEY, whole_number
from ...proto.record import Record, decompress_body
from ...proto.time_text import format_instant
from ...store.os_disk import OsDisk
from .. import options
from ..completion import topic_names
from ..instants import past_instant_of
from ..output import (
    body_fields,
    instant,
    message_document,
    print_bytes,
    print_json,
    print_message,
    print_pairs,
)
from ..stores.locations import StoreLocation, locate
from .files import StoredRecord
from .search import TIME_MAX_MS, LookupAnswer, StoreSearch, TimeRange


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
    "--count", type=options.COUNT, help="Messages to show.  [default: 32, for an offset 1]"
)
@click.option("--scan", is_flag=True, help="With a STORE: read the whole log, not the index.")
@click.option(
    "--set",
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


# ---------------------------------------------------------------- what a look-up asks for, checked


_COUNT: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The options that say what to look for; times are Unix milliseconds, [since, until)."""

    key: str | None = None
    tag: str | None = None
    message_id: str | None = None
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    log_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    asked_count: int | None = None
    scan: bool = False

    @property
    def times(self) -> TimeRange:
        """The first and the last millisecond, as indexes of both brokers are asked."""
        end_ms = TIME_MAX_MS if self.until_ms is None else self.until_ms - 1
        return TimeRange(self.since_ms or 0, end_ms)

    @property
    def count(self) -> int:
        """The maximum number of messages; 1 for an offset."""
        return self.asked_count or (1 if self.offset is not None else _COUNT)

    @property
    def details(self) -> dict[str, str]:
        """What was asked for, by name."""
        asked = {
            "key": self.key,
            "tag": self.tag,
            "message_id": self.message_id,
            "queue": self.queue,
            "offset": self.offset,
            "log_offset": self.log_offset,
        }
        return {name: str(value) for name, value in asked.items() if value is not None}

    @property
    def words(self) -> str:
        """What is looked for, as the end of a sentence: "with the key 'k'"."""
        if self.message_id is not None:
            return f"with the id {self.message_id!r}"
        if self.log_offset is not None:
            return f"at log offset {self.log_offset:,}"
        if self.offset is not None:
            return f"at offset {self.offset:,} of queue {self.queue}"
        which = f"with the tag {self.tag!r}" if self.tag is not None else "in this time"
        if self.key is not None:
            which = f"with the key {self.key!r}: keys are whole words, as they were sent"
        since = "" if self.since_ms is None else f", since {format_instant(self.since_ms)}"
        until = "" if self.until_ms is None else f", before {format_instant(self.until_ms)}"
        return which + since + until

    def check(self, *, from_files: bool) -> None:
        """Raise click.UsageError unless exactly one thing is asked for, with all that it needs."""
        ways = [self.key, self.tag, self.message_id, self.offset, self.log_offset]
        if sum(way is not None for way in ways) > 1:
            raise click.UsageError("Give one of --key, --tag, --id, --offset and --log-offset.")
        timed = self.since_ms is not None or self.until_ms is not None
        if all(way is None for way in ways) and not timed:
            raise click.UsageError("Give --key, --tag, --id, --offset, or --since and --until.")
        if self.offset is not None and (self.topic is None or self.queue is None):
            raise click.UsageError("--offset needs --topic and --queue: it counts in one queue.")
        if self.times.end_ms < self.times.begin_ms:
            raise click.UsageError(
                "--until must be later than --since: that time itself is left out."
            )
        if from_files:
            self._check_files()
        else:
            self._check_live()

    def _check_files(self) -> None:
        if not self._is_placed and self.key is None and self.tag is None and self.topic is None:
            raise click.UsageError("--since and --until need --topic.")

    def _check_live(self) -> None:
        if self.log_offset is not None or self.scan:
            raise click.UsageError("--log-offset and --scan read files: give a STORE.")
        if not self._is_placed and self.topic is None:
            what = (
                "--key" if self.key is not None else "--tag" if self.tag is not None else "A time"
            )
            raise click.UsageError(f"{what} needs --topic: keys are indexed by topic.")

    @property
    def _is_placed(self) -> bool:
        return any(way is not None for way in (self.message_id, self.offset, self.log_offset))


# ---------------------------------------------------------------- look-ups in the files of stores


def message_row(stored: StoredRecord, broker: str) -> dict[str, Any]:
    """Return STORED as JSON shows it; what a message does not have is null.

    `body` is text, or null with `bodyBase64`, and `bodyFault` for one that cannot be decoded: then
    these are the stored bytes.
    """
    record = stored.record
    return {
        "brokerName": broker,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": stored.log_offset,
        "storeSize": len(stored.data),
        "storeTimestamp": record.store_timestamp_ms,
        "bornTimestamp": record.born_timestamp_ms,
        "bornHost": str(record.born_host),
        "storeHost": str(record.store_host),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "reconsumeTimes": record.reconsume_times,
        "bodyCrc": record.body_crc,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "messageId": record.properties.get(UNIQ_KEY),
        "offsetMessageId": record.message_id,
        "tags": record.properties.get(TAGS),
        "keys": record.properties.get(KEYS),
        "shardingKey": record.properties.get(SHARDING_KEY),
        "priority": whole_number(record.properties.get(PRIORITY, "")),
        "properties": dict(record.properties),
        **_body(record),
        "file": stored.path,
        "faults": list(stored.faults),
    }


def _body(record: Record) -> dict[str, str | None]:
    try:
        fields = body_fields(decompress_body(record.body, record.sys_flag))
    except PocketMQError as error:
        stored = base64.b64encode(record.body).decode()
        return {"body": None, "bodyBase64": stored, "bodyFault": error.message}
    if "body_base64" in fields:
        fields["bodyBase64"] = fields.pop("body_base64")
    return fields


def _raw(message: ReceivedMessage) -> bytes:
    """Return the body of MESSAGE; as it is stored where it cannot be decompressed."""
    try:
        return message.body
    except PocketMQError:
        return message.stored_body


def _bytes(record: Record) -> bytes:
    """Return the body of RECORD; as it is stored where it cannot be decompressed."""
    try:
        return decompress_body(record.body, record.sys_flag)
    except PocketMQError:
        return bytes(record.body)


def print_stored(stored: StoredRecord, broker: str) -> None:
    """Print STORED for people."""
    record = stored.record
    fields, size = _body(record), len(stored.data)
    body = fields["body"]
    if body is None:
        body = fields.get("bodyFault") or f"{len(record.body):,} bytes, no text"
    print_pairs(
        {
            "topic": record.topic,
            "place": f"broker {broker}, queue {record.queue_id}, offset {record.queue_offset}",
            "stored": f"{instant(record.store_timestamp_ms)}, {size:,} bytes",
            "log": f"offset {stored.log_offset:,} in {stored.path}",
            "born": f"{instant(record.born_timestamp_ms)} on {record.born_host}",
            "id": record.properties.get(UNIQ_KEY, "-"),
            "offset id": record.message_id,
            "keys": record.properties.get(KEYS, "-"),
            "tag": record.properties.get(TAGS, "-"),
            **({"priority": record.properties[PRIORITY]} if PRIORITY in record.properties else {}),
            **({"tries": str(record.reconsume_times)} if record.reconsume_times else {}),
            **({"faults": "; ".join(stored.faults)} if stored.faults else {}),
            "body": body,
        }
    )


def print_from_files(
    question: Question,
    stores: Sequence[str],
    settings: Mapping[str, str],
    *,
    as_json: bool,
    raw: bool,
) -> None:
    """Print what the STORES hold for QUESTION: messages on standard output, all else on standard error.

    RAW: bodies alone.

    Raises MessageNotFound, which says whether it may have existed.
    """
    answers = [
        (place, ask(_search(place, settings), question))
        for place in locate(stores, settings=settings)
    ]
    rows = _ordered(question, answers)
    for at, (stored, broker) in enumerate(rows):
        if as_json:
            print_json(message_row(stored, broker))
            continue
        if raw:
            print_bytes(_bytes(stored.record))
            continue
        if at:
            click.echo()
        print_stored(stored, broker)
    if as_json:
        for place, found in answers:
            document = {"brokerName": place.broker_name, **found.summary()}
            click.echo(json.dumps(document, ensure_ascii=False), err=True)
    told = _told(answers)
    if not rows:
        raise _not_found(question, answers, told)
    if not as_json:
        for sentence in told:
            click.echo(f"note: {sentence}", err=True)


def ask(search: StoreSearch, question: Question) -> LookupAnswer:
    """Return what one store answers."""
    topic, count, scan = question.topic, question.count, question.scan
    if question.message_id is not None:
        return search.by_id(question.message_id, topic, count=count, scan=scan)
    if question.log_offset is not None:
        return search.by_log_offset(question.log_offset)
    if question.offset is not None:
        assert topic is not None, "checked before"
        assert question.queue is not None, "checked before"
        return search.by_queue_offset(topic, question.queue, question.offset, count=count)
    if question.key is None and question.tag is None:
        assert topic is not None, "checked before"
        return search.by_time(topic, question.queue, question.times, count=count)
    key, kind = (question.key, "K") if question.key is not None else (question.tag, "T")
    assert key is not None
    return search.by_key(topic, key, kind=kind, times=question.times, count=count, scan=scan)


def _search(place: StoreLocation, settings: Mapping[str, str]) -> StoreSearch:
    disk = place.open_disk()
    return StoreSearch(disk, place.root, settings, mapped=isinstance(disk, OsDisk))


def _ordered(
    question: Question, answers: Sequence[tuple[StoreLocation, LookupAnswer]]
) -> list[tuple[StoredRecord, str]]:
    """Return the hits of all stores, oldest first: the first ones by time and offset, the newest ones by key."""
    rows = [(stored, place.broker_name) for place, found in answers for stored in found.hits]
    rows.sort(key=lambda row: row[0].record.store_timestamp_ms)
    by_key = question.key is not None or question.tag is not None
    return rows[-question.count :] if by_key else rows[: question.count]


def _told(answers: Sequence[tuple[StoreLocation, LookupAnswer]]) -> list[str]:
    several = len(answers) > 1
    return [
        f"{place.broker_name}: {sentence}" if several else sentence
        for place, found in answers
        for sentence in found.sentences()
    ]


def _not_found(
    question: Question, answers: Sequence[tuple[StoreLocation, LookupAnswer]], told: Sequence[str]
) -> MessageNotFound:
    may = any(found.may_have_existed for _, found in answers)
    where = f"topic {question.topic!r}" if question.topic is not None else "the store"
    doubt = ". It may have existed: " if may and told else "; " if told else ""
    return MessageNotFound(
        f"{where} has no message {question.words}{doubt}{'; '.join(told)}", **question.details
    )


# ---------------------------------------------------------------- looking for messages by asking the brokers


def print_live(
    question: Question, nameserver: str, read_from: ReadFrom, *, as_json: bool, raw: bool
) -> None:
    """Print what the brokers of NAMESERVER answer to QUESTION, by READ_FROM; RAW: bodies alone.

    Raises MessageNotFound.
    """
    with Admin(nameserver) as admin:
        found = _found(admin, question, read_from)
    for at, message in enumerate(found):
        if as_json:
            print_json(message_document(message))
            continue
        if raw:
            print_bytes(_raw(message))
            continue
        if at:
            click.echo()
        print_message(message)


def _found(admin: Admin, question: Question, read_from: ReadFrom) -> list[ReceivedMessage]:
    topic, times = question.topic, question.times
    if question.message_id is not None:
        return [admin.lookup_id(question.message_id, topic, read_from=read_from)]
    assert topic is not None, "asked for before"
    if question.offset is not None:
        assert question.queue is not None, "asked for before"
        return admin.lookup_offset(
            topic, question.queue, question.offset, max_messages=question.count, read_from=read_from
        )
    if question.key is None and question.tag is None:
        end_ms = TIME_MAX_MS if question.until_ms is None else question.until_ms
        found = admin.lookup_time(
            topic, times.begin_ms, end_ms, max_messages=question.count, read_from=read_from
        )
        found = [one for one in found if question.queue in (None, one.queue)]
    else:
        found = admin.lookup(
            topic,
            question.key,
            tag=question.tag,
            begin_ms=times.begin_ms,
            end_ms=0 if question.until_ms is None else max(1, times.end_ms),
            max_messages=question.count,
            read_from=read_from,
        )
    if not found:
        raise MessageNotFound(
            f"topic {topic!r} has no message {question.words}", topic=topic, **question.details
        )
    return found
