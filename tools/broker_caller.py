"""Finds brokers through the name servers, and asks them over HTTP, as a user and over TLS if so configured."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from ..client.administration.brokers import AsyncAsker
from ..proto.access.policies import is_loopback
from ..proto.errors import (
    ConnectionLost,
    MessageTooLarge,
    NotAuthenticated,
    NotAuthorized,
    PocketMQError,
    RequestTimeout,
)
from ..proto.rpc.pages import READING
from ..proto.tls import Trust
from .console.api import Document

_TIMEOUT_S: Final = 15.0
_HEAD_BYTES_MAX: Final = 64 * 1024
#: Bytes of a broker's answer.
_BODY_BYTES_MAX: Final = 16 * 1024 * 1024
_STATUS_LINE: Final = re.compile(r"HTTP/1\.[01] ([1-5]\d\d)(?: |$)")


class BrokerList(AsyncAsker):
    """Asks name servers which brokers there are."""

    async def addresses(self) -> dict[str, str]:
        """Return where each is asked, by name, sorted. Raises ConnectionLost."""
        return dict(sorted((await self._session.routes.brokers()).items()))


class BrokerAnswer(NamedTuple):
    """The answer of the broker at ADDRESS, whose body, of SIZE bytes, READER still has; None: until it hangs up."""

    address: str
    status: int
    headers: Mapping[str, str]
    size: int | None
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def body(self) -> bytes:
        """Return the whole body. Raises ConnectionLost, MessageTooLarge."""
        try:
            if self.size is None:
                raise ConnectionLost(f"{self.address} sent an answer without a length")
            if self.size > _BODY_BYTES_MAX:
                raise MessageTooLarge(
                    f"{self.address} answers {self.size} bytes, the limit is {_BODY_BYTES_MAX}: ask for less",
                    field="answer",
                    limit=_BODY_BYTES_MAX,
                    value=self.size,
                )
            async with asyncio.timeout(_TIMEOUT_S):
                return await self.reader.readexactly(self.size)
        except (OSError, EOFError, TimeoutError) as error:
            raise ConnectionLost(f"{self.address} broke its answer off: {error}") from error
        finally:
            self.writer.close()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield events for as long as the caller reads them."""
        try:
            while data := await self.reader.read(_HEAD_BYTES_MAX):
                yield data
        except OSError:
            return  # The page asks again.
        finally:
            self.writer.close()


class BrokerCaller:
    """Asks brokers over HTTP as TRUST says: as its user, over TLS if it wants that."""

    def __init__(self, trust: Trust) -> None:
        self._context = trust.context()
        if self._context is not None:
            self._context.set_alpn_protocols(["http/1.1"])
        self._authorization = ""
        if trust.user:
            pair = base64.b64encode(f"{trust.user}:{trust.secret}".encode()).decode()
            self._authorization = f"Basic {pair}"

    async def ask(
        self,
        address: str,
        method: str,
        target: str,
        headers: Mapping[str, str] = {},
        body: bytes = b"",
    ) -> BrokerAnswer:
        """Return what the broker at ADDRESS answers, once its head is there.

        Raises ConnectionLost, RequestTimeout, and NotAuthenticated where a secret would have to go in plaintext, or
        where one is wanted and there is none.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        lines = [f"{method} {target} HTTP/1.1", f"host: {address}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if self._authorization:
            # HTTP Basic is the secret itself, and a name server can give any address.
            if self._context is None and not is_loopback(host):
                raise NotAuthenticated(
                    f"the secret would go to {address} in plaintext: use --tls or --tls-ca"
                )
            lines.append(f"authorization: {self._authorization}")
        if body or method not in READING:
            lines.append(f"content-length: {len(body)}")
        asked = "\r\n".join((*lines, "", "")).encode("latin-1") + body
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._answer(address, host, int(port), asked)
        except TimeoutError:
            raise RequestTimeout(
                f"{address} has not answered within {_TIMEOUT_S:g} s: ask again"
            ) from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ConnectionLost(f"no console answers at {address}: {reason}") from error
        is_asked_who = answer.headers.get("location", "").startswith("/sign-in")
        if is_asked_who or (answer.status == HTTPStatus.UNAUTHORIZED and not self._authorization):
            answer.writer.close()
            raise NotAuthenticated(
                f"{address} has users: set POCKETMQ_USER, and POCKETMQ_SECRET or"
                " POCKETMQ_SECRET_FILE"
            )
        return answer

    async def _answer(self, address: str, host: str, port: int, asked: bytes) -> BrokerAnswer:
        reader, writer = await asyncio.open_connection(
            host, port, ssl=self._context, limit=_HEAD_BYTES_MAX
        )
        try:
            writer.write(asked)
            status, headers = _head_of(await reader.readuntil(b"\r\n\r\n"))
            size = int(headers["content-length"]) if "content-length" in headers else None
        except BaseException:
            writer.close()
            raise
        return BrokerAnswer(address, status, headers, size, reader, writer)

    async def document(
        self,
        address: str,
        method: str,
        target: str,
        headers: Mapping[str, str] = {},
        body: bytes = b"",
    ) -> Document:
        """Return the object that the broker at ADDRESS answers with; raise what it refused it with."""
        answer = await self.ask(address, method, target, headers, body)
        try:
            found = json.loads(await answer.body())
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ConnectionLost(f"{address} answers no JSON object to {target}: is it a broker?")
        if answer.status != HTTPStatus.OK:
            raise refusal_of(answer, found)
        return found


def refusal_of(answer: BrokerAnswer, found: Document) -> PocketMQError:
    """Return the error in ANSWER, the document FOUND."""
    text = f"{answer.address}: {found.get('message', answer.status)}"
    if answer.status == HTTPStatus.FORBIDDEN:
        return NotAuthorized(text)
    if answer.status == HTTPStatus.UNAUTHORIZED:
        return NotAuthenticated(text)
    return ConnectionLost(text)


def _head_of(head: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the fields of an answer's HEAD; raise ValueError if it is none of HTTP/1.1."""
    first, *lines = head.decode("latin-1").split("\r\n")
    found = _STATUS_LINE.match(first)
    if found is None:
        raise ValueError(f"it begins with {first[:40]!r}, which is not HTTP/1.1")
    fields = (line.partition(":") for line in lines)
    return int(found[1]), {name.lower(): value.strip() for name, _, value in fields}
