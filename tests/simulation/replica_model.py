"""The protocol of replica sets as a model: every state within some steps, or random walks; with rules taken away.

The model knows nothing of the product's code. A state is a tuple: the cell, and for each replica its log, epoch, role
and, of a master, what it knows of its set and of the others' logs. Messages that were sent once stay under way for
ever, so that they come late, twice or never; the same holds for what was asked of the cell. Logs hold one number a
record, which is the epoch it was written in: with one master an epoch, the same epoch at the same place is the same
record. An election is one step, a change of the set two; nothing is lost from a log.

Exhaustive is the search over two replicas: all states within DEPTH steps, each visited once and remembered by its hash,
with `RECORDS` records in a log and `EPOCHS` epochs at the most.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

RECORDS: Final = 2
EPOCHS: Final = 3
VARIANTS: Final = (
    "",
    "elects anybody",
    "acknowledges by the smaller set",
    "acknowledges by the confirmed set",
    "believes acks of any epoch",
    "forgets a proposal",
    "enters behind",
    "enters below the start",
    "follows an older epoch",
    "acknowledges below the minimum",
)


class Peer(NamedTuple):
    """One replica. Of a master: its set, what it proposed, the version that this was based on, and the acks heard."""

    log: tuple[int, ...] = ()
    epoch: int = 0
    master: bool = False
    live: bool = True
    confirmed: frozenset[int] = frozenset()
    proposed: frozenset[int] | None = None
    version: int = 0
    start: int = 0
    acks: tuple[int, ...] = ()


class State(NamedTuple):
    """The cell (version, epoch, master, set), the replicas, and what is under way."""

    version: int
    epoch: int
    master: int
    in_sync: frozenset[int]
    peers: tuple[Peer, ...]
    #: (replica, epoch, end): acks that were ever sent.
    sent: frozenset[tuple[int, int, int]] = frozenset()
    #: (version, epoch, master, set): changes that were ever asked for.
    asked: frozenset[tuple[int, int, int, frozenset[int]]] = frozenset()
    acknowledged: tuple[int, ...] = ()


class Lost(AssertionError):
    """A state that must never be."""


class Model:
    """The rules, but for the one that VARIANT breaks, for COUNT replicas."""

    def __init__(
        self, count: int, min_in_sync: int, variant: str, records: int, epochs: int
    ) -> None:
        self._all = range(count)
        self._records = records
        self._epochs = epochs
        self._least = min_in_sync
        self._variant = variant
        self.acknowledgements = 0

    def first(self) -> State:
        everyone = frozenset(self._all)
        acks = (0,) * len(self._all)
        followers = [Peer(epoch=1, acks=acks)] * (len(self._all) - 1)
        master = Peer(epoch=1, master=True, confirmed=everyone, acks=acks)
        return State(0, 1, 0, everyone, (master, *followers))

    def next_states(self, state: State) -> Iterator[State]:
        """Yield what STATE may become in one step. Raises Lost."""
        for i in self._all:
            peer = state.peers[i]
            yield self._with(state, i, live=not peer.live)
            if peer.master:
                yield from self._steps_of_master(state, i)
            else:
                yield from self._steps_of_follower(state, i)
            yield from self._elections(state, i)
            yield from self._news(state, i)
        for asked in state.asked:
            version, epoch, master, in_sync = asked
            if version == state.version:
                yield state._replace(
                    version=version + 1, epoch=epoch, master=master, in_sync=in_sync
                )

    def _steps_of_master(self, state: State, i: int) -> Iterator[State]:
        peer = state.peers[i]
        if len(peer.log) < self._records:
            yield self._acknowledge(self._with(state, i, log=(*peer.log, peer.epoch)), i)
        for follower, epoch, end in state.sent:
            is_told = epoch == peer.epoch or self._variant == "believes acks of any epoch"
            end = min(end, len(peer.log))
            if is_told and end > peer.acks[follower]:
                acks = tuple(end if j == follower else old for j, old in enumerate(peer.acks))
                yield self._acknowledge(self._with(state, i, acks=acks), i)
        if peer.proposed is None:
            for other in self._all:
                if other != i and (wanted := self._wanted(peer, i, other)) is not None:
                    asked = (peer.version, peer.epoch, i, wanted)
                    proposing = self._with(state, i, proposed=wanted)
                    yield self._acknowledge(proposing._replace(asked=state.asked | {asked}), i)

    def _wanted(self, peer: Peer, i: int, other: int) -> frozenset[int] | None:
        """Return the set without OTHER if it is in it, with it if it may enter, else None."""
        if other in peer.confirmed:
            return peer.confirmed - {other}
        has = peer.acks[other]
        shown = min([len(peer.log), *(peer.acks[one] for one in peer.confirmed if one != i)])
        start = 0 if self._variant == "enters below the start" else peer.start
        if has >= max(start, shown) or self._variant == "enters behind":
            return peer.confirmed | {other}
        return None

    def _acknowledge(self, state: State, i: int) -> State:
        """Return STATE with what master I may acknowledge now. Raises Lost if another record is there already."""
        peer = state.peers[i]
        counted = peer.confirmed | (peer.proposed or frozenset())
        if self._variant == "acknowledges by the confirmed set":
            counted = peer.confirmed
        elif self._variant == "acknowledges by the smaller set" and peer.proposed is not None:
            counted = min(peer.proposed, counted, key=len)
        enough = len(peer.confirmed) >= self._least and len(counted) >= self._least
        if not enough and self._variant != "acknowledges below the minimum":
            return state
        has = min([len(peer.log), *(peer.acks[one] for one in counted if one != i)])
        if has <= peer.start:
            return state
        mine = peer.log[:has]
        known = state.acknowledged
        if mine[: len(known)] != known[: len(mine)]:
            raise Lost(f"{i} acknowledges {mine}, and {known} was")
        if has <= len(known):
            return state
        copies = sum(one.log[:has] == mine for one in state.peers)
        if copies < self._least:
            raise Lost(f"{i} acknowledges what {copies} have")
        self.acknowledgements += 1
        return state._replace(acknowledged=mine)

    def _steps_of_follower(self, state: State, i: int) -> Iterator[State]:
        """A record from a master of its epoch, and the ack of it."""
        peer = state.peers[i]
        for j in self._all:
            master = state.peers[j]
            if j == i or not master.master or master.epoch != peer.epoch:
                continue
            ack = (i, peer.epoch, len(peer.log))
            if len(peer.log) < len(master.log):
                log = (*peer.log, master.log[len(peer.log)])
                got = self._with(state, i, log=log)
                yield got._replace(sent=got.sent | {(i, peer.epoch, len(log))})
            elif ack not in state.sent:
                yield state._replace(sent=state.sent | {ack})

    def _elections(self, state: State, i: int) -> Iterator[State]:
        """Who is in the set stands when the session of the master is over; its own knowledge of the cell is new."""
        peer = state.peers[i]
        if state.peers[state.master].live or not peer.live or state.master == i:
            return
        if i not in state.in_sync and self._variant != "elects anybody":
            return
        if state.epoch == self._epochs:
            return
        kept = {one for one in state.in_sync - {state.master} if state.peers[one].live}
        in_sync = frozenset({i, *kept})
        known = state.acknowledged
        if peer.log[: len(known)] != known:
            raise Lost(f"{i} is elected with {peer.log}, and {known} was acknowledged")
        yield self._with(
            state._replace(
                version=state.version + 1, epoch=state.epoch + 1, master=i, in_sync=in_sync
            ),
            i,
            master=True,
            epoch=state.epoch + 1,
            confirmed=in_sync,
            proposed=None,
            version=state.version + 1,
            start=len(peer.log),
            acks=(0,) * len(self._all),
        )

    def _news(self, state: State, i: int) -> Iterator[State]:
        """The cell is read, or a master of a newer epoch is heard of and followed."""
        peer = state.peers[i]
        forgets = self._variant == "forgets a proposal" and peer.proposed is not None
        is_news = state.version > peer.version or forgets
        if peer.master and peer.epoch == state.epoch and is_news:
            read = self._with(
                state, i, confirmed=state.in_sync, proposed=None, version=state.version
            )
            yield self._acknowledge(read, i)
        for j in self._all:
            master = state.peers[j]
            is_newer = master.epoch > peer.epoch or (
                self._variant == "follows an older epoch"
                and master.epoch < peer.epoch
                and not peer.master
            )
            if j != i and master.master and is_newer:
                yield self._with(
                    state,
                    i,
                    master=False,
                    epoch=master.epoch,
                    log=peer.log[: common(peer.log, master.log)],
                    confirmed=frozenset(),
                    proposed=None,
                    version=0,
                    start=0,
                    acks=(0,) * len(self._all),
                )

    @staticmethod
    def _with(state: State, i: int, **changes: object) -> State:
        peers = list(state.peers)
        peers[i] = peers[i]._replace(**changes)  # type: ignore[arg-type]
        return state._replace(peers=tuple(peers))


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    return same


def _canonical(state: State, variant: str = "") -> State:
    """Return STATE without what can have no effect any more: requests and acks of what is over."""
    asked = frozenset(one for one in state.asked if one[0] >= state.version)
    epochs = {peer.epoch for peer in state.peers if peer.master}
    sent = frozenset(one for one in state.sent if one[1] in epochs)
    if variant == "believes acks of any epoch":
        return state._replace(asked=asked)
    return state._replace(asked=asked, sent=sent)


def search(
    depth: int, min_in_sync: int = 1, variant: str = "", states_max: int = 10**8
) -> tuple[int, int]:
    """Visit all states of two replicas within DEPTH steps; return how many there are, and how deep they go.

    Raises Lost. Fewer levels than DEPTH: there are no more states.
    """
    model = Model(2, min_in_sync, variant, RECORDS, EPOCHS)
    layer = {_canonical(model.first(), variant)}
    seen = set(map(hash, layer))
    for level in range(1, depth + 1):
        found = set()
        for state in layer:
            for following in model.next_states(state):
                small = _canonical(following, variant)
                if (key := hash(small)) not in seen:
                    seen.add(key)
                    found.add(small)
        if not found or len(seen) > states_max:
            return len(seen), level - 1
        layer = found
    return len(seen), depth


def roam(seed: int, replicas: int, steps: int, min_in_sync: int = 1, variant: str = "") -> int:
    """Walk at random for STEPS; return how often something was acknowledged. Raises Lost."""
    random = Random(seed)
    model = Model(replicas, min_in_sync, variant, 3 * RECORDS, 3 * EPOCHS)
    state = model.first()
    for _ in range(steps):
        state = _canonical(random.choice(list(model.next_states(state))), variant)
    return model.acknowledgements
