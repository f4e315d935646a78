"""Single messages: QUERY_MESSAGE by key or unique id, and VIEW_MESSAGE_BY_ID by log offset."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.remoting.codes import RequestCode, ResponseCode
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from ...store.message_store import MessageStore
from ..messages.lookup import Lookups

logger = logging.getLogger(__name__)

_MESSAGES_MAX: Final = 64
_END_OF_TIME: Final = (1 << 63) - 1


class RemotingLookups:
    """Answers from LOOKUPS and STORE."""

    def __init__(self, store: MessageStore, lookups: Lookups) -> None:
        self._store = store
        self._lookups = lookups
        self._tasks: set[asyncio.Task[None]] = set()

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
        }

    def view(self, request: RemotingRequest) -> None:
        """Answer the message at a log offset."""
        at = request.long("offset")
        data = self._store.read_at(at)
        if data is None:
            request.answer(
                code=ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {at}"
            )
            return
        request.answer(data)

    def query(self, request: RemotingRequest) -> None:
        """Answer the messages of a topic with a key."""
        end_ms = request.long("endTimestamp", _END_OF_TIME)
        wanted = pb.LookupRequest(
            topic=request.text("topic"),
            key=request.text("key"),
            max_messages=min(request.number("maxNum", _MESSAGES_MAX), _MESSAGES_MAX),
            begin_ms=request.long("beginTimestamp", 0),
            end_ms=min(end_ms, _END_OF_TIME - 1),
        )
        task = asyncio.get_running_loop().create_task(self._query(request, wanted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _query(self, request: RemotingRequest, wanted: pb.LookupRequest) -> None:
        try:
            reply = await self._lookups.lookup(wanted)
        except PocketMQError as error:
            request.fail(error)
            return
        except Exception:  # A bug fails only this request.
            logger.exception("lookup failed topic=%s", wanted.topic)
            request.answer(code=ResponseCode.SYSTEM_ERROR, remark="internal error")
            return
        if not reply.records:
            request.answer(
                code=ResponseCode.QUERY_NOT_FOUND,
                remark="can not find message, maybe time range not correct",
            )
            return
        fields = {
            "indexLastUpdatePhyoffset": str(self._store.dispatched_offset),
            "indexLastUpdateTimestamp": "0",
        }
        request.answer(reply.records, fields=fields)
