"""The leadership of a master in one epoch, as its broker uses it, and the sends that wait for replicas.

After the end of the epoch, every check fails. The broker then fails the waiting requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from ...proto.errors import (
    MasterFenced,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    Overloaded,
    PocketMQError,
)
from ...store.flush import notify
from ..producers.producers import Producers
from .mastership import Acknowledged, Told
from .registry_sessions import SessionChecked
from .replica import ReplicaCore
from .state_source import StatePart, StateSource
from .state_stream import StateStream

#: Answers that wait for the metadata store at the same time.
UNSURE_MAX: Final = 10_000


class Leadership:
    """The leadership of the master CORE in its epoch. NOW_MS is the clock of leases.

    APPENDED is called with the new end of the log, WANTED when a send waits for acknowledgements up to an offset.
    CHECK_SESSION asks the metadata store whether the session has ended. STATE replicates the tables. PRODUCERS are the
    idempotent producers found in the log.
    """

    def __init__(
        self,
        core: ReplicaCore,
        now_ms: Callable[[], int],
        appended: Callable[[int], None],
        wanted: Callable[[int], None],
        check_session: Callable[[SessionChecked], None],
        state: StateStream,
        producers: Producers,
    ) -> None:
        assert core.in_sync is not None, "a master has an in-sync set"
        self._core = core
        self._set = core.in_sync
        self._now_ms = now_ms
        self._appended = appended
        self._wanted = wanted
        self._check_session = check_session
        self._state = state
        self.producers: Producers | None = producers
        self.replica_id = core.replica_id
        self.epoch = core.in_sync.epoch
        #: During a transfer, the next master: nothing new is accepted; 0: no transfer.
        self.transfer_to = 0
        #: Whether the set's metadata names the next master, which may be master from then on: no
        #: answers are sent.
        self.is_transferred = False
        self._over: MasterFenced | None = None
        self._waiting: deque[tuple[int, Acknowledged]] = deque()
        #: Waiters for a check of the session, by number.
        self._unsure: dict[int, Told] = {}
        self._checks = 0
        self._on_confirm: list[Callable[[int], None]] = []
        self._on_end: list[Callable[[PocketMQError], None]] = []

    @property
    def in_sync(self) -> int:
        return len(self._set.maximal_set)

    def check_master(self) -> None:
        if self._over is not None:
            raise MasterFenced(self._over.message, **self._over.details)
        if self.is_transferred:
            raise self._transfer_error()
        self._core.check_master(self._now_ms())

    def when_still_master(self, told: Told) -> None:
        if len(self._unsure) >= UNSURE_MAX:
            told(
                Overloaded(
                    f"{UNSURE_MAX} answers wait for the metadata store, which is the limit: try again later",
                    limit=UNSURE_MAX,
                )
            )
            return
        self._checks = number = self._checks + 1
        self._unsure[number] = told
        self._check_session(partial(self._session_checked, number))

    def _session_checked(self, number: int, lasts: bool) -> None:
        waiting = self._unsure.pop(number, None)
        if waiting is None:
            return
        error: MasterFenced | None = None
        try:
            self.check_master()
            if not lasts:
                raise MasterFenced(
                    f"replica {self.replica_id} could not find out whether it is still master: try again soon",
                    epoch=str(self.epoch),
                )
        except MasterFenced as fenced:
            error = fenced
        notify(waiting, error)

    def check_open(self) -> None:
        self.check_master()
        if self.transfer_to:
            raise self._transfer_error()

    def _transfer_error(self) -> MasterFenced:
        return MasterFenced(
            f"replica {self.replica_id} transfers leadership to replica {self.transfer_to}: try again soon",
            epoch=str(self.epoch),
        )

    def check_acks(self, min_in_sync: int = 0) -> None:
        self.check_open()
        self._core.check_acks()
        confirmed = len(self._set.confirmed_set)
        if confirmed < min_in_sync:
            raise NotEnoughReplicas(
                f'acks="replicas" needs min_in_sync={min_in_sync} replicas for this topic, but only {confirmed} are'
                " in sync: wait until others have caught up",
                in_sync=str(confirmed),
            )

    def appended(self, end: int) -> None:
        if self._over is None:
            self._appended(end)

    def when_acknowledged(self, end: int, tell: Acknowledged) -> None:
        if self._over is not None:
            return
        if end <= self._set.acknowledged:
            tell(len(self._set.maximal_set), None)
            return
        self._waiting.append((end, tell))
        self._wanted(end)

    def on_confirm(self, tell: Callable[[int], None]) -> None:
        self._on_confirm.append(tell)

    def on_end(self, tell: Callable[[PocketMQError], None]) -> None:
        if self._over is not None:
            tell(self._over)
        else:
            self._on_end.append(tell)

    def replicate(self, parts: Iterable[StatePart], log_end: Callable[[], int]) -> StateSource:
        return self._state.replicate(
            self.epoch, parts, log_end, lambda: self._set.maximal_set - {self.replica_id}
        )

    def may_be_next(self, replica: int) -> bool:
        """Return whether REPLICA is in sync, with all tables, and may be elected once it has the complete log."""
        return self._set.may_be_next(replica, self._core.live)

    def behind(self, replica: int) -> int:
        """Return how many bytes of the log REPLICA is not known to have."""
        return self._set.end - self._set.has(replica, on_device=False)

    @property
    def is_awaited(self) -> bool:
        """Whether a send waits for replicas."""
        return bool(self._waiting)

    def best_successor(self) -> int:
        """Return the follower in sync with the longest log; 0: there is none."""
        following = {one: written for one, written, _ in self._set.following}
        return max(self._set.confirmed_set & following.keys(), key=following.__getitem__, default=0)

    def acknowledge(self, up_to: int, replicas: int) -> None:
        """Answer the sends before UP_TO: REPLICAS have them."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= up_to:
            waiting.popleft()[1](replicas, None)

    def doubt(self, in_sync: int) -> None:
        """Fail all waiting sends: only IN_SYNC replicas are in sync."""
        self._fail_waiting(
            NotEnoughReplicasAfterAppend(
                f"stored, but only {in_sync} replicas are in sync by now: send it again, duplicates of an idempotent"
                " producer are dropped",
                in_sync=str(in_sync),
            )
        )

    def check_lease(self) -> None:
        """Fail all waiters once another replica may be master: it may answer them, this one must not."""
        if self._waiting or self._unsure:
            try:
                self._core.check_master(self._now_ms())
            except MasterFenced as error:
                self._fail_waiting(error)
                self._fail_unsure(error)

    def _fail_unsure(self, error: MasterFenced) -> None:
        unsure, self._unsure = self._unsure, {}
        for waiting in unsure.values():
            notify(waiting, error)

    def _fail_waiting(self, error: PocketMQError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, tell in waiting:
            tell(0, error)

    def confirmed(self, offset: int) -> None:
        """Make complete records below OFFSET visible."""
        for tell in self._on_confirm:
            tell(offset)

    def end(self, error: MasterFenced) -> None:
        """End the leadership because of ERROR."""
        self._over = error
        self._waiting.clear()
        self._fail_unsure(error)
        for tell in self._on_end:
            tell(error)
