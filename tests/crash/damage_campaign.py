"""Flip bits and spoil sectors of stores that stopped cleanly and are verified, serve them, and look at every message.

    python -m tests.crash.damage_campaign --rounds 2000 --seed 1

One small store of several log, queue and index files is made; each round damages a copy of it in one to three places,
while it is stopped or while it is open, and reads all of it: by queue, through a filter for each tag, by key, by log
offset and by id. Then it appends to every queue, opens the store again and reads once more. What must hold:

* Every message that the damage to the log did not hit is read, whole, at its number, and found by its key.
* No wrong body is read by any way, and no message at the number, of the topic or of the queue of another.
* Every message that is lost was reported: by recovery, by the count of damaged records, or by the read's count.
* Every queue is readable to its end, its numbers continue, and recovery changes nothing the second time.

What no checksum of Apache RocketMQ's format covers is left out: flags, times, hosts and properties of a record that was
hit, and the number of the newest of a queue. So are look-ups by key where the index was hit, and filters where a tags
code was hit while the store was open, or together with the CRCs of the queue files (pocketmq/verified.json).
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from pocketmq.broker.messages.filters import TagChoice
from pocketmq.proto.record import Record, decode_record
from pocketmq.store.message_store import MessageStore

from ..runs import Hand, make_run, open_store

QUEUES: Final = [("A", 0), ("A", 1), ("Beta", 0)]
TAGS: Final = ("red", "blue")
RUNS: Final = 60
LOG_FILE: Final = 8192
SECTOR: Final = 512
SETTINGS: Final[dict[str, Any]] = {
    "log_file_size_bytes": LOG_FILE,
    "queue_file_size_bytes": 1000,
    "index_slots": 50,
    "index_entries": 120,
}
#: Where the damage goes, and how often.
PLACES: Final = {
    "commitlog": 8,
    "consumequeue": 8,
    "index": 2,
    "checkpoint": 1,
    "pocketmq": 1,
}

Name = tuple[str, int]


@dataclass
class Base:
    """A store that stopped cleanly: its messages by queue, in order, and their bytes."""

    home: Path
    held: dict[Name, list[Record]] = field(default_factory=dict)
    raw: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def make(cls, home: Path, seed: int) -> Base:
        rng = random.Random(seed)
        clock = Hand()
        base = cls(home)
        store = open_store(home, now_ms=clock, **SETTINGS)
        for number in range(RUNS):
            clock.now_ms += rng.randrange(5)
            topic, queue = rng.choice(QUEUES)
            # Many records of one size: a flipped bit of an offset then often leads to another one.
            bodies = [rng.randbytes(rng.choice((26, 26, 150))) for _ in range(rng.randrange(1, 5))]
            properties = {"KEYS": f"k{number}", "TAGS": rng.choice(TAGS)}
            store.append(make_run(topic, queue, bodies, properties))
        for name in QUEUES:
            end = store.queue_bounds(*name)[1]
            found = [store.read_queue(*name, at, 1, 1).records for at in range(end)]
            base.held[name] = [decode_record(one) for one in found]
            base.raw.update({decode_record(one).log_offset: one for one in found})
        store.close()
        open_store(home, now_ms=clock, **SETTINGS).close()
        return base


@dataclass
class Round:
    """One round over BASE in HOME, which is as the seed SEED says."""

    base: Base
    home: Path
    seed: str
    complaints: list[str] = field(default_factory=list)
    hits: list[str] = field(default_factory=list)
    #: Ranges of the log that were hit.
    hit_log: list[range] = field(default_factory=list)
    lost_messages: int = 0
    _hit_kinds: set[str] = field(default_factory=set)
    _is_live: bool = False
    _told: int = 0

    def run(self) -> None:
        rng = random.Random(self.seed)
        shutil.copytree(self.base.home, self.home)
        self._is_live = rng.random() < 0.4
        if not self._is_live:
            self._damage(rng)
        store = open_store(self.home, now_ms=Hand(), **SETTINGS)
        if self._is_live:
            self._damage(rng)
        self._look(store, "first")
        self._append(store)
        store.close()
        store = open_store(self.home, now_ms=Hand(), **SETTINGS)
        self._look(store, "again")
        store.close()
        (self.home / "pocketmq" / "verified.json").unlink(missing_ok=True)
        open_store(self.home, now_ms=Hand(), **SETTINGS).close()
        store = open_store(self.home, now_ms=Hand(), **SETTINGS)
        if store.recovery.findings:
            self._complain(f"a recovery after a recovery: {store.recovery.text()}")
        self._look(store, "after everything was read")
        store.close()

    # ---- damage

    def _damage(self, rng: random.Random) -> None:
        for _ in range(rng.choice((1, 1, 2, 3))):
            kind = rng.choices(list(PLACES), list(PLACES.values()))[0]
            files = sorted(path for path in (self.home / kind).rglob("*") if path.is_file())
            if (self.home / kind).is_file():
                files = [self.home / kind]
            path = rng.choice(files)
            data = bytearray(path.read_bytes())
            at = rng.randrange(max(1, len(data.rstrip(b"\0"))))
            match rng.randrange(4):
                case 0:
                    hit = range(at // SECTOR * SECTOR, min(len(data), (at // SECTOR + 1) * SECTOR))
                    data[hit.start : hit.stop] = bytes(len(hit))
                case 1:
                    hit = range(at // SECTOR * SECTOR, min(len(data), (at // SECTOR + 1) * SECTOR))
                    data[hit.start : hit.stop] = rng.randbytes(len(hit))
                case _:
                    hit = range(at, at + 1)
                    data[at] ^= 1 << rng.randrange(8)
            with open(path, "r+b") as file:
                file.seek(hit.start)
                file.write(data[hit.start : hit.stop])
            self._hit_kinds.add(kind)
            self.hits.append(f"{path.relative_to(self.home)} {hit.start}-{hit.stop}")
            if kind == "commitlog":
                begin = int(path.name)
                self.hit_log.append(range(begin + hit.start, begin + hit.stop))

    def _is_hit(self, record: Record) -> bool:
        end = record.log_offset + record.total_size
        return any(hit.start < end and record.log_offset < hit.stop for hit in self.hit_log)

    # ---- looking

    def _look(self, store: MessageStore, when: str) -> None:
        told = len(store.recovery.findings) + store.damages.count
        for name, records in self.base.held.items():
            found, lost = self._read(store, name, None)
            self._compare(found, name, when)
            self._told += lost + told
            missing = [one for one in records if one.queue_offset not in found]
            if when == "first":
                self.lost_messages += len(missing)
            for record in missing:
                place = f"{name} {record.queue_offset} {when}"
                if not self._is_hit(record):
                    self._complain(f"{place}: a sound message is not read")
                elif not self._told:
                    self._complain(f"{place}: lost, and not reported")
            self._look_by_tags(store, name, when)
            for record in records:
                self._look_one(store, record, when)

    def _look_by_tags(self, store: MessageStore, name: Name, when: str) -> None:
        is_unchecked = "pocketmq" in self._hit_kinds or (self._is_live and when == "first")
        if is_unchecked and "consumequeue" in self._hit_kinds:
            return
        for tag in TAGS:
            found, _ = self._read(store, name, TagChoice((tag,)))
            self._compare(found, name, when)
            for record in self.base.held[name]:
                wanted = record.properties["TAGS"] == tag and not self._is_hit(record)
                if wanted and record.queue_offset not in found:
                    self._complain(f"{name} {record.queue_offset} {when}: not read by its tag")

    def _look_one(self, store: MessageStore, record: Record, when: str) -> None:
        place = f"{record.topic}/{record.queue_id} {record.queue_offset} {when}"
        for way, data in (
            ("log offset", store.read_at(record.log_offset)),
            ("id", store.by_message_id(record.message_id)),
        ):
            if data is not None and decode_record(data).body not in (record.body, b"new"):
                self._complain(f"{place}: a wrong body by {way}")
            if data is None and not self._is_hit(record):
                self._complain(f"{place}: not found by {way}")
        if self._is_hit(record) or "index" in self._hit_kinds:
            return
        if record.log_offset not in store.lookup(record.topic, record.properties["KEYS"]):
            self._complain(f"{place}: not found by its key")

    def _read(
        self, store: MessageStore, name: Name, choice: TagChoice | None
    ) -> tuple[dict[int, bytes], int]:
        """Read a queue, or what a filter wants of it: records by number, and how many are lost."""
        candidates = None if choice is None else choice.candidates
        found: dict[int, bytes] = {}
        lost = 0
        at, end = store.queue_bounds(*name)
        while at < end:
            seen = store.read_queue(*name, at, 7, 2000, candidates)
            begin = 0
            for number, size in zip(seen.queue_offsets.tolist(), seen.sizes.tolist(), strict=True):
                if number in found:
                    self._complain(f"{name} {number}: read twice")
                found[number] = seen.records[begin : begin + size]
                begin += size
            lost += seen.lost
            if seen.next_offset <= at:
                self._complain(f"{name}: not readable after {at}")
                break
            at = seen.next_offset
        return found, lost

    def _compare(self, found: dict[int, bytes], name: Name, when: str) -> None:
        """Complain of each record that is not the one that was appended at its number."""
        for number, data in found.items():
            if number >= len(self.base.held[name]):
                last = self.base.held[name][-1]
                renumbered = self._is_hit(last) and decode_record(data).body == last.body
                if decode_record(data).body != b"new" and not renumbered:
                    self._complain(f"{name} {number} {when}: it was never sent")
                continue
            record, there = self.base.held[name][number], decode_record(data)
            if self._is_hit(record) and there.body == b"new":
                continue  # The log ended before it; then its place and its number are given again.
            is_same = (there.topic, there.queue_id, there.body) == (*name, record.body)
            if not is_same or there.log_offset != record.log_offset:
                self._complain(f"{name} {number} {when}: another message, or a wrong body")
            elif not self._is_hit(record) and data != self.base.raw[record.log_offset]:
                self._complain(f"{name} {number} {when}: a record that was not hit has changed")

    def _append(self, store: MessageStore) -> None:
        for name, records in self.base.held.items():
            first = store.append(make_run(*name, [b"new"])).first_queue_offset
            tail_is_hit = self._is_hit(records[-1])
            if first != len(records) and not tail_is_hit:
                self._complain(f"{name}: the next number is {first}, not {len(records)}")

    def _complain(self, what: str) -> None:
        self.complaints.append(f"{self.seed}: {what} ({'; '.join(self.hits)})")


def run_rounds(folder: Path, *, rounds: int, seed: int) -> tuple[list[str], int]:
    """Run ROUNDS in FOLDER; return the complaints, and how many messages the damage cost."""
    base = Base.make(folder / "base", seed)
    complaints: list[str] = []
    lost = 0
    for number in range(rounds):
        one = Round(base, folder / "round", f"{seed}-{number}")
        try:
            one.run()
        except Exception as error:
            complaints.append(f"{one.seed}: {error!r} ({'; '.join(one.hits)})")
        complaints += one.complaints
        lost += one.lost_messages
        shutil.rmtree(one.home)
    return complaints, lost


def main() -> int:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # What is found damaged is no news here.
    click.echo(f"seed {arguments.seed}, {arguments.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        complaints, lost = run_rounds(Path(folder), rounds=arguments.rounds, seed=arguments.seed)
    outcome = {
        "seed": arguments.seed,
        "rounds": arguments.rounds,
        "lost_messages": lost,
        "complaints": complaints[:20],
        "complaints_count": len(complaints),
    }
    click.echo(json.dumps(outcome, indent=1))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
