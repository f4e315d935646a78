"""The sessions of a replica with the metadata store."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from ...proto.clock import Readings
from ...proto.errors import (
    ConfigError,
    MetadataConflict,
    PocketMQError,
    RegistryUnavailable,
    SessionExpired,
)
from .registry import EndMark, LiveNode, Registry, ReplicaSetState, VersionedCell, VersionedEndMark

logger = logging.getLogger(__name__)

#: Opens a session. Raises RegistryUnavailable.
OpenSession = Callable[[], Awaitable[Registry]]
#: Called once, with whether the session is known to have lasted.
SessionChecked = Callable[[bool], None]
_PAUSE_MS: Final = 200
#: Interval of the warnings while the metadata store does not answer.
TOLD_MS: Final = 30_000


class SessionUser(Protocol):
    """Receives the answers of the metadata store."""

    def session_began(self) -> None: ...

    def session_ended(self) -> None: ...

    def registry_answered(self, sent_ms: int) -> None: ...

    def registry_seen(
        self,
        cell: VersionedCell | None,
        live: Mapping[int, LiveNode],
        mark: VersionedEndMark | None,
    ) -> None: ...

    def set_done(self, version: int) -> None: ...

    def set_refused(self) -> None: ...

    def set_unknown(self) -> None: ...

    def mark_written(self, found: VersionedEndMark | None) -> None: ...


class RegistrySessions:
    """Sessions from OPEN_SESSION for USER, the replica REPLICA_ID. ZooKeeper ends silent ones after SESSION_MS."""

    def __init__(
        self,
        open_session: OpenSession,
        user: SessionUser,
        replica_id: int,
        session_ms: int,
        clock: Readings,
    ) -> None:
        self._open_session = open_session
        self._user = user
        self._replica_id = replica_id
        #: Interval of reads, which renew the lease, and find changes that no watch reported.
        self._poll_ms = max(20, session_ms // 5)
        self._registry: Registry | None = None
        self._asked: deque[_Request] = deque()
        self._news = asyncio.Event()
        self._is_reading = False
        self._is_synced = False
        self._next_node: LiveNode | None = None
        #: Waiters for a check of the session that is not sent yet.
        self._checking: list[SessionChecked] = []
        self._silent = RateLimitedWarning("no answer from the metadata store, retrying", clock)
        #: Why the live node was refused; None: it was accepted, or not announced yet.
        self.refused: ConfigError | None = None
        self._not_taken = RateLimitedWarning(
            "live node refused by the metadata store, retrying", clock
        )

    def read(self) -> None:
        """Read the set's metadata, the live nodes and the mark, in this order."""
        if not self._is_reading and self._registry is not None:
            self._is_reading = True
            self._ask(_Request(self._read))

    def announce(self, node: LiveNode) -> None:
        """Set the live node; of several requests, only the last is sent."""
        if self._registry is None:
            return
        if self._next_node is None:
            self._ask(_Request(self._announce))
        self._next_node = node

    def compare_and_set(self, cell: ReplicaSetState, version: int) -> None:
        """Replace the metadata of VERSION."""

        async def change(registry: Registry) -> None:
            try:
                new = await registry.compare_and_set(cell, version)
            except MetadataConflict:
                self._user.set_refused()
            except PocketMQError:
                self._user.set_unknown()
                raise
            else:
                self._user.set_done(new)

        if self._registry is None:
            self._user.set_unknown()
        else:
            self._ask(_Request(change, self._user.set_unknown))

    def write_mark(self, mark: EndMark, version: int | None) -> None:
        """Replace the mark of VERSION; `mark_written` answers, with None if the result is unknown."""

        async def write(registry: Registry) -> None:
            written = None
            try:
                written = VersionedEndMark(mark, await registry.write_mark(mark, version))
            except MetadataConflict:
                self.read()
            finally:
                self._user.mark_written(written)

        if self._registry is None:
            self._user.mark_written(None)
        else:
            self._ask(_Request(write, lambda: self._user.mark_written(None)))

    def check_session(self, tell: SessionChecked) -> None:
        """Call TELL with whether the metadata store confirmed, to a request after this call, that the session has not
        ended.
        """
        if self._registry is None:
            tell(False)
            return
        if not self._checking:
            self._ask(_Request(self._check_session, self._not_checked))
        self._checking.append(tell)

    def _not_checked(self) -> None:
        checking, self._checking = self._checking, []
        for tell in checking:
            tell(False)

    async def _check_session(self, registry: Registry) -> None:
        checking, self._checking = self._checking, []
        lasts = False
        try:
            await registry.check_session()
            lasts = True
            self._user.registry_answered(registry.answered_ms)
        finally:
            for tell in checking:
                tell(lasts)

    def _ask(self, request: _Request) -> None:
        self._asked.append(request)
        self._news.set()

    async def _read(self, registry: Registry) -> None:
        self._is_reading = False
        if not self._is_synced:
            await registry.sync()
            self._is_synced = True
        cell, live = await registry.read(), await registry.live()
        # Read the mark last: once a master's live node is gone, the mark includes all its writes.
        self._user.registry_seen(cell, live, await registry.read_mark())

    async def _announce(self, registry: Registry) -> None:
        node, self._next_node = self._next_node, None
        if node is None:
            return
        try:
            await registry.announce(self._replica_id, node)
        except ConfigError as error:
            self.refused = error
            self._not_taken.tell(error.message)
        else:
            self.refused = None
            self._not_taken.over()

    async def run(self) -> None:
        """Run one session after the other, until this task is cancelled."""
        while True:
            try:
                registry = await self._open_session()
            except PocketMQError as error:
                await self._pause(error)
                continue
            self._registry = registry
            try:
                registry.watch(self.read)
                self._user.session_began()
                await self._use(registry)
            except SessionExpired as error:
                logger.warning("session with the metadata store ended reason=%s", error.message)
            finally:
                self._registry = None
                self._forget()
                await _close(registry)
            self._user.session_ended()

    async def _use(self, registry: Registry) -> None:
        """Send requests until the session ends."""
        while True:
            if not self._asked:
                self._news.clear()
                try:
                    async with asyncio.timeout(self._poll_ms / 1000):
                        await self._news.wait()
                except TimeoutError:
                    self.read()
                continue
            request = self._asked.popleft()
            try:
                await request.send(registry)
                self._silent.over()
            except SessionExpired:
                raise
            except PocketMQError as error:
                await self._pause(error)
            self._user.registry_answered(registry.answered_ms)

    async def _pause(self, error: PocketMQError) -> None:
        self._silent.tell(error.message)
        await asyncio.sleep(_PAUSE_MS / 1000)

    def _forget(self) -> None:
        """Drop requests that were not sent; the result of a change under way stays unknown."""
        asked, self._asked = self._asked, deque()
        self._is_reading, self._is_synced, self._next_node = False, False, None
        for request in asked:
            request.drop()


@dataclass(frozen=True, slots=True)
class _Request:
    """One request: SEND sends it; DROP is called if it is not sent."""

    send: Callable[[Registry], Awaitable[None]]
    drop: Callable[[], None] = lambda: None


class RateLimitedWarning:
    """Logs a repeated failure: the first time, every `TOLD_MS`, and when it has ended."""

    def __init__(self, what: str, clock: Readings) -> None:
        self._what = what
        self._clock = clock
        self._told_ms: int | None = None
        self._reason = ""
        self._count = 0

    def tell(self, reason: str) -> None:
        """Record one more failure, for REASON."""
        now_ms = self._clock.now_ms()
        self._count += 1
        again = self._told_ms is None or now_ms - self._told_ms >= TOLD_MS
        if again or reason != self._reason:
            logger.warning("%s times=%d reason=%s", self._what, self._count, reason)
            self._told_ms, self._reason = now_ms, reason

    def over(self) -> None:
        """Record a success."""
        if self._told_ms is not None:
            logger.warning("%s: ended failures=%d", self._what, self._count)
            self._told_ms, self._reason, self._count = None, "", 0


async def first_look(
    open_session: OpenSession, clock: Readings
) -> tuple[VersionedCell | None, Mapping[int, LiveNode]]:
    """Return the set's metadata and the live nodes, retrying until there is an answer. Raises ConfigError."""
    silent = RateLimitedWarning("no answer from the metadata store, retrying", clock)
    while True:
        try:
            registry = await open_session()
            try:
                return await registry.read(), await registry.live()
            finally:
                await _close(registry)
        except (RegistryUnavailable, SessionExpired) as error:
            silent.tell(error.message)
            await asyncio.sleep(_PAUSE_MS / 1000)


async def _close(registry: Registry) -> None:
    with suppress(PocketMQError):
        await registry.close()
