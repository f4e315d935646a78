"""Served methods: the methods, limits, quota and deadlines that all connections of a server share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from google.protobuf.message import Message

from .deadlines import Deadlines
from .errors import Describe, RpcError, described
from .heads import failed
from .limits import Limits
from .memory_quota import MemoryQuota, ignore
from .messages import Inflater
from .methods import Method, MethodKind, MethodTable
from .pages import Page, PageCalls


class ServedMethod:
    """A method with everything that calls need, looked up only once."""

    __slots__ = ("decode", "handler", "is_coroutine", "kind", "path")

    def __init__(self, method: Method) -> None:
        self.path = method.path
        self.kind: MethodKind = method.kind
        self.decode: Callable[[bytes], Message] = method.decode
        self.handler: Callable[..., Any] = method.handler
        self.is_coroutine = inspect.iscoroutinefunction(method.handler)


class Served:
    """The methods of TABLES within LIMITS, and PAGE if there is one. DESCRIBE returns the sent form of errors.

    NOW_MS and SPAWN (which runs a coroutine as a task) belong to the owner. RELEASED is called when memory usage has
    fallen far below a high peak.
    """

    def __init__(  # noqa: PLR0913  (all that connections share)
        self,
        tables: Iterable[MethodTable],
        limits: Limits,
        deadlines: Deadlines,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], Any],
        page: Page | None = None,
        describe: Describe = described,
        released: Callable[[], None] = ignore,
    ) -> None:
        self._describe = describe
        self.serve(tables, page)
        self.limits = limits
        self.deadlines = deadlines
        self.now_ms = now_ms
        self.spawn = spawn
        #: Bytes of requests that are incomplete, or wait for their reader, on all connections, …
        self.requests: MemoryQuota[Any] = MemoryQuota(
            "requests", limits.half_sent_bytes_server, released
        )
        #: … and of answers that wait for their peers.
        self.answers: MemoryQuota[Any] = MemoryQuota("answers", limits.queue_bytes_server, released)
        self.inflater = Inflater()
        #: Is the server stopping? Then streams must end.
        self.stopping = False

    def serve(self, tables: Iterable[MethodTable], page: Page | None) -> None:
        """Serve the methods of TABLES, and PAGE, from now on."""
        self.methods: dict[str, ServedMethod] = {}
        for table in tables:
            for method in table:
                assert method.path not in self.methods, f"two tables serve {method.path}"
                self.methods[method.path] = ServedMethod(method)
        self.pages = None if page is None else PageCalls(page)

    def begin(self) -> None:
        """Let streams continue until their callers or handlers end them."""
        self.stopping = False

    def begin_to_stop(self) -> None:
        """Make streams end."""
        self.stopping = True

    def failed(self, error: RpcError) -> bytes:
        """Return the trailers of an answer that fails with ERROR."""
        return failed(error, self._describe)

    @property
    def half_sent(self) -> int:
        """Bytes of incomplete and unread requests."""
        return self.requests.held
