"""The protocol of replica sets as a model, with folders that go back: older copies are restored, synced ends are lost.

It extends `replica_model.py` by processes and folders. As there, a state is a tuple, a log holds one number per record
(the epoch that wrote it), and messages that were sent once stay under way for ever. New steps:

    stop, start     a process ends at any moment, and starts again with what its folder has
    power cut       of a stopped replica: records that were not synced are gone; this is legitimate
    copy            a folder is copied at any moment
    disaster        the folder of a stopped replica becomes its older copy, or its log loses its synced end
    person          a person elects a replica with `--accept-loss`

The *mark* in the registry says how far acknowledged records reach: (end, epoch of the record before the end). A replica
that does not reach it at a start is unclean. A follower *refuses* a master with which it has less in common than it
knows to be acknowledged (`known`). VARIANTS break one part of these rules each.

Disasters are of one KIND per walk: "none"; "old" loses something that the mark has; "any" may also lose what was
acknowledged since the mark was written. The model writes the mark rarely, or never.

A step raises Lost with one of these codes:

    P1   a replica is elected that lacks an acknowledged record
    P2   a master acknowledges other records than were acknowledged before
    P3   a follower cuts an acknowledged record
    F    a false alarm: a replica that lost nothing is unclean, is kept from the election, or refuses its master
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from .replica_model import Lost, common

RECORDS: Final = 5
EPOCHS: Final = 7
STEPS: Final = 90
VARIANTS: Final = (
    "",
    "has no mark",
    "has no mark and cuts",
    "cuts what is acknowledged",
    "compares ends only",
    "marks what is written",
    "looks only at the election",
    "follows a deposed master",
    "believes the old connection",
    "keeps the mark that a person gave up",
)
#: How often a step is taken, compared with others.
_WEIGHTS: Final = {
    "session": 0.4, "stop": 0.35, "copy": 0.5, "person": 0.1, "tail": 1.0, "restore": 2.0,
}  # fmt: skip
_FOLDER: Final = ("log", "synced", "epoch", "known", "known_epoch")


class Peer(NamedTuple):
    """One replica. The first five fields are its folder, the others end with its process."""

    log: tuple[int, ...] = ()
    synced: int = 0
    epoch: int = 1
    #: The acknowledged end that it was told, and the epoch in which it was.
    known: int = 0
    known_epoch: int = 0
    up: bool = True
    live: bool = True
    master: bool = False
    unclean: bool = False
    refused: bool = False
    confirmed: frozenset[int] = frozenset()
    proposed: frozenset[int] | None = None
    version: int = 0
    start: int = 0
    acks: tuple[int, ...] = ()
    #: The epoch of the cell when this process started.
    floor: int = 0


class State(NamedTuple):
    """The registry, the replicas, and what is under way."""

    version: int
    epoch: int
    master: int
    in_sync: frozenset[int]
    peers: tuple[Peer, ...]
    #: (end, epoch of the record before it)
    mark: tuple[int, int] = (0, 0)
    #: What replicas knew in an epoch below this one refuses nothing: a person gave it up.
    accepted: int = 0
    #: (replica, epoch, end): acks that were ever sent.
    sent: frozenset[tuple[int, int, int]] = frozenset()
    #: (version, epoch, master, set): changes that were ever asked for.
    asked: frozenset[tuple[int, int, int, frozenset[int]]] = frozenset()
    acknowledged: tuple[int, ...] = ()
    #: The copy of each folder, as _FOLDER names its fields.
    copies: tuple[tuple[Any, ...] | None, ...] = ()
    #: The replicas whose folder went back.
    hit: frozenset[int] = frozenset()
    persons: int = 0
    #: What masters of older epochs acknowledge is given up with them.
    person_epoch: int = 0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a walk is about."""

    replicas: int = 2
    min_in_sync: int = 1
    #: Of disasters: "none", "old" or "any". One per walk.
    kind: str = "old"
    variant: str = ""
    #: The setting `mark: each`: the mark is written before each answer.
    each: bool = False
    #: How often a person elects a replica.
    persons: int = 0
    records: int = RECORDS
    epochs: int = EPOCHS


class FolderModel:
    """The rules of SETUP, but for the one that its variant breaks."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._all = range(setup.replicas)
        self._variant = setup.variant
        self._no_acks = (0,) * setup.replicas
        self._has_mark = not setup.variant.startswith("has no mark")
        self._refuses = setup.variant not in ("has no mark and cuts", "cuts what is acknowledged")
        self.acknowledgements = 0
        self.found_out = 0
        #: A walk goes on after an election that loses what only kind "any" may lose.
        self.lost_an_election = False

    def first(self) -> State:
        everyone = frozenset(self._all)
        follower = Peer(acks=self._no_acks)
        master = follower._replace(master=True, confirmed=everyone)
        peers = (master, *[follower] * (len(everyone) - 1))
        return State(0, 1, 0, everyone, peers, copies=(None,) * len(everyone))

    def next_states(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what STATE may become in one step, with the step's name. Raises Lost."""
        for i in self._all:
            peer = state.peers[i]
            if peer.up:
                yield from self._steps_of_process(state, i)
            else:
                yield "start", self._start(state, i)
                if peer.synced < len(peer.log):
                    yield "power", _with(state, i, log=peer.log[: peer.synced])
                yield from self._disasters(state, i)
            is_copied = state.copies[i] is not None or i in state.hit
            if self._setup.kind != "none" and not is_copied and len(peer.log) < self._setup.records:
                copies = list(state.copies)
                copies[i] = tuple(getattr(peer, name) for name in _FOLDER)
                yield "copy", state._replace(copies=tuple(copies))
        for version, epoch, master, in_sync in state.asked:
            if version == state.version:
                following = state._replace(epoch=epoch, master=master, in_sync=in_sync)
                yield "set", following._replace(version=version + 1)

    def _steps_of_process(self, state: State, i: int) -> Iterator[tuple[str, State]]:
        peer = state.peers[i]
        yield "session", _with(state, i, live=not peer.live)
        stopped = self._out_of_office() | {"up": False, "live": False, "refused": False}
        yield "stop", _with(state, i, **stopped)
        if peer.synced < len(peer.log):
            synced = _with(state, i, synced=len(peer.log))
            yield "sync", self._acknowledge(synced, i) if peer.master else synced
        yield from self._steps_of_master(state, i) if peer.master else self._follow(state, i)
        yield from self._elections(state, i)
        yield from self._news(state, i)

    def _out_of_office(self) -> dict[str, object]:
        return {
            "master": False, "confirmed": frozenset(), "proposed": None, "version": 0, "start": 0,
            "acks": self._no_acks,
        }  # fmt: skip

    # ------------------------------------------------------------ folders

    def _disasters(self, state: State, i: int) -> Iterator[tuple[str, State]]:
        """Yield each way in which the folder of I may go back, if that loses an acknowledged record."""
        if self._setup.kind == "none" or state.hit:
            return
        peer, copy = state.peers[i], state.copies[i]
        ways: list[tuple[str, dict[str, Any]]] = []
        if copy is not None:
            ways.append(("restore", dict(zip(_FOLDER, copy, strict=True))))
        ways.extend(
            ("tail", {"log": peer.log[:end], "synced": min(end, peer.synced)})
            for end in range(len(peer.log))
        )
        for name, changes in ways:
            log, was = changes["log"], state.acknowledged
            loses = log[: len(was)] != was and peer.log[: len(was)] == was
            if loses and (self._setup.kind == "any" or not _reaches(log, state.mark)):
                yield name, _with(state, i, **changes)._replace(hit=frozenset({i}))

    def _passes(self, log: tuple[int, ...], state: State) -> bool:
        """Does LOG reach the mark, as far as the variant looks?"""
        if not self._has_mark:
            return True
        if self._variant == "compares ends only":
            return len(log) >= state.mark[0]
        return _reaches(log, state.mark)

    def _start(self, state: State, i: int) -> State:
        peer, unclean = state.peers[i], state.peers[i].unclean
        looks = self._variant != "looks only at the election"
        if looks and not self._passes(peer.log, state):
            if i in state.in_sync and not unclean:
                self._check_alarm(state, i, "is unclean at its start")
            self.found_out += i in state.hit
            unclean = True
        if self._variant != "believes the old connection":
            state = self._forget(state, i)
        floor = 0 if self._variant == "follows a deposed master" else state.epoch
        end = len(peer.log)
        started = {"known": min(peer.known, end), "synced": end, "floor": floor}
        return _with(state, i, up=True, live=True, unclean=unclean, **started)

    def _forget(self, state: State, i: int) -> State:
        """Return STATE without what I said over its last connection."""
        for j in self._all:
            if state.peers[j].master:
                acks = tuple(0 if k == i else old for k, old in enumerate(state.peers[j].acks))
                state = _with(state, j, acks=acks)
        return state._replace(sent=frozenset(one for one in state.sent if one[0] != i))

    def _check_alarm(self, state: State, i: int, what: str) -> None:
        """Raise Lost if nothing was lost that could explain WHAT became of I."""
        if not state.hit and not state.persons:
            raise Lost(f"F {i} {what}")

    # ------------------------------------------------------------ masters

    def _steps_of_master(self, state: State, i: int) -> Iterator[tuple[str, State]]:
        peer = state.peers[i]
        if len(peer.log) < self._setup.records:
            yield "append", _with(state, i, log=(*peer.log, peer.epoch))
        for follower, epoch, end in state.sent:
            end = min(end, len(peer.log))
            if epoch == peer.epoch and end > peer.acks[follower]:
                acks = tuple(end if j == follower else old for j, old in enumerate(peer.acks))
                yield "ack", self._acknowledge(_with(state, i, acks=acks), i)
        if peer.proposed is None:
            for other in self._all:
                wanted = self._wanted(state, i, other)
                if wanted is not None:
                    asked = state.asked | {(peer.version, peer.epoch, i, wanted)}
                    proposing = _with(state._replace(asked=asked), i, proposed=wanted)
                    yield "propose", self._acknowledge(proposing, i)
        everywhere = self._everywhere(peer, i)
        if self._variant == "marks what is written":
            everywhere = len(peer.log)
        if everywhere > state.mark[0] and peer.epoch == state.epoch:
            yield "mark", state._replace(mark=(everywhere, peer.log[everywhere - 1]))

    def _wanted(self, state: State, i: int, other: int) -> frozenset[int] | None:
        """Return the set without OTHER if it is in it, with it if it may enter, else None."""
        peer, node = state.peers[i], state.peers[other]
        if other == i:
            return None
        if other in peer.confirmed:
            return peer.confirmed - {other}
        if not node.live or node.unclean or peer.acks[other] < self._least(state, i):
            return None
        return peer.confirmed | {other}

    def _least(self, state: State, i: int) -> int:
        """Return how much a follower of I must have to enter the set, or to be clean again."""
        peer = state.peers[i]
        marked = state.mark[0] if peer.epoch == state.epoch else 0
        return max(peer.start, self._everywhere(peer, i), peer.known, marked)

    @staticmethod
    def _everywhere(peer: Peer, i: int) -> int:
        """Return how much all of the maximal set of master I have on disk in its epoch."""
        counted = peer.confirmed | (peer.proposed or frozenset())
        return min([peer.synced, *(peer.acks[one] for one in counted if one != i)])

    def _acknowledge(self, state: State, i: int) -> State:
        """Return STATE with what master I may acknowledge now. Raises Lost."""
        peer, least = state.peers[i], self._setup.min_in_sync
        end = self._everywhere(peer, i)
        is_given_up = peer.epoch < state.person_epoch
        if len(peer.confirmed) < least or end <= peer.start or is_given_up:
            return state
        mine, was = peer.log[:end], state.acknowledged
        if mine[: len(was)] != was[: len(mine)]:
            raise Lost(f"P2 {i} acknowledges {mine}, and {was} was")
        state = _with(state, i, known=max(end, peer.known), known_epoch=peer.epoch)
        if end <= len(was):
            return state
        self.acknowledgements += 1
        mark = (end, mine[-1]) if self._setup.each else state.mark
        return state._replace(acknowledged=mine, mark=mark)

    # ------------------------------------------------------------ followers

    def _follow(self, state: State, i: int) -> Iterator[tuple[str, State]]:
        """A record from a master, an ack, the acknowledged end, and the end of being unclean."""
        peer = state.peers[i]
        if peer.refused or peer.epoch < peer.floor:
            return
        for j in self._all:
            master = state.peers[j]
            is_master = j != i and master.up and master.master and master.epoch == peer.epoch
            if not is_master or peer.log != master.log[: len(peer.log)]:
                continue
            if len(peer.log) < len(master.log):
                yield "record", _with(state, i, log=(*peer.log, master.log[len(peer.log)]))
            ack = (i, peer.epoch, peer.synced)
            if peer.synced and ack not in state.sent:
                yield "send", state._replace(sent=state.sent | {ack})
            told = min(master.known, len(peer.log)) if master.known_epoch == master.epoch else 0
            if told > peer.known:
                yield "told", _with(state, i, known=told, known_epoch=peer.epoch)
            if peer.unclean and peer.synced >= self._least(state, j):
                yield "clean", _with(state, i, unclean=False)

    def _news(self, state: State, i: int) -> Iterator[tuple[str, State]]:
        """A master reads the cell; or a replica hears of a master of a newer epoch, and follows or refuses it."""
        peer = state.peers[i]
        is_news = peer.epoch == state.epoch and state.version > peer.version
        if peer.master and is_news and state.master == i:
            read = {"confirmed": state.in_sync, "proposed": None, "version": state.version}
            yield "read", self._acknowledge(_with(state, i, **read), i)
        for j in self._all:
            master = state.peers[j]
            is_newer = master.epoch > peer.epoch or (peer.refused and master.epoch == peer.epoch)
            if j == i or not master.master or not is_newer or master.epoch < peer.floor:
                continue
            known = 0 if self._gave_up(state, peer) else peer.known
            down = self._out_of_office() | {"epoch": master.epoch}
            end = common(peer.log, master.log)
            if self._refuses and end < known:
                self._check_alarm(state, i, "refuses its master")
                if not peer.refused:
                    yield "refuse", _with(state, i, refused=True, **down)
                continue
            self._check_cut(state, i, end)
            down |= {"log": peer.log[:end], "synced": min(peer.synced, end)}
            yield "follow", _with(state, i, known=min(known, end), refused=False, **down)

    def _gave_up(self, state: State, peer: Peer) -> bool:
        """Did a person give up what PEER knows to be acknowledged?"""
        return peer.known_epoch < state.accepted

    @staticmethod
    def _check_cut(state: State, i: int, end: int) -> None:
        """Raise Lost if the log of I, cut at END, loses an acknowledged record that was synced."""
        peer, was = state.peers[i], state.acknowledged
        is_lost = peer.log[: end + 1] == was[: end + 1] and peer.synced > end
        if end < min(len(peer.log), len(was)) and is_lost:
            raise Lost(f"P3 {i} cuts {peer.log} at {end}, and {was} was acknowledged")

    # ------------------------------------------------------------ elections

    def _elections(self, state: State, i: int) -> Iterator[tuple[str, State]]:
        """A replica of the set becomes master; or any, if a person says so."""
        peer, old = state.peers[i], state.peers[state.master]
        is_gone = not old.live or old.unclean or (state.master == i and not peer.master)
        if not peer.live or not is_gone or peer.master or state.epoch >= self._setup.epochs:
            return
        if state.persons < self._setup.persons:
            yield "person", self._accept_loss(state, i)
        if i not in state.in_sync or peer.unclean:
            return
        if not self._passes(peer.log, state):
            self._check_kept_out(state, i)
            return
        was = state.acknowledged
        if peer.log[: len(was)] != was:
            if self._setup.kind != "any" or self._setup.each:
                raise Lost(f"P1 {i} is elected with {peer.log}, and {was} was acknowledged")
            self.lost_an_election = True
        others = state.in_sync - {state.master}
        kept = {one for one in others if state.peers[one].live and not state.peers[one].unclean}
        yield "elect", self._elect(state, i, frozenset({i, *kept}))

    def _check_kept_out(self, state: State, i: int) -> None:
        """Raise Lost if I is kept from the election by the mark, and its folder never went back."""
        self._check_alarm(state, i, "is kept from the election")
        if i not in state.hit and self._setup.kind != "any":
            raise Lost(f"F {i} lost nothing, and is kept from the election")

    def _accept_loss(self, state: State, i: int) -> State:
        """Return STATE after a person had I elected: the mark is lowered to what I has."""
        peer = state.peers[i]
        end = common(peer.log, state.acknowledged)
        elected = self._elect(state, i, frozenset({i}))
        elected = elected._replace(
            persons=state.persons + 1,
            person_epoch=elected.epoch,
            acknowledged=state.acknowledged[:end],
        )
        elected = _with(elected, i, known=min(peer.known, end))
        if self._variant == "keeps the mark that a person gave up":
            return elected
        mark = state.mark
        if not _reaches(peer.log, mark):
            end = min(mark[0], end)
            mark = (end, peer.log[end - 1]) if end else (0, 0)
        return elected._replace(mark=mark, accepted=elected.epoch)

    def _elect(self, state: State, i: int, in_sync: frozenset[int]) -> State:
        epoch, version, end = state.epoch + 1, state.version + 1, len(state.peers[i].log)
        elected = state._replace(version=version, epoch=epoch, master=i, in_sync=in_sync)
        office = {"epoch": epoch, "confirmed": in_sync, "version": version, "start": end}
        return _with(
            elected, i, master=True, proposed=None, acks=self._no_acks, refused=False, synced=end,
            unclean=False, **office,
        )  # fmt: skip


def _with(state: State, i: int, **changes: object) -> State:
    peers = list(state.peers)
    peers[i] = peers[i]._replace(**changes)  # type: ignore[arg-type]
    return state._replace(peers=tuple(peers))


def _reaches(log: tuple[int, ...], mark: tuple[int, int]) -> bool:
    """Has LOG a record that ends at the mark or beyond, and is the one before the mark of its epoch?"""
    end, epoch = mark
    return end == 0 or (len(log) >= end and log[end - 1] == epoch)


def _canonical(state: State) -> State:
    """Return STATE without requests and acks that can have no effect any more."""
    epochs = {peer.epoch for peer in state.peers if peer.master}
    return state._replace(
        asked=frozenset(one for one in state.asked if one[0] >= state.version),
        sent=frozenset(one for one in state.sent if one[1] in epochs),
    )


def roam(seed: int, setup: Setup, steps: int = STEPS) -> FolderModel:
    """Walk at random for STEPS; return the model, which has counted. Raises Lost."""
    model = FolderModel(setup)
    _walk(model, seed, steps)
    return model


def _walk(model: FolderModel, seed: int, steps: int) -> None:
    random, state = Random(seed), model.first()
    for _ in range(steps):
        options = list(model.next_states(state))
        weights = [_WEIGHTS.get(name, 1.5) for name, _ in options]
        state = _canonical(random.choices(options, weights)[0][1])


def first_loss(setup: Setup, seeds: range) -> tuple[int, str] | None:
    """Return the first of SEEDS whose walk raises Lost, and why; None: none does."""
    for seed in seeds:
        try:
            roam(seed, setup)
        except Lost as error:
            return seed, str(error)
    return None


def count_losses(setup: Setup, seeds: range) -> Counter[str]:
    """Return how many of SEEDS lose something, by code."""
    found: Counter[str] = Counter()
    for seed in seeds:
        model, codes = FolderModel(setup), set()
        try:
            _walk(model, seed, STEPS)
        except Lost as error:
            codes.add(str(error).partition(" ")[0])
        if model.lost_an_election:
            codes.add("P1")
        found.update(codes)
    return found


def search(setup: Setup, depth: int) -> tuple[int, int]:
    """Visit all states within DEPTH steps; return how many there are, and how deep they go. Raises Lost."""
    model = FolderModel(setup)
    layer = {_canonical(model.first())}
    seen = set(map(hash, layer))
    for level in range(1, depth + 1):
        found = set()
        for state in layer:
            for _, following in model.next_states(state):
                small = _canonical(following)
                if (key := hash(small)) not in seen:
                    seen.add(key)
                    found.add(small)
        if not found:
            return len(seen), level - 1
        layer = found
    return len(seen), depth
