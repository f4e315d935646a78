"""The console's API as a program asks it: one connection, JSON in and out."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode


class ApiPeer:
    """Asks the API at ADDRESS, "host:port"."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._token = ""

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Return status and document of the answer to METHOD of PATH."""
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, dict(headers or {}))
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def get(self, path: str, **query: Any) -> Any:
        """Return the document at PATH."""
        status, document = self.ask("GET", f"{path}?{urlencode(query)}" if query else path)
        assert status == 200, document
        return document

    def post(self, path: str, **body: Any) -> Any:
        """Return what the action at PATH answers."""
        if not self._token:
            self._token = self.get("/api/session")["token"]
        status, document = self.ask("POST", path, body, {"X-PocketMQ-Token": self._token})
        assert status == 200, document
        return document

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


def part(name: str) -> str:
    """Return NAME as a part of a path."""
    return quote(name, safe="")
