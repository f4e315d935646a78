"""A registry of replica sets in memory, with a real one's faults: lost answers, old reads, sessions that end.

`Ensemble` is the server: requests are carried out when the caller says so. `MemoryRegistry` is a session with it, as
brokers see it; its faults come from FAULTS, which is asked before each request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import TypeVar

from pocketmq.broker.replication.registry import (
    EndMark,
    LiveNode,
    ReplicaSetState,
    VersionedCell,
    VersionedEndMark,
)
from pocketmq.broker.replication.registry_format import (
    parse_cell,
    parse_live,
    parse_mark,
    render_cell,
    render_live,
    render_mark,
)
from pocketmq.proto.errors import ConfigError, MetadataConflict, RegistryUnavailable, SessionExpired

_T = TypeVar("_T")
NODE = "/pocketmq/test/sets/orders/state"


class Fault(Enum):
    """What becomes of a request."""

    NONE = auto()
    #: It never arrives; the caller hears of a lost connection.
    LOST = auto()
    #: It is carried out, and the caller hears of a lost connection.
    ANSWER_LOST = auto()
    #: A read is answered by a server that is behind.
    OLD = auto()
    #: The session ends before it.
    EXPIRED = auto()


class Ensemble:
    """The cell with every value that it had, and the live nodes by session."""

    def __init__(self) -> None:
        #: The cell of each version, as its bytes say.
        self.history: list[ReplicaSetState] = []
        #: The mark of each version.
        self.marks: list[EndMark] = []
        self._live: dict[int, tuple[int, LiveNode]] = {}
        self.sessions: set[int] = set()
        self._last_session = 0
        self._watchers: dict[int, Callable[[], None]] = {}

    def read(self, behind: int = 0) -> VersionedCell | None:
        """Return the cell as it was BEHIND changes ago."""
        version = len(self.history) - 1 - behind
        if version < 0:
            return None
        return VersionedCell(self.history[version], version)

    def create(self, cell: ReplicaSetState) -> int | None:
        """Make the cell; None: there is one."""
        return self._append(cell) if not self.history else None

    def compare_and_set(self, cell: ReplicaSetState, version: int) -> int | None:
        """Replace the cell of VERSION; return the new version, or None if it has another."""
        if not self.history or version != len(self.history) - 1:
            return None
        return self._append(cell)

    def read_mark(self, behind: int = 0) -> VersionedEndMark | None:
        """Return the mark as it was BEHIND changes ago."""
        version = len(self.marks) - 1 - behind
        return None if version < 0 else VersionedEndMark(self.marks[version], version)

    def write_mark(self, mark: EndMark, version: int | None) -> int | None:
        """Replace the mark of VERSION; return the new version, or None if it has another."""
        if version != (len(self.marks) - 1 if self.marks else None):
            return None
        self.marks.append(parse_mark(render_mark(mark), NODE))
        return len(self.marks) - 1

    def open(self) -> int:
        """Begin a session."""
        self._last_session += 1
        self.sessions.add(self._last_session)
        return self._last_session

    def expire(self, session: int) -> None:
        """End SESSION, and with it what it announced."""
        self.sessions.discard(session)
        self._watchers.pop(session, None)
        gone = [one for one, (of, _) in self._live.items() if of == session]
        for one in gone:
            del self._live[one]
        if gone:
            self._tell()

    def announce(self, session: int, replica_id: int, node: LiveNode) -> bool:
        """Set a live node; False: the session is over."""
        if session not in self.sessions:
            return False
        self._live[replica_id] = (session, parse_live(render_live(node), NODE))
        self._tell()
        return True

    def check_free(self, session: int, replica_id: int, node: LiveNode) -> None:
        """Raise ConfigError if another session than SESSION has REPLICA_ID elsewhere, or with another store."""
        owner, there = self._live.get(replica_id, (session, node))
        if owner != session and not there.may_be(node.address, node.store_id):
            raise ConfigError(f"replica id {replica_id} is taken", replica_id=str(replica_id))

    def session_of(self, replica_id: int) -> int:
        """Return the session that announced REPLICA_ID."""
        return self._live[replica_id][0]

    def live(self) -> dict[int, LiveNode]:
        return {one: node for one, (_, node) in self._live.items()}

    def watch(self, session: int, changed: Callable[[], None]) -> None:
        self._watchers[session] = changed

    def _append(self, cell: ReplicaSetState) -> int:
        self.history.append(parse_cell(render_cell(cell), NODE))
        self._tell()
        return len(self.history) - 1

    def _tell(self) -> None:
        for changed in list(self._watchers.values()):
            changed()


class MemoryRegistry:
    """A session with ENSEMBLE, for one replica; a `Registry`."""

    def __init__(
        self,
        ensemble: Ensemble,
        now_ms: Callable[[], int],
        faults: Callable[[str], Fault] = lambda _: Fault.NONE,
    ) -> None:
        self._ensemble = ensemble
        self._now_ms = now_ms
        self._faults = faults
        self.session = ensemble.open()
        self._answered_ms = now_ms()

    @property
    def answered_ms(self) -> int:
        return self._answered_ms

    async def read(self) -> VersionedCell | None:
        fault, sent_ms = self._ask("read")
        found = self._ensemble.read(
            1 if fault is Fault.OLD and len(self._ensemble.history) > 1 else 0
        )
        return self._answer(fault, sent_ms, found)

    async def create(self, cell: ReplicaSetState) -> int:
        fault, sent_ms = self._ask("create")
        version = self._answer(fault, sent_ms, self._ensemble.create(cell))
        if version is None:
            raise MetadataConflict(f"{NODE} is there already", node=NODE)
        return version

    async def compare_and_set(self, cell: ReplicaSetState, version: int) -> int:
        fault, sent_ms = self._ask("compare_and_set")
        new = self._answer(fault, sent_ms, self._ensemble.compare_and_set(cell, version))
        if new is None:
            raise MetadataConflict(f"{NODE} is not of version {version} any more", node=NODE)
        return new

    async def announce(self, replica_id: int, node: LiveNode) -> None:
        fault, sent_ms = self._ask("announce")
        self._ensemble.check_free(self.session, replica_id, node)
        self._answer(fault, sent_ms, self._ensemble.announce(self.session, replica_id, node))

    async def live(self) -> Mapping[int, LiveNode]:
        fault, sent_ms = self._ask("live")
        return self._answer(fault, sent_ms, self._ensemble.live())

    async def check_session(self) -> None:
        fault, sent_ms = self._ask("check_session")
        self._answer(fault, sent_ms, None)

    async def sync(self) -> None:
        fault, sent_ms = self._ask("sync")
        self._answer(fault, sent_ms, None)

    async def read_mark(self) -> VersionedEndMark | None:
        fault, sent_ms = self._ask("read_mark")
        old = fault is Fault.OLD and len(self._ensemble.marks) > 1
        return self._answer(fault, sent_ms, self._ensemble.read_mark(int(old)))

    async def write_mark(self, mark: EndMark, version: int | None) -> int:
        fault, sent_ms = self._ask("write_mark")
        new = self._answer(fault, sent_ms, self._ensemble.write_mark(mark, version))
        if new is None:
            raise MetadataConflict(f"the mark is not of version {version} any more", node=NODE)
        return new

    def watch(self, changed: Callable[[], None]) -> None:
        self._ensemble.watch(self.session, changed)

    async def close(self) -> None:
        self._ensemble.expire(self.session)

    def _ask(self, operation: str) -> tuple[Fault, int]:
        fault = self._faults(operation)
        if fault is Fault.EXPIRED:
            self._ensemble.expire(self.session)
        if self.session not in self._ensemble.sessions:
            raise SessionExpired("the session is over: open a new one")
        if fault is Fault.LOST:
            raise RegistryUnavailable(f"{operation}: the connection was lost")
        return fault, self._now_ms()

    def _answer(self, fault: Fault, sent_ms: int, found: _T) -> _T:
        if fault is Fault.ANSWER_LOST:
            raise RegistryUnavailable("the connection was lost before the answer")
        self._answered_ms = sent_ms
        return found
