"""The common ground of one consumer's parts: group, settings, numbers, the ways to brokers and name servers.

A consumer whose name servers do not answer is told of at once, and meets an error after nameserver_timeout_ms. Once one
has answered, their loss stops nobody who knows the way (routes.py), and this is over.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ...proto.errors import Disconnected, NotServed, PocketMQError, TlsFailed
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..config import ConsumerConfig, ReadingConfig
from ..connections import Connection
from ..follower_choice import FollowerChoices
from ..queue import Queue
from ..session import Session
from .counts import Counts
from .queue_bounds import BoundsRequests

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE_MS: Final = 500


@dataclass(slots=True)
class ConsumerParts:
    """The group, the settings, the way to the brokers, the numbers."""

    group: str
    config: ReadingConfig
    session: Session
    counts: Counts = field(default_factory=Counts)
    #: Told that a broker's clock waits until what was just fetched is committed.
    on_clock_waits: list[Callable[[], None]] = field(default_factory=list)
    #: Asks where queues begin and end.
    bounds: BoundsRequests = field(init=False)
    #: Whom fetches are asked of before the master, if the settings say so.
    followers: FollowerChoices | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.config, ConsumerConfig) and self.config.read_from == "any":
            self.followers = FollowerChoices(self.session)
        self.bounds = BoundsRequests(self.session, self.config.request_timeout_ms)

    async def from_follower(
        self,
        queue: Queue,
        request: pb.FetchRequest,
        fetch: Callable[[Connection], Awaitable[T]],
    ) -> T | None:
        """Return what FETCH of REQUEST brings from a replica that follows; None: ask the master."""
        if self.followers is None:
            return None
        request.from_any = True
        try:
            return await self.followers.of(queue.broker, queue).ask(fetch)
        finally:
            request.from_any = False


async def reach_name_server(parts: ConsumerParts, fail: Callable[[PocketMQError], object]) -> None:
    """Ask until a name server has answered once; FAIL hears of it each time that none did for too long.

    Where TLS is not agreed on, it hears at once: to wait is of no use.
    """
    session, timeout_ms = parts.session, parts.config.nameserver_timeout_ms
    clock = session.clock
    began_ms, warned = clock.now_ms(), False
    while True:
        try:
            await session.routes.brokers()
            return
        except TlsFailed as error:
            fail(error)
        except (Disconnected, NotServed) as error:
            silent_ms = clock.now_ms() - began_ms
            if not warned:
                warned = True
                facts = Facts(
                    group=parts.group, fails_after_ms=timeout_ms or None, reason=error.message
                )
                logger.warning("name servers not reached, trying again %s", facts)
            if timeout_ms and silent_ms >= timeout_ms:
                began_ms = clock.now_ms()
                fail(_unreached(error, silent_ms))
        await clock.sleep_until(clock.now_ms() + _PAUSE_MS)


def _unreached(error: PocketMQError, silent_ms: int) -> PocketMQError:
    return type(error)(
        f"for {silent_ms / 1_000:g} s {error.message}; give their addresses as nameservers=… or in"
        " $POCKETMQ_NAMESERVER (nameserver_timeout_ms=0 waits on)",
        **error.details,
    )
