"""The demo's steps: send, read back, look up, inspect, kill. Servers are real processes.

What is claimed is checked against the source: at the queue and offset of every receipt is the very row that was sent.
The kill comes while batches are in flight; the same producer continues when a new process serves the same addresses. It
sends again what was not acknowledged, so that some messages may be stored twice (at least once); those are counted and
shown, and each must be a row of the source.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ...client import Admin, Message, Producer, PullConsumer, Receipts, ReceivedMessage
from ..counted import counted
from ..server_process import ServerProcess
from .flights import COUNT, PACKAGE, Flight, archive, flights
from .later import DELIVERY_MS, PATIENCE_MS, LaterDemo
from .progress import Bar, Board

#: How often something is claimed and checked.
CHECKS: Final = 19

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
    """Runs all steps with a new store in the folder STORE, and LIMIT rows or all."""

    def __init__(self, board: Board, store: Path, limit: int | None) -> None:
        self._board = board
        self._store = store
        self._limit = limit
        self._server: ServerProcess | None = None

    def run(self) -> None:
        """Run all steps; `_board` has the results."""
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
        with Admin(nameserver, request_timeout_ms=PATIENCE_MS) as admin:
            admin.create_topic(FLIGHTS_TOPIC, queues=QUEUES)
        with (
            Producer(nameserver, delivery_timeout_ms=DELIVERY_MS) as producer,
            board.bar("send", len(rows)) as bar,
        ):
            acknowledged = list(_until(_sent(producer, FLIGHTS_TOPIC, rows), bar, len(rows)))
        places = _placed(acknowledged)
        board.check(f"{counted(len(places), 'message')} acknowledged", len(places) == len(rows))
        return places

    def _consume(self, nameserver: str, topic: str, group: str, rows: Rows, places: Places) -> int:
        """Compare every message of TOPIC with its row; return how many have no receipt."""
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
        with Admin(nameserver, request_timeout_ms=PATIENCE_MS) as admin:
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
        on the same addresses, while this one continues sending."""
        board, server = self._board, self._server
        assert server is not None
        board.heading("Send them again, and kill -9 the server in the middle")
        with Admin(server.nameserver, request_timeout_ms=PATIENCE_MS) as admin:
            admin.create_topic(TOPIC_KILLED, queues=QUEUES)
        acknowledged: list[Acknowledged] = []
        with (
            Producer(server.nameserver, delivery_timeout_ms=DELIVERY_MS) as producer,
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
    while bar.count < count and (messages := consumer.poll(timeout_ms=PATIENCE_MS)):
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
    with Admin(nameserver, request_timeout_ms=PATIENCE_MS) as admin:
        return sum(queue.message_count for queue in admin.describe_topic(topic).queues)
