"""Finding single messages: by key, unique id, tags, or offset message id.

The index knows hashes only, so every candidate is compared with what was asked for. An id of 32 or 56 digits may be an
offset id or a Java client's unique id: the first is tried first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, Literal

from ..proto.errors import InvalidArgument, InvalidRecord
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY
from ..proto.record import Record, decode_record
from ..store.message_store import MessageStore
from .topics import Topics

_LIMIT: Final = 64
_END_OF_TIME: Final = (1 << 63) - 1


class Lookups:
    """Answers look-ups from STORE."""

    def __init__(self, topics: Topics, store: MessageStore) -> None:
        self._topics = topics
        self._store = store

    def lookup(self, request: pb.LookupRequest) -> pb.LookupReply:
        """Return the records asked for, oldest first; `more` tells that there may be others.

        Raises InvalidArgument or TopicNotFound; nothing found is an empty answer.
        """
        which = request.WhichOneof("by")
        if which is None or not getattr(request, which):
            raise InvalidArgument("by: give a key, a message id or a tag to look for", field="by")
        if which == "message_id":
            return self._by_id(request)
        self._topics.get(request.topic)
        if which == "tag":
            return self._by_text(request, request.tag, "T")
        return self._by_text(request, request.key, "K")

    def _by_id(self, request: pb.LookupRequest) -> pb.LookupReply:
        found = None
        with contextlib.suppress(InvalidArgument):  # Not an offset id: perhaps a unique one.
            found = self._store.by_message_id(request.message_id)
        if found is not None and self._is(found, request):
            return pb.LookupReply(records=found)
        if request.topic:
            self._topics.get(request.topic)
            return self._by_text(request, request.message_id, "K")
        return pb.LookupReply()

    def _is(self, data: bytes, request: pb.LookupRequest) -> bool:
        """Does the record in DATA bear the id asked for? Its place may have been taken over by another."""
        record = _decoded(data)
        same_topic = record is not None and request.topic in ("", record.topic)
        return record is not None and same_topic and record.message_id == request.message_id.upper()

    def _by_text(
        self, request: pb.LookupRequest, text: str, kind: Literal["K", "T"]
    ) -> pb.LookupReply:
        limit = min(request.max_messages or _LIMIT, _LIMIT)
        if limit < 0:
            raise InvalidArgument(
                f"max_messages is {request.max_messages}: must not be negative",
                field="max_messages",
                value=request.max_messages,
            )
        offsets = self._store.lookup(
            request.topic,
            text,
            max_results=_LIMIT,
            begin_ms=request.begin_ms,
            end_ms=request.end_ms or _END_OF_TIME,
            kind=kind,
        )
        matching = list(self._matching(dict.fromkeys(offsets), request.topic, text, kind))
        more = len(matching) > limit or len(offsets) >= _LIMIT
        return pb.LookupReply(records=b"".join(matching[-limit:]), more=more)

    def _matching(
        self, offsets: dict[int, None], topic: str, text: str, kind: Literal["K", "T"]
    ) -> Iterator[bytes]:
        for offset in offsets:
            data = self._store.read_at(offset)
            record = None if data is None else _decoded(data)
            if data is None or record is None or record.topic != topic:
                continue
            if text in (_keys(record) if kind == "K" else [record.properties.get(TAGS)]):
                yield data


def _decoded(data: bytes) -> Record | None:
    try:
        return decode_record(data)
    except InvalidRecord:
        return None


def _keys(record: Record) -> list[str]:
    keys = record.properties.get(KEYS, "").split(KEY_SEPARATOR)
    return [*keys, record.properties.get(UNIQ_KEY, "")]
