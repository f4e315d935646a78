"""Where values wait for the route of their topic before they are serialized.

Those who wait for one topic pass in the order in which they came, and who comes later does not overtake them. Once a
route was found the gate stands open: that it is lost later is the sender's affair.

Any thread may ask `is_open`; waiting is for the client's event loop. Bounds: a name for each topic ever written.
"""

from __future__ import annotations

import asyncio

from ...proto.errors import ClientClosed, PocketMQError
from ..session import Session


class RouteGate:
    """The gate of one producer; it waits for a route up to TIMEOUT_MS."""

    def __init__(self, session: Session, timeout_ms: int) -> None:
        self._session = session
        self._timeout_ms = timeout_ms
        self._found: set[str] = set()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def is_open(self, topic: str) -> bool:
        """Was a route to TOPIC found, and nobody waits for it any more?"""
        return topic in self._found

    async def wait(self, topic: str) -> None:
        """Return once there is a route to TOPIC. Raises RouteNotFound."""
        if topic in self._found:
            return
        passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(topic)
        if waiting is None:
            self._waiting[topic] = [passed]
            self._session.tasks.spawn(self._find(topic))
        else:
            waiting.append(passed)
        await passed

    async def _find(self, topic: str) -> None:
        try:
            await self._session.find_route(topic, self._timeout_ms)
        except BaseException as error:  # Also a cancellation: the producer is closed.
            closed = ClientClosed("the producer was closed before it could take the message")
            for passed in self._waiting.pop(topic):
                if not passed.done():
                    passed.set_exception(error if isinstance(error, PocketMQError) else closed)
            if not isinstance(error, PocketMQError):
                raise
        else:
            self._let_pass(topic)

    def _let_pass(self, topic: str) -> None:
        """Let those pass who wait, and open the gate when nobody does: they run before what is called next."""
        waiting = self._waiting[topic]
        if not waiting:
            del self._waiting[topic]
            self._found.add(topic)
            return
        self._waiting[topic] = []
        for passed in waiting:
            if not passed.done():
                passed.set_result(None)
        asyncio.get_running_loop().call_soon(self._let_pass, topic)
