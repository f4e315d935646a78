"""The histories of messages, from the files of one store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...proto.errors import InvalidArgument
from ...proto.message_id import decode_offset_message_id
from ...proto.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY
from ...store.damage import SetAside, set_aside
from ...store.disk import Disk
from ...store.os_disk import OsDisk
from ..counted import counted
from ..find.files import Absence
from ..find.search import LookupAnswer, StoreSearch
from ..stores.locations import StoreLocation
from .copies import messages_of, real_topic
from .history import history_of, history_of_gone
from .sources import COPIES_MAX, Witnesses
from .timeline import Story

_PLACE = re.compile(r"(?P<topic>.+)/(?P<queue>\d{1,9})/(?P<offset>\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class WhyAsked:
    """Which messages: MESSAGE is an id, TOPIC/QUEUE/OFFSET, or with a TOPIC a key."""

    message: str
    topic: str | None = None
    count: int = 4
    scan: bool = False


def histories_in(
    place: StoreLocation, settings: Mapping[str, str], asked: WhyAsked
) -> tuple[LookupAnswer, list[Story]]:
    """Search one store for messages; return the answer, and their histories."""
    disk = place.open_disk()
    mapped = isinstance(disk, OsDisk)
    search = StoreSearch(disk, place.root, settings, mapped=mapped)
    found = _found(search, asked)
    witnesses = Witnesses(disk, search, mapped=mapped)
    return found, list(_stories(search, disk, witnesses, found, asked))


def _found(search: StoreSearch, asked: WhyAsked) -> LookupAnswer:
    place = _PLACE.fullmatch(asked.message)
    if asked.topic is not None:
        # In all topics: a waiting message is in a system topic.
        found = search.by_key(None, asked.message, count=COPIES_MAX, scan=asked.scan)
        found.hits = [one for one in found.hits if real_topic(one.record) == asked.topic]
        return found
    if place is not None:
        return search.by_queue_offset(place["topic"], int(place["queue"]), int(place["offset"]))
    return search.by_id(asked.message, count=asked.count, scan=asked.scan)


def _stories(
    search: StoreSearch, disk: Disk, witnesses: Witnesses, found: LookupAnswer, asked: WhyAsked
) -> Iterator[Story]:
    for known in messages_of(found.hits)[-asked.count :]:
        copies = witnesses.copies_of(known, scan=asked.scan)
        if copies:
            yield history_of(copies, witnesses.evidence(copies))
    if not found.hits:
        aside = [one for one in set_aside(disk, search.root) if _is_asked_for(one, asked)]
        for one in aside[-asked.count :]:
            stored_ms = None if one.record is None else one.record.store_timestamp_ms
            what = f"its record at log offset {one.log_offset:,} was damaged"
            why = f"consumers skip it, and its bytes are in {one.path}"
            yield history_of_gone(what, stored_ms, witnesses.evidence(()), why=why)
        gone = None if aside else _gone(search, found, asked)
        if gone is not None:
            yield history_of_gone(*gone, witnesses.evidence(()))


def _is_asked_for(one: SetAside, asked: WhyAsked) -> bool:
    record = one.record
    if record is None:
        return False
    if asked.topic is not None:
        keys = record.properties.get(KEYS, "").split(KEY_SEPARATOR)
        return real_topic(record) == asked.topic and asked.message in keys
    place = f"{record.topic}/{record.queue_id}/{record.queue_offset}"
    ids = record.properties.get(UNIQ_KEY), record.message_id
    return asked.message == place or asked.message.upper() in ids


def _gone(
    search: StoreSearch, found: LookupAnswer, asked: WhyAsked
) -> tuple[str, int | None] | None:
    """Return which message is gone, and about when it was stored; None if nothing shows that it existed."""
    if found.expired:
        newest = found.expired[0]
        what = (
            f"{counted(len(found.expired), 'index entry')} with its hash before the log's beginning"
        )
        return f"{what}, the newest for {newest.log_offset:,}", newest.time_ms
    place = _PLACE.fullmatch(asked.message)
    if place is not None and asked.topic is None:
        queue = search.queues.get(place["topic"], int(place["queue"]))
        offset = int(place["offset"])
        if queue is not None and offset < queue.min_offset(search.log):
            return f"its queue begins at offset {queue.min_offset(search.log):,} now", None
        return None
    try:
        log_offset = decode_offset_message_id(asked.message)[2]
    except InvalidArgument:
        return None
    at_place = search.log.at(log_offset)
    if isinstance(at_place, Absence) and at_place.kind == "expired":
        return f"its id names log offset {log_offset:,}", None
    return None
