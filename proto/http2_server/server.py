"""What a connection asks of the server that it belongs to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any, Protocol

from ..deadlines import Deadlines
from ..grpc_calls.served import Served
from ..http2.limits import ConnectionLimits
from ..pages import Page
from ..rpc import Limits


class Server(Protocol):
    """What all connections share. Its event loop, LOOP, owns it and them."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    connection_limits: ConnectionLimits
    served: Served
    deadlines: Deadlines
    page: Page | None
    #: Is there a certificate to show?
    is_secure: bool
    #: What any connection reads goes here and is taken out at once; VIEW is the beginning of LARGE_VIEW.
    view: memoryview
    large_view: memoryview

    def now_ms(self) -> int:
        """Return the loop's time."""
        ...

    def age_ms(self) -> int:
        """Return how old a connection that begins now may become; 0: as old as it wants."""
        ...

    async def tls_context(self) -> ssl.SSLContext | None:
        """Return what a handshake that begins now shows; None if there is nothing."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> Any:
        """Run WORK as a task, which a stop cancels."""
        ...

    def closed(self, number: int, reason: str) -> None:
        """Forget connection NUMBER, which is over for REASON."""
        ...
