"""What all connections of a server share: its methods, its bounds, its deadlines, and how much of them is in use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from google.protobuf.message import Message

from ..deadlines import Deadlines
from ..pages import Page
from ..rpc import Kind, Limits, Method, MethodTable
from .inflation import Inflater
from .page_calls import PageCalls
from .shares import Shares


class ServedMethod:
    """A method as calls need it: what is asked of it a thousand times a second is looked up once."""

    __slots__ = ("decode", "handler", "is_coroutine", "kind", "path")

    def __init__(self, method: Method) -> None:
        self.path = method.path
        self.kind: Kind = method.kind
        self.decode: Callable[[bytes], Message] = method.decode
        self.handler: Callable[..., Any] = method.handler
        self.is_coroutine = inspect.iscoroutinefunction(method.handler)


class Served:
    """The methods of TABLES within LIMITS, and PAGE if there is one.

    NOW_MS and SPAWN (which runs a coroutine as a task) are the owner's.
    """

    def __init__(
        self,
        tables: Iterable[MethodTable],
        limits: Limits,
        deadlines: Deadlines,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], Any],
        page: Page | None = None,
    ) -> None:
        self.methods: dict[str, ServedMethod] = {}
        for table in tables:
            for method in table:
                assert method.path not in self.methods, f"two tables serve {method.path}"
                self.methods[method.path] = ServedMethod(method)
        self.pages = None if page is None else PageCalls(page)
        self.limits = limits
        self.deadlines = deadlines
        self.now_ms = now_ms
        self.spawn = spawn
        #: Bytes of requests that have begun and are not whole, or wait for their reader, on all connections, …
        self.requests: Shares[Any] = Shares("requests", limits.half_sent_bytes_server)
        #: … and of answers that wait for their peers.
        self.answers: Shares[Any] = Shares("answers", limits.queue_bytes_server)
        self.inflater = Inflater()
        #: A stop has begun: streams are to end.
        self.stopping = False

    @property
    def half_sent(self) -> int:
        """Bytes of requests that are held."""
        return self.requests.held
