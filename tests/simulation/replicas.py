"""A replica set on one seeded random walk: the real replicas, a registry in memory, and the worst between them.

Frames come late, twice, in another order or never; links break; processes are killed between two effects, machines
lose power and what was not synced; sessions end while their process goes on; answers of the registry are lost though it
did what was asked, or does it later; reads are old; clocks jump. At the end all is mended, and the set must come to
rest: one master, all in sync, all logs equal, and a new message acknowledged.

What is held against the walk, whatever happened (Violated says which):

    an acknowledged message is in the log of each later master, at its place
    what is acknowledged is on `min_in_sync` replicas, on the device unless "memory" was enough
    what was confirmed, anywhere, never changes
    epochs grow, each is begun once, and one replica acknowledges in it
    no store is set aside
    no replica calls itself unclean for the mark, or refuses its master, unless a folder went back
    with clocks that are right, no master serves once another one has begun

A record is four bytes, so that frames cut records as they like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from pocketmq.broker.replication import effects
from pocketmq.broker.replication.in_sync import ReplicaSettings
from pocketmq.broker.replication.log_epochs import Epochs
from pocketmq.broker.replication.registry import EndMark, ReplicaSetState, VersionedEndMark
from pocketmq.broker.replication.replica import ReplicaCore
from pocketmq.broker.replication.replica_state import ReplicaRole, ReplicaState
from pocketmq.proto.errors import MasterFenced, NotEnoughReplicas
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ..broker.replication.log_frames import bytes_frame
from ..broker.replication.memory_registry import Ensemble

RECORD: Final = 4
#: What a replica's folder has, beside its log.
FOLDER: Final = ("synced", "epochs", "epoch_seen", "unclean", "confirm", "confirm_epoch")
SESSION_MS: Final = 2_000


class Violated(AssertionError):
    """The walk found something that must never be."""


class _Killed(Exception):
    """The process was killed between two effects."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One walk; it replays from these values."""

    seed: int
    replicas: int = 3
    steps: int = 400
    min_in_sync: int = 1
    replica_ack: str = "disk"
    flush_sync: bool = False
    #: Sessions end when their time is over, and clocks are right: then the lease is held against the walk as well.
    timed: bool = False
    #: Once, the folder of a stopped replica becomes an older copy, or loses its end though that was synced: older than
    #: what the mark has.
    goes_back: bool = False
    #: What happens most: "sessions", "power", "registry" or "restarts" go wrong, "moves" are asked for; "": nothing.
    emphasis: str = ""


@dataclass
class Tally:
    """What happened on a walk."""

    acknowledged: int = 0
    elections: int = 0
    steps: int = 0
    trace: list[str] = field(default_factory=list)


class Node:
    """One replica with its device, and its process while it runs."""

    def __init__(self, walk: Walk, replica_id: int, settings: ReplicaSettings) -> None:
        self._walk = walk
        self.id = replica_id
        self.settings = settings
        #: What is on the device, or on its way there beyond `synced`.
        self.log = bytearray()
        self.synced = 0
        self.epochs = Epochs()
        self.epoch_seen = 0
        self.unclean = False
        self.confirm = self.confirm_epoch = 0
        #: An older copy of all this.
        self.copy: dict[str, Any] = {}
        #: The process.
        self.replica: ReplicaCore | None = None
        self.run = 0
        self.session = 0
        self.skew_ms = 0
        #: Sends with acks="replicas" that wait: where they end, and their record.
        self.waiting: deque[tuple[int, bytes]] = deque()
        self.streams: dict[int, int] = {}

    @property
    def now_ms(self) -> int:
        return self._walk.now_ms + self.skew_ms

    def is_master(self) -> bool:
        return self.replica is not None and self.replica.role is ReplicaRole.MASTER

    def start(self) -> None:
        """Start the process: recovery keeps whole records."""
        del self.log[len(self.log) // RECORD * RECORD :]
        self.synced = min(self.synced, len(self.log))
        self.run += 1
        self.replica = ReplicaCore(
            self.settings,
            ReplicaState(
                epoch_seen=self.epoch_seen,
                unclean=self.unclean,
                epochs=self.epochs,
                end=len(self.log),
                synced=self.synced,
                confirm=self.confirm,
                confirm_epoch=self.confirm_epoch,
            ),
        )
        self.open_session()

    def open_session(self) -> None:
        self.session = self._walk.ensemble.open()
        self._walk.heard_ms[self.session] = self._walk.now_ms
        self.give(lambda replica: replica.session_began(self.now_ms))

    def kill(self) -> None:
        """End the process; the machine goes on."""
        if self.replica is not None and self._walk.random.random() < 0.5:
            self.confirm, self.confirm_epoch = self.replica.confirm, self.replica.confirm_epoch
        self.replica = None
        self.waiting.clear()
        for link in list(self.streams):
            self._walk.close(link)
        self.streams.clear()
        self._walk.close_links_of(self.id)

    def cut_power(self) -> None:
        """End the process; what was not synced is gone, or not."""
        self.kill()
        del self.log[self._walk.random.randint(self.synced, len(self.log)) :]
        self.synced = len(self.log)
        # Only where the device has all that was shown or acknowledged nothing can be lacking.
        if not self.settings.flush_sync:
            self.unclean = True

    def take_copy(self) -> None:
        """Copy the folder as it is on the device."""
        self.copy = {name: getattr(self, name) for name in FOLDER} | {"log": bytes(self.log)}

    def go_back(self) -> None:
        """Have the folder be what was copied, or lose the end of the log."""
        random = self._walk.random
        if self.copy and random.random() < 0.6:
            for name, value in self.copy.items():
                setattr(self, name, bytearray(value) if name == "log" else value)
        else:
            del self.log[random.randint(0, len(self.log)) :]
            self.synced = min(self.synced, len(self.log))

    def give(self, feed: Callable[[ReplicaCore], list[effects.Effect]]) -> None:
        """Give the process an input, and do what it wants."""
        if self.replica is None:
            return
        try:
            for effect in feed(self.replica):
                self._carry_out(effect)
            self._walk.check_alarm(self, self.replica)
        except _Killed:
            self._walk.note(f"{self.id} killed between effects")
            self.kill()

    def sync(self) -> None:
        """The device has all that was written."""
        self.synced = len(self.log)
        if self.replica is not None and self._walk.random.random() < 0.3:
            self.confirm, self.confirm_epoch = self.replica.confirm, self.replica.confirm_epoch
        self.give(lambda replica: replica.log_synced(self.synced, self.now_ms))

    def _carry_out(self, effect: effects.Effect) -> None:
        walk = self._walk
        match effect:
            case (
                effects.PersistState()
                | effects.KeepEpochs()
                | effects.AppendRaw()
                | effects.CutLog()
                | effects.BeginAnew()
            ):
                self._do_on_device(effect)
            case (
                effects.Follow() | effects.SendFrame() | effects.SendLogFrom() | effects.CloseLink()
            ):
                self._do_on_links(effect)
            case (
                effects.ReadRegistry()
                | effects.CompareAndSet()
                | effects.WriteMark()
                | effects.Announce()
            ):
                walk.ask(self, effect)
            case effects.BecomeMaster(epoch, start):
                walk.note(f"{self.id} begins epoch {epoch} at {start}")
                self.waiting.clear()
                walk.check_begins(self, epoch)
            case effects.StepDown() | effects.FailAcks():
                walk.note(f"{self.id} {type(effect).__name__}")
                self.waiting.clear()
            case effects.AnswerAcks(up_to, replicas):
                while self.waiting and self.waiting[0][0] <= up_to:
                    walk.check_acknowledged(self, *self.waiting.popleft(), replicas)
            case effects.Confirm(offset):
                walk.check_confirmed(self, offset)

    def _do_on_device(
        self,
        effect: effects.PersistState
        | effects.KeepEpochs
        | effects.AppendRaw
        | effects.CutLog
        | effects.BeginAnew,
    ) -> None:
        self._walk.may_kill()
        match effect:
            case effects.PersistState(epoch_seen, unclean):
                self.epoch_seen, self.unclean = epoch_seen, unclean
            case effects.KeepEpochs(epochs):
                self.epochs = epochs
            case effects.AppendRaw(offset, data):
                self._walk.check(offset == len(self.log), f"{self.id} appends, not at its end")
                self.log += data
            case effects.CutLog(end):
                self._cut(len(self.log) if end is None else end)
            case effects.BeginAnew(_, reason):
                raise Violated(f"{self.id} sets its store aside: {reason}")
        self._walk.may_kill()

    def _do_on_links(
        self, effect: effects.Follow | effects.SendFrame | effects.SendLogFrom | effects.CloseLink
    ) -> None:
        match effect:
            case effects.Follow(master, _):
                self._walk.dial(self, master)
            case effects.SendFrame(link, frame):
                self._walk.send(self.id, link, frame)
            case effects.SendLogFrom(link, offset):
                self.streams[link] = offset
            case effects.CloseLink(link, _):
                self.streams.pop(link, None)
                self._walk.close(link)

    def _cut(self, end: int) -> None:
        """Cut the log at END or before, at a whole record as the store does; answer later."""
        end = end // RECORD * RECORD
        shown = self.replica.confirm // RECORD * RECORD if self.replica else 0
        self._walk.check(end >= shown, f"{self.id} cuts its log at {end}, below what it had shown")
        del self.log[end:]
        self.synced = min(self.synced, end)
        run = self.run
        self._walk.later(lambda: self._answer_cut(run))

    def _answer_cut(self, run: int) -> None:
        if run == self.run:
            self.give(lambda replica: replica.log_cut(len(self.log), self.synced, self.now_ms))


class Walk:
    """One walk of PLAN."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed)
        self.tally = Tally()
        self.now_ms = 0
        self.ensemble = Ensemble()
        #: When the registry last heard of a session.
        self.heard_ms: dict[int, int] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.visible = b""
        self._begun: dict[int, int] = {}
        self._records = 0
        #: The replica whose folder went back; 0: none did.
        self.hit = 0
        self._last_link = 0
        #: Who dialled whom, by link; and what is under way on it, by link and who gets it.
        self.links: dict[int, tuple[int, int]] = {}
        self._under_way: dict[tuple[int, int], deque[Any]] = {}
        #: What arrived once, and may again.
        self._old_acks: deque[tuple[int, int, Any]] = deque(maxlen=64)
        self._later: list[Callable[[], None]] = []
        self._mending = False
        replicas = range(1, plan.replicas + 1)
        cell = ReplicaSetState(
            epoch=0,
            master=0,
            in_sync=frozenset(replicas),
            replicas={one: f"host:{one}" for one in replicas},
        )
        self.ensemble.create(cell)
        self.nodes = {
            one: Node(
                self,
                one,
                ReplicaSettings(
                    cluster="c",
                    set_name="orders",
                    replica_id=one,
                    address=f"host:{one}",
                    file_size=1 << 30,
                    min_in_sync=plan.min_in_sync,
                    replica_ack="memory" if plan.replica_ack == "memory" else "disk",
                    flush_sync=plan.flush_sync,
                    session_ms=SESSION_MS,
                ),
            )
            for one in replicas
        }

    def go(self) -> Tally:
        """Walk, mend, and return what happened. Raises Violated."""
        for node in self.nodes.values():
            node.start()
        self._mending = True
        for _ in range(self.random.choice((0, 20, 40))):
            self._mend_for_a_turn()
        self._mending = False
        actions, weights = zip(*self._actions(), strict=True)
        for action in self.random.choices(actions, weights, k=self.plan.steps):
            action(self.random.choice(list(self.nodes.values())))
            self.tally.steps += 1
        self._mend()
        return self.tally

    def _actions(self) -> Iterable[tuple[Callable[[Node], None], float]]:
        emphasis = self.plan.emphasis
        power, sessions, registry, restarts = (
            emphasis == one for one in ("power", "sessions", "registry", "restarts")
        )
        yield self._send, 14
        yield self._pump, 14
        yield self._deliver, 34
        yield lambda node: node.sync(), 2 if power else 8
        yield self._do_later, 20
        yield self._tick, 10
        yield self._ping, 4 if self.plan.timed else 0
        yield self._kill, 4 if restarts else 0.7
        yield self._cut_power, 2.5 if power else 0.5
        yield self._start, 12 if restarts else 3
        yield self._expire, 4 if sessions else 3 if registry else 1.2
        yield self._break_link, 4 if registry else 0.7
        yield self._repeat_ack, 2
        yield self._jump, 0 if self.plan.timed else 0.3
        yield self._hand_over_to, 3 if emphasis == "moves" else 0
        yield lambda node: node.take_copy(), 0.5 if self.plan.goes_back else 0
        yield self._go_back, 8 if self.plan.goes_back else 0

    def note(self, what: str) -> None:
        self.tally.trace.append(f"{self.tally.steps}: {what}")

    # --- actions

    def _send(self, node: Node) -> None:
        """A producer sends to whoever says that it is master."""
        replica = node.replica
        if replica is None or replica.role is not ReplicaRole.MASTER:
            return
        try:
            if self.plan.timed:
                replica.check_master(node.now_ms)
            replica.check_acks()
        except (MasterFenced, NotEnoughReplicas):
            return
        self._records += 1
        record = self._records.to_bytes(RECORD, "big")
        node.log += record
        node.waiting.append((len(node.log), record))
        node.give(lambda replica: replica.appended(len(node.log), node.now_ms))

    def _pump(self, node: Node) -> None:
        """A master sends some of its log to a follower."""
        if not node.streams or not node.is_master() or node.replica is None:
            return
        link = self.random.choice(list(node.streams))
        offset = node.streams[link]
        size = 64 if self._mending else self.random.randint(0, 3 * RECORD)
        data = bytes(node.log[offset : offset + size])
        frame = bytes_frame(node.replica.epoch, offset, data, node.replica.confirm)
        node.streams[link] = offset + len(data)
        self.send(node.id, link, pb.FollowReply(bytes=frame))

    def _deliver(self, _: Node) -> None:
        if not self._under_way:
            return
        key = self.random.choice(list(self._under_way))
        waiting = self._under_way[key]
        chance = 1.0 if self._mending else self.random.random()
        if chance < 0.01:
            frame = waiting[0]
        elif chance < 0.02 and len(waiting) > 1:
            frame = waiting[1]
            del waiting[1]
        else:
            frame = waiting.popleft()
        if not waiting:
            del self._under_way[key]
        if chance > 0.02 or self.random.random() < 0.5:
            self._hand_over(*key, frame)

    def _hand_over(self, link: int, to: int, frame: Any) -> None:
        node = self.nodes[to]
        if link not in self.links and not isinstance(frame, pb.FollowRequest):
            return
        if isinstance(frame, pb.FollowRequest):
            if frame.HasField("ack"):
                self._old_acks.append((link, to, frame))
            node.give(lambda replica: replica.request(link, frame, node.now_ms))
        elif isinstance(frame, pb.FollowReply):
            node.give(lambda replica: replica.reply(link, frame, node.now_ms))
        else:
            node.give(lambda replica: replica.connected(frame, link, node.now_ms))

    def _repeat_ack(self, _: Node) -> None:
        if self._old_acks:
            link, to, frame = self.random.choice(self._old_acks)
            node = self.nodes[to]
            node.give(lambda replica: replica.request(link, frame, node.now_ms))

    def _do_later(self, _: Node) -> None:
        if self._later:
            at = 0 if self._mending else self.random.randrange(len(self._later))
            self._later.pop(at)()

    def _tick(self, node: Node) -> None:
        self.now_ms += self.random.choice((10, 50, 100, 300))
        node.give(lambda replica: replica.tick(node.now_ms))

    def _ping(self, node: Node) -> None:
        if node.replica is not None:
            self._ask_at(node, lambda: None)

    def _kill(self, node: Node) -> None:
        self.note(f"{node.id} killed")
        node.kill()

    def _cut_power(self, node: Node) -> None:
        self.note(f"{node.id} loses power")
        node.cut_power()

    def _start(self, node: Node) -> None:
        if node.replica is None:
            node.start()

    def _go_back(self, node: Node) -> None:
        """The folder of a stopped replica goes back behind the mark, once."""
        if node.replica is not None or self.hit:
            return
        before = {name: getattr(node, name) for name in FOLDER} | {"log": bytearray(node.log)}
        node.go_back()
        found = self.ensemble.read_mark()
        mark = found.mark if found else EndMark()
        end = len(node.log) // RECORD * RECORD
        if (mark.end <= end and node.epochs.epoch_before(mark.end) == mark.epoch) or not mark.end:
            for name, value in before.items():  # What was written since the last mark may be lost.
                setattr(node, name, value)
            return
        self.hit = node.id
        self.note(f"the folder of {node.id} goes back to {end}")

    def _expire(self, node: Node) -> None:
        """A session ends, while its process goes on or not; or a process opens a new one."""
        if node.session in self.ensemble.sessions:
            silent_ms = self.now_ms - self.heard_ms[node.session]
            if self.plan.timed and silent_ms < SESSION_MS:
                return
            self.note(f"session of {node.id} ends")
            self.ensemble.expire(node.session)
        elif node.replica is not None:
            node.give(lambda replica: replica.session_ended())
            node.open_session()

    def _break_link(self, _: Node) -> None:
        if self.links:
            self.close(self.random.choice(list(self.links)))

    def _hand_over_to(self, node: Node) -> None:
        """Somebody has a master hand over; nobody keeps it from taking sends meanwhile."""
        to = self.random.choice([one for one in self.nodes if one != node.id])
        leaving = self.random.random() < 0.5

        def hand_over(replica: ReplicaCore) -> list[effects.Effect]:
            try:
                return replica.hand_over(to, node.now_ms, leaving=leaving)
            except NotEnoughReplicas:
                return []

        if node.is_master():
            self.note(f"{node.id} hands over to {to}")
            node.give(hand_over)

    def _jump(self, node: Node) -> None:
        node.skew_ms += self.random.choice((500, 5_000, 50_000))

    def may_kill(self) -> None:
        if not self._mending and self.random.random() < 0.01:
            raise _Killed

    # --- links

    def dial(self, node: Node, master: int) -> None:
        self._last_link += 1
        link = self._last_link
        if self.nodes[master].replica is not None:
            self.links[link] = (node.id, master)
            # A frame of its own: the link as the follower learns it.
            self._under_way[link, node.id] = deque([master])

    def send(self, sender: int, link: int, frame: Any) -> None:
        if link in self.links:
            follower, master = self.links[link]
            to = master if sender == follower else follower
            self._under_way.setdefault((link, to), deque()).append(frame)

    def close(self, link: int) -> None:
        """End LINK: both sides hear of it at some time, and what is under way to the master may yet come."""
        ends = self.links.pop(link, None)
        if ends is None:
            return
        self._under_way.pop((link, ends[0]), None)
        if self.random.random() < 0.7:
            self._under_way.pop((link, ends[1]), None)
        for one in ends:
            node, run = self.nodes[one], self.nodes[one].run
            self.later(lambda node=node, run=run: self._tell_closed(node, run, link))  # type: ignore[misc]

    def _tell_closed(self, node: Node, run: int, link: int) -> None:
        if run == node.run:
            node.streams.pop(link, None)
            node.give(lambda replica: replica.link_closed(link))

    def close_links_of(self, one: int) -> None:
        for link in [link for link, ends in self.links.items() if one in ends]:
            self.close(link)

    # --- the registry

    def later(self, act: Callable[[], None]) -> None:
        self._later.append(act)

    def _ask_at(
        self, node: Node, act: Callable[[], None], answer: Callable[[], None] | None = None
    ) -> None:
        """Have ACT done by the registry at some time, if the session lives, and then ANSWER given to the process."""
        session, run, sent_ms = node.session, node.run, node.now_ms

        def arrive() -> None:
            if session not in self.ensemble.sessions:
                return
            self.heard_ms[session] = self.now_ms
            act()
            self.later(hear)

        def hear() -> None:
            if run == node.run and node.replica is not None:
                self._tell_answered(node, sent_ms)
                if answer is not None:
                    answer()

        if self._mending or self.random.random() < 0.9:
            self.later(arrive)

    @staticmethod
    def _tell_answered(node: Node, sent_ms: int) -> None:
        if node.replica is not None:
            node.replica.registry_answered(sent_ms)

    def ask(
        self,
        node: Node,
        effect: effects.ReadRegistry | effects.CompareAndSet | effects.WriteMark | effects.Announce,
    ) -> None:
        session = node.session
        if isinstance(effect, effects.CompareAndSet):
            self._ask_to_set(node, effect)
        elif isinstance(effect, effects.WriteMark):
            self._ask_to_mark(node, effect)
        elif isinstance(effect, effects.Announce):
            live = effect.node
            self._ask_at(node, lambda: void(self.ensemble.announce(session, node.id, live)))
        else:
            found: list[Any] = []

            def read() -> None:
                old = not self._mending and self.random.random() < (
                    0.5 if self.plan.emphasis == "restarts" else 0.1
                )
                behind = self.random.randint(1, 3) if old else 0
                found[:] = [
                    self.ensemble.read(behind),
                    self.ensemble.live(),
                    self.ensemble.read_mark(),
                ]

            def answer() -> None:
                cell, live, mark = found
                node.give(lambda replica: replica.registry_seen(cell, live, node.now_ms, mark))

            self._ask_at(node, read, answer)

    def _ask_to_set(self, node: Node, effect: effects.CompareAndSet) -> None:
        """It is done or refused and answered; or done, now or later, or never, without an answer."""
        session, run, sent_ms = node.session, node.run, node.now_ms

        def apply() -> None:
            version = self._apply(effect)
            if answered and session in self.ensemble.sessions:
                self.heard_ms[session] = self.now_ms
                self.later(lambda: self._hear_of_set(node, run, sent_ms, version))
            elif answered:
                self.later(hear_nothing)

        def hear_nothing() -> None:
            if run == node.run:
                node.give(lambda replica: replica.set_unknown(node.now_ms))

        lost = 0.8 if self.plan.emphasis == "registry" else 0.3
        answered = self._mending or self.random.random() >= lost
        if not answered:
            self.later(hear_nothing)
        if answered or self.random.random() < 0.7:
            self.later(apply)

    def _ask_to_mark(self, node: Node, effect: effects.WriteMark) -> None:
        """It is written or refused and answered; or written, now or later, or never, without an answer."""
        session, run = node.session, node.run
        answered = self._mending or self.random.random() < 0.7

        def tell(found: VersionedEndMark | None) -> None:
            if run == node.run:
                node.give(lambda replica: replica.mark_written(found, node.now_ms))

        def write() -> None:
            version = self.ensemble.write_mark(effect.mark, effect.version)
            if version is not None:
                self.note(f"{node.id} writes {tuple(effect.mark)}")
            if answered and session in self.ensemble.sessions and version is not None:
                self.later(lambda: tell(VersionedEndMark(effect.mark, version)))
            elif answered:
                self.later(lambda: tell(None))

        if not answered:
            self.later(lambda: tell(None))
        if answered or self.random.random() < 0.7:
            self.later(write)

    def _hear_of_set(self, node: Node, run: int, sent_ms: int, version: int | None) -> None:
        if run == node.run and node.replica is not None:
            self._tell_answered(node, sent_ms)
            if version is None:
                node.give(lambda replica: replica.set_refused(node.now_ms))
            else:
                node.give(lambda replica: replica.set_done(version, node.now_ms))

    def _apply(self, effect: effects.CompareAndSet) -> int | None:
        before = self.ensemble.read()
        version = self.ensemble.compare_and_set(effect.cell, effect.version)
        if version is not None and before is not None:
            cell, old = effect.cell, before.cell
            self.note(f"cell {version}: {cell.epoch} {cell.master} {sorted(cell.in_sync)}")
            self.check(
                cell.epoch > old.epoch or (cell.epoch, cell.master) == (old.epoch, old.master),
                "an epoch has two masters, or fell",
            )
        return version

    # --- what is checked

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violated(what)

    def check_alarm(self, node: Node, replica: ReplicaCore) -> None:
        cell = self.ensemble.read()
        is_in_sync = cell is not None and node.id in cell.cell.in_sync
        self.check(
            not (replica.unclean_reason and is_in_sync) or self.hit == node.id,
            f"{node.id} is unclean without need: {replica.unclean_reason}",
        )
        self.check(
            not replica.refuses or self.hit != 0, f"{node.id} refuses its master: {replica.refuses}"
        )

    def check_begins(self, node: Node, epoch: int) -> None:
        self.tally.elections += 1
        self.check(epoch not in self._begun, f"epoch {epoch} is begun again")
        self._begun[epoch] = node.id
        if self.plan.timed:
            self._check_leases()
        if epoch < max(self._begun):
            return  # It was asked for long ago, and is over: nothing can be acknowledged in it.
        for at, record in self.acknowledged.items():
            self.check(
                node.log[at : at + RECORD] == record,
                f"{node.id} begins epoch {epoch} without what was acknowledged at {at}",
            )
        self.check(
            node.log.startswith(self.visible),
            f"{node.id} begins epoch {epoch} without what was shown",
        )

    def _check_leases(self) -> None:
        newest = max(self._begun)
        for node in self.nodes.values():
            if node.replica is not None and node.is_master() and node.replica.epoch < newest:
                serves = node.replica.lease_holds(node.now_ms)
                self.check(not serves, f"{node.id} serves, when epoch {newest} has begun")

    def check_acknowledged(self, node: Node, end: int, record: bytes, replicas: int) -> None:
        assert node.replica is not None
        epoch = node.replica.epoch
        self.check(self._begun.get(epoch) == node.id, f"two replicas acknowledge in epoch {epoch}")
        start = end - RECORD
        on_device = node.settings.acks_need_sync
        copies = sum(
            other.log[start:end] == record and (not on_device or other.synced >= end)
            for other in self.nodes.values()
        )
        self.check(
            copies >= self.plan.min_in_sync and replicas >= self.plan.min_in_sync,
            f"{node.id} acknowledges what {copies} replicas have",
        )
        self.check(self.acknowledged.get(start, record) == record, f"two messages at {start}")
        self.acknowledged[start] = record
        self.tally.acknowledged += 1

    def check_confirmed(self, node: Node, offset: int) -> None:
        shown = bytes(node.log[: offset // RECORD * RECORD])
        self.check(
            shown.startswith(self.visible) or self.visible.startswith(shown),
            f"{node.id} shows at {offset} something else than was shown before",
        )
        self.check(offset <= len(node.log), f"{node.id} confirms beyond its end")
        self.visible = max(self.visible, shown, key=len)

    # --- the end

    def _mend(self) -> None:
        """Nothing fails any more: all must come to have the same, and a new message be acknowledged."""
        self._mending = True
        nodes = list(self.nodes.values())
        for turn in range(600):
            self._mend_for_a_turn()
            if turn % 20 == 19:
                for node in nodes:
                    self._send(node)
            if turn > 40 and turn % 20 == 15 and self._is_whole(nodes):
                return
            if turn == 300 and self._nobody_may_stand():
                return
        cell = self.ensemble.read()
        raise Violated(f"the set does not come to rest: {cell}")

    def _mend_for_a_turn(self) -> None:
        self.now_ms += 50 - self.now_ms % 50
        nodes = list(self.nodes.values())
        for node in nodes:
            if node.replica is None:
                node.start()
            elif node.session not in self.ensemble.sessions:
                node.give(lambda replica: replica.session_ended())
                node.open_session()
            node.give(lambda replica, node=node: replica.tick(node.now_ms))  # type: ignore[misc]
            if self.now_ms % 200 == 0:
                node.give(lambda replica: [effects.ReadRegistry()])
        for _ in range(2_000):
            if not self._under_way and not self._later:
                break
            self._do_later(nodes[0])
            self._deliver(nodes[0])
        else:
            raise Violated("the set does not come to rest: it talks without end")
        for node in nodes:
            node.sync()
            for _ in range(len(node.streams)):
                self._pump(node)

    def _nobody_may_stand(self) -> bool:
        """All that may have what was acknowledged may lack some of it: that is for a person to decide."""
        cell = self.ensemble.read()
        return cell is not None and all(self.nodes[one].unclean for one in cell.cell.in_sync)

    def _is_whole(self, nodes: list[Node]) -> bool:
        cell = self.ensemble.read()
        masters = [node for node in nodes if node.is_master() and not node.waiting]
        logs = {bytes(node.log) for node in nodes}
        whole = cell is not None and cell.cell.in_sync == frozenset(self.nodes) and len(logs) == 1
        if not (whole and len(masters) == 1):
            return False
        log = logs.pop()
        for at, record in self.acknowledged.items():
            self.check(log[at : at + RECORD] == record, f"what was acknowledged at {at} is lost")
        self.check(log.startswith(self.visible), "what was shown is lost")
        return all(node.replica is not None and node.replica.confirm == len(log) for node in nodes)


def void(_: object) -> None:
    """Leave a result alone."""


def walk(plan: Plan) -> Tally:
    """Walk PLAN; raise Violated with the plan, the steps and what was wrong."""
    one = Walk(plan)
    try:
        return one.go()
    except (
        AssertionError,
        ValueError,
    ) as error:  # Violated, or what the product itself holds on to
        tail = "\n  ".join(one.tally.trace[-40:])
        raise Violated(f"{error}\n  {plan}\n  {tail}") from None
