"""HTTP/1.1 requests of one connection (RFC 9112). It does no I/O:

    reader.feed(data);  while (asked := reader.next()) is not None: …

The reader refuses chunked bodies and everything ambiguous: two lengths, a length next to a transfer coding, folded
fields, no host or two hosts. After a refusal the connection is closed.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from .pages import BODY_BYTES_MAX, PageRequest, Shown, in_words, too_large

#: Bytes of a request's line and fields.
HEAD_BYTES_MAX: Final = 8 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_LINE: Final = re.compile(r"([A-Z]{1,16}) ([!-~]{1,4096}) HTTP/1\.([01])", re.ASCII)
#: A target that is a whole address: servers have to take it, and its host instead of the field's.
_ADDRESS: Final = re.compile(r"(?i:https?)://([^/?#@]+)([/?].*)?")
_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")


class HttpRefused(Exception):
    """What came is no request that is answered: STATUS and WORDS say so, and the connection ends."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.shown = in_words(status, words)


class RequestReader:
    """Reads the requests of one connection, whose other end is PEER. SECURE: it has TLS."""

    def __init__(self, peer: str, *, secure: bool) -> None:
        self._peer, self._secure = peer, secure
        self._data = b""
        #: A request without its body, and how long that is to be.
        self._half: tuple[PageRequest, int] | None = None

    @property
    def is_idle(self) -> bool:
        """Has nothing come of a further request?"""
        return not self._data and self._half is None

    @property
    def wants_body(self) -> bool:
        """Is a body under way?"""
        return self._half is not None

    def feed(self, data: bytes) -> None:
        """Take DATA, which came."""
        self._data += data

    def next(self) -> PageRequest | None:
        """Return the next request that is whole, or None; raise HttpRefused."""
        if self._half is None:
            head, end, rest = self._data.partition(_HEAD_END)
            if len(head) > HEAD_BYTES_MAX:
                raise HttpRefused(
                    431, f"the head of the request has more than {HEAD_BYTES_MAX} bytes"
                )
            if not end:
                return None
            self._half = self._begun(head)
            self._data = rest
        asked, size = self._half
        if len(self._data) < size:
            return None
        body, self._data = self._data[:size], self._data[size:]
        self._half = None
        return asked._replace(body=body)

    def _begun(self, head: bytes) -> tuple[PageRequest, int]:
        first, *lines = head.decode("latin-1").split("\r\n")
        line = _LINE.fullmatch(first)
        if line is None:
            raise HttpRefused(400, "this is no request line of HTTP/1.1")
        method, target, minor = line.groups()
        headers: dict[str, str] = {}
        for text in lines:
            name, colon, value = text.partition(":")
            name, value = name.lower(), value.strip(" \t")
            if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
                raise HttpRefused(400, "a field of the request is malformed")
            if name in ("host", "content-length", "transfer-encoding") and name in headers:
                raise HttpRefused(400, f"the request has {name} twice")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        if minor == "1" and not headers.get("host"):
            raise HttpRefused(400, "the request names no host")
        if address := _ADDRESS.fullmatch(target):
            headers["host"], target = address.groups("")
            target = target if target.startswith("/") else f"/{target}"
        if not target.startswith("/"):
            raise HttpRefused(400, "the target of the request does not begin with a slash")
        if "transfer-encoding" in headers:
            raise HttpRefused(501, "bodies in chunks are not taken: send a Content-Length")
        keep = "close" not in headers.get("connection", "").lower() and minor == "1"
        asked = PageRequest(
            method, target, headers, peer=self._peer, secure=self._secure, keep=keep
        )
        return asked, _length(headers.get("content-length", "0"))


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HttpRefused(400, "the Content-Length of the request is no number")
    if int(text) > BODY_BYTES_MAX:
        raise HttpRefused(413, too_large(int(text)))
    return int(text)


def head_of(shown: Shown, *, keep: bool) -> bytes:
    """Return the status line and headers of SHOWN. KEEP: another request may follow on the connection."""
    lines = [
        f"HTTP/1.1 {shown.status} {HTTPStatus(shown.status).phrase}",
        f"Content-Type: {shown.content_type}",
        *(f"{name.title()}: {value}" for name, value in shown.headers),
    ]
    if shown.events is None:
        lines.append(f"Content-Length: {len(shown.body)}")
    lines.append(f"Connection: {'keep-alive' if keep and shown.events is None else 'close'}")
    return "\r\n".join((*lines, "", "")).encode("latin-1")
