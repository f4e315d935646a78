"""TCP connections that carry remoting commands, for either end.

    async with await RemotingClient.connect("127.0.0.1:10911") as master:
        answer = await master.call(RequestCode.GET_ALL_TOPIC_CONFIG)

A client has one open request at a time. It uses plaintext and no account: brokers that require either refuse it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Final, Self

from ..errors import ConnectFailed, ConnectionLost, RequestTimeout, Unsupported
from .codes import SUCCESS, RequestCode
from .command import RemotingCommand, decode, encode

#: 100,000 topics take about 20 MB.
ANSWER_MAX: Final = 256 << 20
TIMEOUT_S: Final = 10.0


async def read_command(reader: asyncio.StreamReader, size_max: int) -> RemotingCommand | None:
    """Return the next command; None: the peer has closed. Raises ValueError for an invalid one, and OSError."""
    try:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        if not 4 <= size <= size_max:
            raise ValueError(f"a frame of {size:,} bytes, must have 4 to {size_max:,}")
        return decode(await reader.readexactly(size))
    except asyncio.IncompleteReadError:
        return None


class RemotingClient:
    """The client end of a connection to ADDRESS."""

    def __init__(
        self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._opaque = 0
        self._turn = asyncio.Lock()

    @classmethod
    async def connect(cls, address: str, timeout_s: float = TIMEOUT_S) -> Self:
        """Return a connection to ADDRESS, host:port. Raises ConnectFailed."""
        reader, writer = await open_tcp(address, timeout_s)
        return cls(address, reader, writer)

    async def call(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float = TIMEOUT_S,
    ) -> RemotingCommand:
        """Return the successful answer to the request CODE.

        Raises Unsupported for any other answer, ConnectionLost, RequestTimeout. After these two the connection cannot
        be used any more.
        """
        self._opaque += 1
        name = RequestCode(code).name if code in set(RequestCode) else f"request {code}"
        request = RemotingCommand(code=code, opaque=self._opaque, fields=fields or {}, body=body)
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                self._writer.write(encode(request))
                await self._writer.drain()
                answer = await self._answer(request)
        except TimeoutError:
            raise RequestTimeout(
                f"{self.address} did not answer {name} within {timeout_s:.0f} s",
                address=self.address,
            ) from None
        except (OSError, ValueError) as error:
            raise ConnectionLost(
                f"the connection to {self.address} failed during {name}: {error}",
                address=self.address,
            ) from None
        if answer.code != SUCCESS:
            raise Unsupported(
                f"{self.address} answered {name} with code {answer.code}: {answer.remark[:200] or 'no reason given'}",
                address=self.address,
                code=answer.code,
            )
        return answer

    async def _answer(self, request: RemotingCommand) -> RemotingCommand:
        while True:
            command = await read_command(self._reader, ANSWER_MAX)
            if command is None:
                raise ConnectionResetError("the peer closed the connection")
            if command.is_answer and command.opaque == request.opaque:
                return command  # Others are late answers, or requests of the peer to its clients.

    @property
    def is_closed(self) -> bool:
        """Has the peer closed?"""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        """Close the connection at once. Idempotent."""
        self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def open_tcp(
    address: str, timeout_s: float, limit: int = 1 << 20
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection to ADDRESS, host:port. Raises ConnectFailed."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.open_connection(host.strip("[]"), int(port), limit=limit)
    except TimeoutError:
        raise ConnectFailed(
            f"{address} did not answer within {timeout_s:.0f} s", address=address
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConnectFailed(f"{address} cannot be reached: {reason}", address=address) from error
