"""Look-ups in the files of stores, and their results as text and JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ...client import ReceivedMessage
from ...proto.errors import MessageNotFound, PocketMQError
from ...proto.properties import (
    KEY_SEPARATOR,
    KEYS,
    PRIORITY,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    whole_number,
)
from ...proto.record import Record, decompress_body
from ...store.os_disk import OsDisk
from ..output import body_fields, instant, print_bytes, print_json, print_pairs
from ..stores.locations import StoreLocation, locate
from .files import StoredRecord
from .question import Question
from .search import LookupAnswer, StoreSearch


def message_row(stored: StoredRecord, broker: str) -> dict[str, Any]:
    """Return STORED as JSON shows it; what a message does not have is null.

    `body` is text, or null with `body_base64`, and `body_fault` for one that cannot be decoded: then
    these are the stored bytes.
    """
    record = stored.record
    return {
        "broker": broker,
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "log_offset": stored.log_offset,
        "store_size": len(stored.data),
        "stored_ms": record.store_timestamp_ms,
        "born_ms": record.born_timestamp_ms,
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "body_crc": record.body_crc,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "message_id": record.properties.get(UNIQ_KEY),
        "offset_message_id": record.message_id,
        "keys": [word for word in record.properties.get(KEYS, "").split(KEY_SEPARATOR) if word],
        "tag": record.properties.get(TAGS),
        "sharding_key": record.properties.get(SHARDING_KEY),
        "priority": whole_number(record.properties.get(PRIORITY, "")),
        "properties": dict(record.properties),
        **_body(record),
        "file": stored.path,
        "faults": list(stored.faults),
    }


def _body(record: Record) -> dict[str, str | None]:
    try:
        return body_fields(decompress_body(record.body, record.sys_flag))
    except PocketMQError as error:
        stored = base64.b64encode(record.body).decode()
        return {"body": None, "body_base64": stored, "body_fault": error.message}


def raw_body(message: ReceivedMessage) -> bytes:
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
        body = fields.get("body_fault") or f"{len(record.body):,} bytes, no text"
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
            document = {"broker": place.broker_name, **found.summary()}
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
