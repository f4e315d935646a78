"""HTTP/1.1 requests of one connection (RFC 9112). No input or output:

    reader.feed(data);  while (asked := reader.next()) is not None: …

The reader refuses chunked bodies and ambiguous requests: two lengths, a length next to a transfer coding, folded
fields, no host or two hosts. After a refusal, the connection is closed.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

from .pages import BODY_BYTES_MAX, HttpResponse, PageRequest, in_words, too_large

#: Bytes of a request's line and fields.
HEAD_BYTES_MAX: Final = 8 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_LINE: Final = re.compile(r"([A-Z]{1,16}) ([!-~]{1,4096}) HTTP/1\.([01])", re.ASCII)
#: A target that is a complete URL: servers must accept it, and use its host instead of the field's.
_ADDRESS: Final = re.compile(r"(?i:https?)://([^/?#@]+)([/?].*)?")
_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")


class HttpRefused(Exception):
    """The request is refused: answer it with STATUS and WORDS, and close the connection."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.shown = in_words(status, words)


class RequestReader:
    """Reads the requests of one connection from PEER. SECURE: it uses TLS."""

    def __init__(self, peer: str, *, secure: bool) -> None:
        self._peer, self._secure = peer, secure
        self._data = b""
        #: A request without its body, and the length of the body.
        self._incomplete: tuple[PageRequest, int] | None = None

    @property
    def is_idle(self) -> bool:
        """Is there no incomplete request?"""
        return not self._data and self._incomplete is None

    @property
    def wants_body(self) -> bool:
        """Is a body incomplete?"""
        return self._incomplete is not None

    def feed(self, data: bytes) -> None:
        """Add the received DATA."""
        self._data += data

    def next(self) -> PageRequest | None:
        """Return the next complete request, or None; raise HttpRefused."""
        if self._incomplete is None:
            head, end, rest = self._data.partition(_HEAD_END)
            if len(head) > HEAD_BYTES_MAX:
                raise HttpRefused(
                    431, f"the head of the request has more than {HEAD_BYTES_MAX} bytes"
                )
            if not end:
                return None
            self._incomplete = self._begun(head)
            self._data = rest
        asked, size = self._incomplete
        if len(self._data) < size:
            return None
        body, self._data = self._data[:size], self._data[size:]
        self._incomplete = None
        return asked._replace(body=body)

    def _begun(self, head: bytes) -> tuple[PageRequest, int]:
        first, *lines = head.decode("latin-1").split("\r\n")
        line = _LINE.fullmatch(first)
        if line is None:
            raise HttpRefused(400, "not a request line of HTTP/1.1")
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
            raise HttpRefused(400, "the request has no host")
        if address := _ADDRESS.fullmatch(target):
            headers["host"], target = address.groups("")
            target = target if target.startswith("/") else f"/{target}"
        if not target.startswith("/"):
            raise HttpRefused(400, "the target of the request does not begin with a slash")
        if "transfer-encoding" in headers:
            raise HttpRefused(501, "chunked bodies are not supported: send a Content-Length")
        keep = "close" not in headers.get("connection", "").lower() and minor == "1"
        asked = PageRequest(
            method, target, headers, peer=self._peer, secure=self._secure, keep=keep
        )
        return asked, _length(headers.get("content-length", "0"))


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HttpRefused(400, "the Content-Length of the request is not a number")
    if int(text) > BODY_BYTES_MAX:
        raise HttpRefused(413, too_large(int(text)))
    return int(text)


def head_of(shown: HttpResponse, *, keep: bool) -> bytes:
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
