"""The appender: the broker's only way to append messages to the store's log.

It is used for sends, and for messages that the broker itself moves: scheduled messages that are due, retries, dead
letters, and committed transactions. It notifies the requests that wait for messages of the queue; in a replica set,
once the messages are confirmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count

from google.protobuf.message import Message

from ...proto.errors import PocketMQError
from ...proto.rpc import Call
from ...proto.run import Run
from ...store.flush import notify
from ...store.log_writer import Appended
from ...store.message_store import MessageStore
from ..callbacks import Safe, ended
from ..events import BrokerEvents
from ..metrics.traffic import TrafficCounts
from ..replication.mastership import Mastership

#: Called after messages were stored in its queue.
Listener = Callable[[], None]
Key = tuple[str, int]


class Appender:
    """Appends to STORE. Not thread-safe: the event loop owns it."""

    def __init__(
        self,
        store: MessageStore,
        notify: Callable[[Key], object],
        mastership: Mastership | None = None,
        traffic: TrafficCounts | None = None,
        events: BrokerEvents | None = None,
    ) -> None:
        """NOTIFY wakes the fetches that wait for a queue. MASTERSHIP: None without replicas."""
        #: Counters for everything that is appended.
        self.traffic = TrafficCounts() if traffic is None else traffic
        self._store = store
        self._notify = notify
        self.mastership = mastership
        self._listeners: dict[Key, list[Listener]] = {}
        self._stored = (events or BrokerEvents()).messages_stored
        #: Set for good when another replica is, or may be, the master.
        self.fenced: PocketMQError | None = None
        #: Queues with unconfirmed messages, and the log offset after these.
        self._unconfirmed: deque[tuple[int, list[Key]]] = deque()
        #: Waiters, in their order: the log offset that must be confirmed, a number, the callback.
        self._waits: list[tuple[int, int, Safe]] = []
        #: Waiters whose data must be synced to disk first, by number.
        self._syncs: dict[int, Safe] = {}
        self._numbers = count()
        store.events.caught_up.append(self.notify)
        if mastership is not None:
            mastership.on_confirm(self._confirmed)

    def listen(self, topic: str, queue: int, listener: Listener) -> None:
        """Call LISTENER after every append to QUEUE of TOPIC."""
        self._listeners.setdefault((topic, queue), []).append(listener)

    def append(self, runs: Sequence[Run]) -> list[Appended | PocketMQError]:
        """Append RUNS in order, each completely or not at all; return the result of each."""
        outcomes = self.put(runs)
        self.notify((run.topic, run.queue) for run in runs)
        return outcomes

    def append_one(self, run: Run) -> Appended:
        """Append RUN, completely or not at all; raises errors of the store."""
        (outcome,) = self.append([run])
        if isinstance(outcome, PocketMQError):
            raise outcome
        return outcome

    def put(self, runs: Sequence[Run], *, together: bool = False) -> list[Appended | PocketMQError]:
        """Append like `append`, or with TOGETHER all RUNS or none. The caller must call `notify` in the same turn."""
        if self.fenced is not None:
            return [self.fenced] * len(runs)
        try:
            if together:
                return [*self._store.append_together(runs)]
            return self._store.append_many(runs)
        except PocketMQError as error:
            return [error] * len(runs)
        finally:
            if self.mastership is not None:
                self.mastership.appended(self._store.max_log_offset)

    def notify(self, keys: Iterable[Key]) -> None:
        """Notify all waiters of the queues KEYS. An exception of one waiter does not affect the others.

        If the new messages are not confirmed yet, the notification follows when they are.
        """
        if self.lags:
            self._unconfirmed.append((self._store.max_log_offset, list(keys)))
        else:
            self._tell(keys)

    def _tell(self, keys: Iterable[Key]) -> None:
        for key in dict.fromkeys(keys):
            notify(self._notify, key)
            for listener in self._listeners.get(key, ()):
                notify(listener)
            for callback in self._stored:
                notify(callback, key[0])

    @property
    def lags(self) -> bool:
        """Return whether the log has unconfirmed messages."""
        return not self._is_confirmed(self._store.max_log_offset)

    def _confirmed(self, offset: int) -> None:
        """Note that the log is confirmed up to OFFSET: notify waiters for messages first, then waiters for answers."""
        if self.fenced is not None:
            return
        keys: list[Key] = []
        while self._unconfirmed and self._unconfirmed[0][0] <= offset:
            keys += self._unconfirmed.popleft()[1]
        self._tell(keys)
        while self._waits and self._waits[0][0] <= offset:
            notify(heappop(self._waits)[2], None)

    def when_confirmed(self, end_offset: int, done: Safe) -> None:
        """Call DONE once the log before END_OFFSET is confirmed (at once without replicas), or with the error of the
        fence.
        """
        if self._is_confirmed(end_offset) or self.fenced is not None:
            done(self.fenced)
        else:
            heappush(self._waits, (end_offset, next(self._numbers), done))

    def _is_confirmed(self, end_offset: int) -> bool:
        return self.mastership is None or self._store.confirmed_offset >= end_offset

    def when_all_confirmed(
        self, begin: Callable[[], object], fail: Callable[[PocketMQError], object]
    ) -> None:
        """Call BEGIN once everything that is stored now is confirmed. BEGIN looks for a stored message.

        If BEGIN runs at once, its error is raised; otherwise FAIL is called with it.
        """

        def confirmed(error: PocketMQError | None) -> None:
            try:
                if error is not None:
                    raise error
                begin()
            except PocketMQError as refused:
                fail(refused)

        if self.lags:
            self.when_confirmed(self._store.max_log_offset, confirmed)
        else:
            begin()

    def fence(self, error: PocketMQError) -> None:
        """Append nothing more, and call all waiters with ERROR."""
        self.fenced = error
        self._unconfirmed.clear()
        waits, self._waits = self._waits, []
        syncs, self._syncs = self._syncs, {}
        for done in (*syncs.values(), *(wait[2] for wait in waits)):
            notify(done, error)

    @property
    def flushed_offset(self) -> int:
        """Everything in the log before this offset is on disk and confirmed: it is never rolled back."""
        flushed = self._store.flushed_offset
        return flushed if self._is_confirmed(flushed) else self._store.confirmed_offset

    def request_sync(self, end_offset: int, waiter: Safe) -> None:
        """Call WAITER once the log before END_OFFSET is on disk and confirmed, or with the error."""
        if self.mastership is None:
            self._store.request_sync(end_offset, waiter)
            return
        number = next(self._numbers)
        self._syncs[number] = waiter  # So that a fence calls it at once.

        def synced(error: PocketMQError | None) -> None:
            done = self._syncs.pop(number, None)
            if done is None:
                return
            if error is None:
                self.when_confirmed(end_offset, done)
            else:
                done(error)

        self._store.request_sync(end_offset, synced)

    def when_safe(self, end_offset: int, done: Safe) -> None:
        """Call DONE once the log before END_OFFSET is as safe as the store's setting promises, or with the error."""
        if self._store.config.flush == "sync":
            self.request_sync(end_offset, done)
        else:
            self.when_confirmed(end_offset, done)

    def reply_when_safe(self, call: Call, reply: Message, end_offset: int) -> None:
        """Answer CALL with REPLY once the log before END_OFFSET is safe, or with the error."""
        self.when_safe(
            end_offset, lambda error: call.reply(reply) if error is None else call.fail(error)
        )

    async def safe(self, end_offset: int) -> None:
        """Wait until the log before END_OFFSET is safe; raise the error otherwise."""
        await ended(lambda done: self.when_safe(end_offset, done))


async def synced(store: MessageStore, end_offset: int) -> None:
    """Wait until the log of STORE before END_OFFSET is on disk; raise the error otherwise."""
    await ended(lambda done: store.request_sync(end_offset, done))
