"""The crash matrix: every state that a crash can leave of a session, and what must hold in each.

A state is named by session, operation and way, for example "sync-1 212 names". `python -m tests.crash.crash_matrix`
tries them; arguments choose, and a name alone replays it. In each state:

    it starts       the store opens, and a broker starts
    kept            acknowledged messages are where the acknowledgement said, byte for byte: all after a kill, those on
                    the device after a power cut
    nothing new     no message is altered, invented or out of order; what is missing in between is reported, and never
                    after a kill
    derived         queues and index follow from the log
    offsets         no group is ahead of a queue, nor of what it asked to commit
    settled         a second start changes nothing and finds nothing
    delivered       (broker) delayed messages and commits that were acknowledged arrive, and no group skips a message
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from pocketmq.proto.record import Record
from pocketmq.store.config import StoreConfig
from pocketmq.store.format.state_tables import parse_consumer_offsets
from pocketmq.store.message_store import MessageStore
from pocketmq.store.state_files import StateFile

from ..runs import Hand, records_of
from ..simulation.cluster import SimulatedBroker, SimulatedDisk, cluster_of
from ..simulation.virtual_loop import loop_clock, run
from .crash_session import (
    EVENTS,
    FAILING,
    LONGEST_MS,
    ORDERS,
    POPPING,
    PULLING,
    PUSHING,
    TOPICS,
    Known,
    popped,
    pulled,
    session_config,
    watched_session,
)
from .crash_states import WatchedDisk, is_kill, make

#: The sessions by name: settings of their stores.
SESSIONS: Final[dict[str, dict[str, Any]]] = {
    "async": {},
    "sync": {"flush": "sync"},
    "no-index": {"index": False, "log_file_size_bytes": 16_384},
}


class CrashState(NamedTuple):
    """The state of SESSION, run from SEED, before operation NUMBER, left in WAY."""

    session: str
    seed: int
    number: int
    way: str

    def __str__(self) -> str:
        return f"{self.session}-{self.seed} {self.number} {self.way}"

    @classmethod
    def parse(cls, text: str) -> CrashState:
        """Return the state of the name TEXT."""
        session, number, way = text.split(" ", 2)
        name, _, seed = session.rpartition("-")
        return cls(name, int(seed), int(number), way)


#: Called with the state, its folder, and what was known at that moment.
Look = Callable[[CrashState, Path, Known], None]


def enumerate_states(
    session: str,
    seed: int,
    look: Look,
    *,
    wants: Callable[[CrashState], bool],
    any_seeds: int = 2,
    folder: Path | None = None,
) -> int:
    """Call LOOK for each state of SESSION that is wanted; return the number of all states.

    The session and its states are kept in FOLDER, without one where the system keeps temporary files. After an error of
    LOOK no further state is looked at, and the error is raised at the end.
    """
    count = 0
    failed: Exception | None = None
    with tempfile.TemporaryDirectory(prefix="crash-", dir=folder) as name:
        place = Path(name)

        def watch(disk: WatchedDisk, known: Known) -> None:
            nonlocal count, failed
            number = disk.operations
            seeds = (seed * 1_000_003 + number * any_seeds + one for one in range(any_seeds))
            for way in disk.ways(seeds):
                count += 1
                state = CrashState(session, seed, number, way)
                if wants(state):
                    left = place / "left"
                    make(disk.state(way), str(left))
                    try:
                        look(state, left, known)
                    except Exception as error:
                        # Raised here, it would reach the broker as an error of its disk.
                        failed = error
                        disk.rest()
                        return
                    finally:
                        shutil.rmtree(left)

        run(watched_session(place / "session", watch, seed=seed, **SESSIONS[session]))
    if failed is not None:
        raise failed
    return count


def check_store(state: CrashState, folder: Path, known: Known) -> None:
    """Raise AssertionError if one of the rules is broken in FOLDER."""
    store = _opened(state, folder, known)
    try:
        found = _records(store)
        _check_kept(store, found, known, killed=is_kill(state.way))
        _check_found(store, found)
        _check_offsets(store, folder, known)
    finally:
        store.close()
    again = _opened(state, folder, known)
    try:
        assert again.recovery.clean, "the second start is not clean"
        assert not again.recovery.findings, f"the second start finds {again.recovery.findings}"
        assert _records(again) == found, "the second start changes messages"
    finally:
        again.close()


def _opened(state: CrashState, folder: Path, known: Known) -> MessageStore:
    config = session_config(folder, **SESSIONS[state.session])
    return MessageStore.open(config, disk=SimulatedDisk(), now_ms=Hand(known.now_ms))


def _records(store: MessageStore) -> dict[tuple[str, int], list[Record]]:
    return {name: records_of(store, *name) for name in store.queue_names()}


def _check_kept(
    store: MessageStore,
    found: dict[tuple[str, int], list[Record]],
    known: Known,
    *,
    killed: bool,
) -> None:
    sent = known.sent()
    bodies: dict[tuple[str, int, int], bytes] = {}
    for (topic, queue), records in found.items():
        numbers = [one.queue_offset for one in records]
        assert numbers == sorted(set(numbers)), f"{topic}/{queue} is out of order: {numbers}"
        first, end = store.queue_bounds(topic, queue)
        if numbers != list(
            range(first, end)
        ):  # A part of the unsynced end may be lost, and is reported.
            assert not killed, f"gaps in {topic}/{queue} after a kill: {numbers}"
            assert store.recovery.findings, f"gaps in {topic}/{queue} are not reported: {numbers}"
        for one in records:
            assert one.crc_ok, f"{topic}/{queue} {one.queue_offset} is damaged"
            bodies[topic, queue, one.queue_offset] = one.body
            assert topic not in TOPICS or one.body in sent, f"{one.body[:20]!r} was never sent"
    for kept in known.promised(killed=killed):
        body = bodies.get((kept.topic, kept.queue, kept.offset))
        assert body == kept.body, (
            f"lost: {kept._replace(body=kept.body[:20])}, there is {body!r:.40}"
        )


def _check_found(store: MessageStore, found: dict[tuple[str, int], list[Record]]) -> None:
    """Each record of a topic is found by its key, and its entry has the code of its tag."""
    for (topic, queue), records in found.items():
        if topic not in TOPICS:
            continue
        for record in records:
            key = record.properties.get("KEYS")
            if key is not None and store.config.index:
                assert record.log_offset in store.lookup(topic, key), f"{key} is not found"
            assert store.read_at(record.log_offset) is not None, (
                f"{topic}/{queue} is not in the log"
            )


def _check_offsets(store: MessageStore, folder: Path, known: Known) -> None:
    file = StateFile(SimulatedDisk(), str(folder), "consumerOffset.json")
    loaded = file.load(parse_consumer_offsets)
    if loaded.value is None:
        return
    asked = known.committed_up_to()
    for key, queues in loaded.value.offsets.items():
        topic, _, group = key.partition("@")
        for queue, offset in queues.items():
            end = store.queue_bounds(topic, queue)[1]
            assert offset <= end, f"{group} is at {offset} of {topic}/{queue}, which ends at {end}"
            if (group, topic, queue) in asked:
                assert offset <= asked[group, topic, queue], f"{group} is ahead in {topic}/{queue}"


def check_broker(state: CrashState, folder: Path, known: Known) -> None:
    """Start a broker on the store FOLDER; raise AssertionError if a group misses a message.

    It runs in a thread of its own: the session's loop, which is in the middle of an operation, is in this one.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(run, _served(state, folder, known)).result()


async def _served(state: CrashState, folder: Path, known: Known) -> None:
    class Broker(SimulatedBroker):
        def store_config(self, folder: Path) -> StoreConfig:
            return session_config(folder, **SESSIONS[state.session])

    await loop_clock().sleep_until(known.now_ms)
    async with cluster_of(
        folder.parent, seed=state.seed, brokers=1, name_servers=1, broker_type=Broker
    ) as cluster:
        kept: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        killed = is_kill(state.way)
        for one in known.promised(killed=killed):
            kept[one.topic].add(one.body)
        if due := known.due(killed=killed):
            await cluster.sleep(LONGEST_MS + 10_000)
            kept[EVENTS] |= set(due)
        by_group = {
            (PULLING, ORDERS): kept[ORDERS] - known.got(PULLING),
            (PUSHING, ORDERS): kept[ORDERS] - known.got(PUSHING),
            ("new", ORDERS): kept[ORDERS],
            ("new", EVENTS): kept[EVENTS],
        }
        for (group, topic), bodies in by_group.items():
            if topic not in known.topics():
                continue
            missing = {body for body in bodies if not body.startswith(FAILING)} - await pulled(
                cluster, group, topic
            )
            assert not missing, f"{group} misses {[body[:20] for body in missing]} of {topic}"
        if EVENTS in known.topics():
            missing = kept[EVENTS] - known.got(POPPING) - await popped(cluster)
            assert not missing, f"{POPPING} misses {[body[:20] for body in missing]}"


class Wanted:
    """Chooses states: every STEP-th of all, beginning with number FIRST."""

    def __init__(self, step: int, first: int) -> None:
        self._step = step
        self._left = first

    def __call__(self, state: CrashState) -> bool:
        self._left -= 1
        if self._left >= 0:
            return False
        self._left = self._step - 1
        return True


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if every rule held in every state."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.crash_matrix", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("state", nargs="*", help="the words of one state: only that")
    parser.add_argument("--seeds", type=int, default=1, help="sessions of each kind (%(default)s)")
    parser.add_argument("--step", type=int, default=1, help="try every n-th state (%(default)s)")
    parser.add_argument(
        "--serve",
        type=int,
        default=20,
        help="start a broker on every n-th state tried (%(default)s)",
    )
    parser.add_argument(
        "--any", type=int, default=2, help="drawn states per operation (%(default)s)"
    )
    options = parser.parse_args(arguments)
    for name in ("step", "serve"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}: use 1 or more")
    logging.disable(logging.CRITICAL)
    if options.state:
        return _replay(CrashState.parse(" ".join(options.state)), options.any)
    failures, tried, began_s = 0, 0, time.monotonic()

    def look(state: CrashState, folder: Path, known: Known) -> None:
        nonlocal failures, tried
        tried += 1
        if problem := problem_of(state, folder, known, serve=tried % options.serve == 0):
            failures += 1
            _say(f"FAILED {state}: {problem}")

    for session, seed in _sessions(options.seeds):
        wants = Wanted(options.step, random.Random(seed).randrange(options.step))
        count = enumerate_states(session, seed, look, wants=wants, any_seeds=options.any)
        _say(f"{session}-{seed}: {count} states")
    took_s = time.monotonic() - began_s
    _say(f"{tried} states tried in {took_s:.0f} s, {failures} failed")
    return 1 if failures else 0


def _sessions(seeds: int) -> Iterator[tuple[str, int]]:
    for seed in range(1, seeds + 1):
        for session in SESSIONS:
            yield session, seed


def check(state: CrashState, folder: Path, known: Known, *, serve: bool) -> None:
    """Raise an error if a rule is broken in FOLDER. SERVE: start a broker, too."""
    if serve:
        copy = folder.parent / "served" / "broker-a"
        shutil.copytree(folder, copy)
        try:
            check_broker(state, copy, known)
        finally:
            shutil.rmtree(copy.parent)
    check_store(state, folder, known)


def problem_of(state: CrashState, folder: Path, known: Known, *, serve: bool) -> str:
    """Return what is wrong in FOLDER; "" if nothing is."""
    try:
        check(state, folder, known, serve=serve)
    except Exception as error:  # Whatever it is, the other states are tried as well.
        return f"{type(error).__name__}: {error}"
    return ""


def _replay(wanted: CrashState, any_seeds: int) -> int:
    """Check the state WANTED; an error ends the program with its traceback."""
    found = []

    def look(state: CrashState, folder: Path, known: Known) -> None:
        found.append(state)
        check(state, folder, known, serve=True)

    enumerate_states(wanted.session, wanted.seed, look, wants=wanted.__eq__, any_seeds=any_seeds)
    _say(f"{wanted}: every rule holds" if found else f"{wanted}: there is no such state")
    return 0 if found else 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
