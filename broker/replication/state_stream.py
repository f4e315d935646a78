"""The replicated tables on the links of a replica: the source while it is master, the sink while it follows.

A follower's hello has its versions. The master answers with what is missing, after its Begin and before any byte of
the log. From then on frames of tables and of the log share the link, in the order of the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ...proto.clock import Readings
from ...proto.errors import MasterFenced
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...store.message_store import MessageStore
from .follower_view import FollowerTables
from .state_sink import StateSink
from .state_source import StatePart, StateSource

#: Interval of requests to the next master to flush all tables to disk.
_ASK_MS: Final = 20


class StateStream:
    """The replicated tables of one replica. SEND sends a frame over a link, if it is still open."""

    def __init__(
        self, clock: Readings, send: Callable[[int, pb.FollowRequest | pb.FollowReply], None]
    ) -> None:
        self._clock = clock
        self._send = send
        self._sink: StateSink | None = None
        #: The link to the master.
        self._upstream = 0
        self._source: StateSource | None = None
        #: Followers by link: their replica, and the versions that they have.
        self._hellos: dict[int, pb.FollowHello] = {}
        #: Links that got a Begin.
        self._begun: set[int] = set()
        self._asked_ms = 0

    def follow(self, store: MessageStore) -> None:
        """Store replicated tables next to STORE, which has started, from now on. Raises CorruptState."""
        self.rest()
        self._sink = StateSink(store, self._clock.unix_ms, self._clock.now_ms, self._acknowledge)
        self._sink.start()

    def rest(self) -> None:
        """Write all tables to their files, as far as the log here reaches: the store is about to be closed."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def lead(self) -> None:
        """Write all tables to their files, for the broker that opens them now. Raises StoreError."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.lead()

    def add_versions(self, link: int, hello: pb.FollowHello) -> None:
        """Add the versions of this follower to HELLO, which is about to be sent over LINK."""
        self._upstream = link
        if self._sink is not None:
            hello.state_versions.update(self._sink.begin())

    def take(self, link: int, state: pb.FollowState, epoch: int, confirm: int) -> None:
        """Accept STATE from the master of EPOCH over LINK; raises InvalidArgument and StoreError as the sink does."""
        if link == self._upstream and self._sink is not None and state.epoch == epoch:
            self._sink.take(state, confirm)

    def save(self, link: int) -> None:
        """The master on LINK wants all tables on disk: this replica is about to become master."""
        if link == self._upstream and self._sink is not None:
            self._sink.save()

    def confirmed(self, confirm: int) -> None:
        """The log is confirmed here up to CONFIRM. Raises StoreError."""
        if self._sink is not None:
            self._sink.confirmed(confirm)

    def when_kept(self, tell: Callable[[], None]) -> None:
        """Call TELL once the topics and groups received so far are on disk; never, if that fails."""
        if self._sink is None:
            tell()
        else:
            self._sink.when_kept(tell)

    def _acknowledge(self, ack: pb.FollowStateAck) -> None:
        self._send(self._upstream, pb.FollowRequest(state_ack=ack))

    @property
    def tables(self) -> FollowerTables | None:
        """The tables that a master has sent; None: this replica follows none."""
        return None if self._sink is None else self._sink.tables

    def replicate(
        self,
        epoch: int,
        parts: Iterable[StatePart],
        log_end: Callable[[], int],
        others: Callable[[], Iterable[int]],
    ) -> StateSource:
        """Send the changes of PARTS to followers from now on, as the master of EPOCH."""
        source = self._source = StateSource(epoch, parts, log_end, others)
        source.on_kept_change(self._tell_changes)
        for link in self._begun & self._hellos.keys():
            self._tell_all(source, link)
        return source

    def hello_received(self, link: int, hello: pb.FollowHello) -> None:
        """A follower sent HELLO over LINK."""
        self._hellos[link] = hello

    def hello_answered(self, link: int) -> None:
        """The hello over LINK was answered."""
        self._begun.add(link)
        if self._source is not None and link in self._hellos:
            self._tell_all(self._source, link)

    def acked(self, link: int, ack: pb.FollowStateAck) -> None:
        """A follower sent ACK over LINK."""
        if self._source is not None:
            self._send_states(self._source.acked(link, ack))

    def has_state(self, replica: int) -> bool:
        """Return whether REPLICA has the tables that it needs to be in sync."""
        return self._source is not None and self._source.has_all(replica)

    def step_down(self, error: MasterFenced) -> None:
        """Send no more frames, and fail waiters with ERROR."""
        source, self._source = self._source, None
        self._begun.clear()
        self._hellos.clear()
        if source is not None:
            source.close(error)

    def lost(self, link: int) -> None:
        """LINK was closed."""
        self._hellos.pop(link, None)
        self._begun.discard(link)
        if self._source is not None:
            self._source.lost(link)

    def tick(self) -> None:
        """Do what is due. Call this every 100 ms."""
        if self._sink is not None:
            self._sink.tick()
        self._tell_changes()

    def send_all_to(self, replica: int) -> bool:
        """Send all changes; return whether REPLICA, which is about to become master, has them."""
        if self._source is None:
            return True
        now_ms = self._clock.now_ms()
        self._send_states(self._source.changed(now_ms, all_now=True))
        if self._source.has_everything(replica):
            return True
        if now_ms - self._asked_ms >= _ASK_MS:
            self._asked_ms = now_ms
            for link in self._begun:
                if self._hellos[link].replica_id == replica:
                    self._send(link, pb.FollowReply(save=pb.FollowSave()))
        return False

    def _tell_changes(self) -> None:
        if self._source is not None:
            self._send_states(self._source.changed(self._clock.now_ms()))

    def _tell_all(self, source: StateSource, link: int) -> None:
        hello = self._hellos[link]
        self._send_states(source.hello(link, hello.replica_id, hello.state_versions))

    def _send_states(self, frames: Iterable[tuple[int, pb.FollowState]]) -> None:
        for link, frame in frames:
            self._send(link, pb.FollowReply(state=frame))
