"""Conversations: a stream of one's own to a server, both sides speak when they like. Over gRPC here.

Not thread-safe: the client's event loop owns it.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import Message

from ..proto.errors import Disconnected, PocketMQError
from ..proto.errors_wire import from_rpc_error
from ..proto.rpc.channels import EOF, CallFailed, StreamCall

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
RequestIn = TypeVar("RequestIn", bound=Message, contravariant=True)
ReplyOut = TypeVar("ReplyOut", bound=Message, covariant=True)


class Conversation(Protocol[RequestIn, ReplyOut]):
    """A stream in both directions."""

    async def send(self, request: RequestIn) -> None:
        """Say REQUEST; raise Disconnected if the stream has ended, whose reason `receive` tells."""
        ...

    async def receive(self) -> ReplyOut | None:
        """Return what the server says next; None: the stream was ended. Raises what the server ended it with."""
        ...

    def close(self) -> None:
        """End it. Nothing more comes."""
        ...


class GrpcConversation(Generic[Request, Reply]):
    """A conversation over CALL with the server at ADDRESS."""

    def __init__(self, address: str, call: StreamCall) -> None:
        self._address = address
        self._call = call
        self._is_closed = False
        #: One task at a time writes to a stream.
        self._writing = asyncio.Lock()

    async def send(self, request: Request) -> None:
        try:
            async with self._writing:
                await self._call.write(request)
        except (CallFailed, asyncio.InvalidStateError):
            raise self._ended() from None

    async def receive(self) -> Reply | None:
        try:
            reply = await self._call.read()
            return None if reply is EOF else reply
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                return None  # It was the call that was cancelled, not its reader.
            raise
        except asyncio.InvalidStateError:
            raise self._ended() from None
        except CallFailed as failure:
            error = from_rpc_error(failure)
            if isinstance(error, Disconnected) and "address" not in error.details:
                error = Disconnected(f"{self._address}: {error.message}", address=self._address)
            raise error from None

    def close(self) -> None:
        self._is_closed = True
        self._call.cancel()

    def _ended(self) -> PocketMQError:
        return Disconnected(f"{self._address} ended the stream", address=self._address)
