"""Appending what the broker itself moves: delayed messages whose time has come, retries, dead letters, commits.

Whoever waits for messages of a queue hears of every append, whoever made it. Safe is what an answer may say has
happened: with asynchronous flushing as soon as it is appended, with synchronous flushing once it is on the device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from google.protobuf.message import Message

from ..proto.errors import PocketMQError
from ..proto.rpc import Call
from ..proto.run import Run
from ..store.flush import tell
from ..store.log_writer import Appended
from ..store.message_store import MessageStore

#: Told the (topic, queue) of messages that were stored.
Listener = Callable[[], None]
Key = tuple[str, int]


class Appends:
    """Appends to STORE. Not thread-safe: the event loop owns it."""

    def __init__(self, store: MessageStore, notify: Callable[[Key], object]) -> None:
        """NOTIFY wakes the fetches that wait for a queue."""
        self._store = store
        self._notify = notify
        self._listeners: dict[Key, list[Listener]] = {}
        #: Told the topic of messages that were stored, whichever it is.
        self.on_arrival: list[Callable[[str], None]] = []
        store.on_caught_up(self.notify)

    def listen(self, topic: str, queue: int, listener: Listener) -> None:
        """Call LISTENER after every append to QUEUE of TOPIC."""
        self._listeners.setdefault((topic, queue), []).append(listener)

    def append(self, runs: Sequence[Run]) -> list[Appended | PocketMQError]:
        """Append RUNS in their order, each whole or not at all; return what became of each."""
        outcomes = self._store.append_many(runs)
        self.notify((run.topic, run.queue) for run in runs)
        return outcomes

    def append_one(self, run: Run) -> Appended:
        """Append RUN, whole or not at all; raises what the store raises."""
        (outcome,) = self.append([run])
        if isinstance(outcome, PocketMQError):
            raise outcome
        return outcome

    def notify(self, keys: Iterable[Key]) -> None:
        """Wake everybody who waits for one of the queues KEYS; what one of them raises keeps no other from hearing."""
        for key in dict.fromkeys(keys):
            tell(self._notify, key)
            for listener in self._listeners.get(key, ()):
                tell(listener)
            for heard in self.on_arrival:
                tell(heard, key[0])

    def when_safe(self, end_offset: int, done: Callable[[PocketMQError | None], None]) -> None:
        """Call DONE once everything before END_OFFSET is as safe as the store's setting promises, or with the error."""
        if self._store.config.flush == "sync":
            self._store.request_sync(end_offset, done)
        else:
            done(None)

    def reply_when_safe(self, call: Call, reply: Message, end_offset: int) -> None:
        """Answer CALL with REPLY once everything before END_OFFSET is safe, or with the error."""
        self.when_safe(
            end_offset, lambda error: call.reply(reply) if error is None else call.fail(error)
        )

    async def safe(self, end_offset: int) -> None:
        """Return once everything before END_OFFSET is safe, or raise the error."""
        await ended(lambda done: self.when_safe(end_offset, done))


async def synced(store: MessageStore, end_offset: int) -> None:
    """Return once everything of STORE before END_OFFSET is on the device, or raise the error."""
    await ended(lambda done: store.request_sync(end_offset, done))


async def ended(begin: Callable[[Callable[[PocketMQError | None], None]], None]) -> None:
    """Call BEGIN with what to call at the end; return then, or raise the error it is called with."""
    ended: asyncio.Future[PocketMQError | None] = asyncio.get_running_loop().create_future()

    def end(error: PocketMQError | None) -> None:
        if not ended.done():  # Who waited may have been cancelled.
            ended.set_result(error)

    begin(end)
    if (error := await ended) is not None:
        raise error
