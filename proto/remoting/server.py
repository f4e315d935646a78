"""The remoting protocol on a server's port: it decodes requests, calls the handler of their code, and sends answers.

    carrier.speak(RemotingProtocol({RequestCode.GET_ROUTEINFO_BY_TOPIC: routes}, bytes_max=…, now_ms=…))

A handler takes a `RemotingRequest` and answers it, now or later; it may raise PocketMQError. A code without a handler
is answered with code 3, as in Apache RocketMQ. Answers of peers to this side's requests go to `on_answer`, if there is
one; they are ignored otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from ..errors import PocketMQError
from ..rpc.memory_quota import MemoryQuota
from ..rpc.other_protocol import OtherLink
from .codes import ResponseCode
from .command import RemotingCommand
from .connection import OPEN_REQUESTS_MAX, RemotingConnection
from .requests import RemotingRequest

logger = logging.getLogger(__name__)

Handler = Callable[[RemotingRequest], None]
#: Raises the error with which a request is refused.
Check = Callable[[RemotingRequest], None]

#: A peer with so many unread bytes gets no requests from this side.
_UNREAD_MAX: Final = 4 << 20


class RemotingProtocol:
    """Serves HANDLERS by request code. Implements `OtherProtocol`.

    CHECK runs before each handler. BYTES_MAX limits incomplete requests, and answers that wait, of all connections.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        bytes_max: int,
        now_ms: Callable[[], int],
        check: Check | None = None,
    ) -> None:
        self._handlers = dict(handlers)
        self._check = check
        self.now_ms = now_ms
        self.unread_max = _UNREAD_MAX
        self.requests: MemoryQuota[RemotingConnection] = MemoryQuota("remoting requests", bytes_max)
        self.answers: MemoryQuota[RemotingConnection] = MemoryQuota("remoting answers", bytes_max)

    @property
    def first_byte(self) -> int:
        """The first byte of a frame's length, which is less than 16 MiB."""
        return 0

    def open(self, link: OtherLink) -> RemotingConnection:
        """Begin the conversation on LINK."""
        return RemotingConnection(link, self)

    def take(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        """Process COMMAND of CONNECTION."""
        if command.is_answer:
            return
        request = RemotingRequest(connection, command, connection.answered)
        connection.open_requests += 1
        if connection.open_requests > OPEN_REQUESTS_MAX:
            request.answer(
                code=ResponseCode.SYSTEM_BUSY,
                remark=f"{OPEN_REQUESTS_MAX} requests of this connection are not answered yet: send fewer at a time",
            )
            return
        handler = self._handlers.get(command.code)
        try:
            if self._check is not None:
                self._check(request)
            if handler is None:
                request.answer(
                    code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f" request type {command.code} not supported",
                )
                return
            handler(request)
        except PocketMQError as error:
            request.fail(error)
        except Exception:  # A bug fails only this request, not the connection or the process.
            logger.exception("remoting request failed code=%d", command.code)
            request.answer(code=ResponseCode.SYSTEM_ERROR, remark="internal error")
            return
        if not command.wants_answer and not request.is_answered:
            # No client waits for it: such waits would have no limit, and no end with their connection.
            request.cancel()
            request.answer()
