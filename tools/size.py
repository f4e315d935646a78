"""`pocketmq size`: runs a listener on real messages, measures it, and recommends threads, processes and nodes.

T1 is the CPU time of a call, T2 its waiting time. While one call waits, others can run: C · (T1 + T2) / T1 threads keep
C cores busy. Python runs one thread of a process at a time. So a process uses one core, with (T1 + T2) / T1 threads,
and a node of C cores runs C processes. There are enough nodes if their cores are busy for 70 % of the time at the peak:
with 100 % queues would grow without end.

Limit: `THREADS_MAX` threads per process. A listener that waits for much longer should use asyncio.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from ..client import Admin, ReceivedMessage
from ..client.received_message import FetchedRun
from ..proto.errors import InvalidArgument, MessageNotFound
from ..proto.record import NO_HOST, encode_run
from .completion import topic_names
from .counted import counted
from .options import json_option, nameserver_option
from .output import print_json, print_pairs


class Lap(NamedTuple):
    """One call: its duration, the CPU time of its thread, and the error that it raised."""

    wall_s: float
    cpu_s: float
    error: Exception | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None


def lap(call: Callable[[], object]) -> Lap:
    """Run CALL and measure it; an error is part of the result."""
    wall, cpu, error = time.perf_counter(), time.thread_time(), None
    try:
        call()
    except Exception as raised:  # The caller decides what it means.
        error = raised
    return Lap(time.perf_counter() - wall, time.thread_time() - cpu, error)


async def async_lap(call: Callable[[], Awaitable[object]]) -> Lap:
    """Await CALL and measure it. Nothing else must run on the loop."""
    wall, cpu, error = time.perf_counter(), time.thread_time(), None
    try:
        await call()
    except Exception as raised:  # As in `lap`.
        error = raised
    return Lap(time.perf_counter() - wall, time.thread_time() - cpu, error)


Listener = Callable[[ReceivedMessage], object]

THREADS_MAX: Final = 256
USE: Final = 0.7
#: Least CPU time of a call: the clocks of threads are not finer.
_CPU_LEAST_S: Final = 1e-6

#: Modules whose frames are removed from the traceback of a listener.
_OWN_MODULES: Final = frozenset({__name__})
_MESSAGES_MAX: Final = 100_000
#: Measured calls per call that warms up.
_WARM_UP: Final = 10
#: End of the time range of messages.
_EVER_MS: Final = 1 << 52
_RATE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]+)?)(?:/(s|min|h))?")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3_600}


@click.command()
@click.argument("listener", metavar="MODULE:FUNCTION")
@click.option(
    "--topic",
    metavar="TOPIC",
    shell_complete=topic_names,
    help="Topic whose oldest messages are used. Nothing is committed.",
)
@click.option(
    "--body",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File whose content is used as the body of a message.",
)
@click.option(
    "--messages",
    type=click.IntRange(1, _MESSAGES_MAX),
    default=200,
    show_default=True,
    help="Number of measured calls. A tenth as many run first, to warm up.",
)
@click.option(
    "--peak",
    metavar="5000/s",
    help="Peak load in messages per s, min or h, for the number of nodes.",
)
@click.option(
    "--cores",
    type=click.IntRange(1, 10_000),
    help="CPU cores of a node.  [default: those of this machine]",
)
@json_option("one document")
@nameserver_option
def size(
    listener: str,
    *,
    messages: int,
    peak: str | None,
    cores: int | None,
    as_json: bool,
    nameserver: str,
    **source: Any,
) -> None:
    """Measure a listener and recommend threads, processes and nodes.

    Calls MODULE:FUNCTION with received messages, one after the other, as a push consumer does. The function runs with
    all its effects. It may be a coroutine function.

    \b
    Example: pocketmq size orders:handle --topic orders --peak 5000/s

    Exit code 1: every call failed; the first error is printed.
    """
    topic: str | None = source["topic"]
    if (topic is None) == (source["body"] is None):
        raise click.UsageError("Give either --topic or --body.")
    function = load(listener)
    peak_per_s = None if peak is None else rate_of(peak)
    queues: int | None = None
    if topic is None:
        found = [message_of(source["body"].read_bytes())]
    else:
        queues, found = _stored(nameserver, topic, messages)
    laps = measure(function, found, messages)
    errors = [one.error for one in laps if one.error is not None]
    if errors:
        _tell_error(listener, errors, len(laps))
    if len(errors) == len(laps):  # How fast a listener fails says nothing about its work.
        raise click.exceptions.Exit(1)
    told = advice(laps, cores=cores or os.cpu_count() or 1, peak_per_s=peak_per_s)
    if as_json:
        print_json(
            {"listener": listener} | asdict(told) | {"members": told.members, "queues": queues}
        )
    else:
        print_pairs(words(listener, told, topic, queues))


def _tell_error(listener: str, errors: Sequence[Exception], calls: int) -> None:
    """Show the first of ERRORS as Python would, from the listener's own frame on."""
    first = errors[0]
    frames = first.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in _OWN_MODULES:
        frames = frames.tb_next
    click.echo("".join(traceback.format_exception(type(first), first, frames)), err=True, nl=False)
    click.echo(
        f"pocketmq: {listener} failed in {len(errors):,} of {counted(calls, 'call')}", err=True
    )


def _stored(nameserver: str, topic: str, count: int) -> tuple[int, list[ReceivedMessage]]:
    """Return how many queues TOPIC has, and COUNT of its messages, the oldest; fewer if there are not so many."""
    with Admin(nameserver) as admin:
        queues = len(admin.describe_topic(topic).queues)
        found = admin.lookup_time(topic, 0, _EVER_MS, max_messages=count)
    if not found:
        raise MessageNotFound(
            f"topic {topic!r} holds no message: send some, or give a body with --body", topic=topic
        )
    return queues, found


def load(name: str) -> Listener:
    """Return the function that NAME says, "module:function"; modules of the present folder are found."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise InvalidArgument(f"{name!r} is not module:function", field="listener", value=name)
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"{name}: {error}", field="listener", value=name) from error
    finally:
        sys.path.remove(os.getcwd())
    if not callable(found):
        raise InvalidArgument(
            f"{name} is {type(found).__name__}, not a function", field="listener", value=name
        )
    return found  # type: ignore[no-any-return]


def rate_of(text: str) -> float:
    """Return the messages per second that TEXT says: "5000/s", "90000/min", "5000"."""
    match = _RATE.fullmatch(text.replace(" ", "").replace(",", ""))
    if match is None or not float(match[1]):
        raise InvalidArgument(
            f"--peak {text[:64]!r}: write 5000/s, 90000/min or 1000000/h",
            field="peak",
            value=text[:64],
        )
    return float(match[1]) / _SECONDS[match[2] or "s"]


def message_of(body: bytes) -> ReceivedMessage:
    """Return a message with BODY as a consumer gets it."""
    records, _ = encode_run("advise", 0, [(body, b"")], born_timestamp_ms=0, born_host=NO_HOST)
    return FetchedRun("", records).messages()[0]


def measure(function: Listener, found: Sequence[ReceivedMessage], calls: int) -> list[Lap]:
    """Return how long CALLS calls of FUNCTION take, on the messages FOUND in turn, once it is warm."""
    extra = -(-calls // _WARM_UP)
    chosen = [found[number % len(found)] for number in range(calls + extra)]
    if inspect.iscoroutinefunction(function):
        return asyncio.run(_measure_async(function, chosen))[extra:]
    return [lap(lambda one=message: function(one)) for message in chosen][extra:]  # type: ignore[misc]


async def _measure_async(
    function: Callable[[ReceivedMessage], Awaitable[object]], chosen: Sequence[ReceivedMessage]
) -> list[Lap]:
    return [await async_lap(lambda one=message: function(one)) for message in chosen]  # type: ignore[misc]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is proposed for a node of `cores` cores, and for a peak if there is one."""

    calls: int
    failed: int
    #: T1 and T2, on average.
    cpu_s: float
    waiting_s: float
    slowest_s: float
    cores: int
    #: Of one process.
    threads: int
    #: Is (T1 + T2) / T1 more than a process may have?
    is_cut: bool
    #: Messages per second of a node whose cores are busy for 70 % of the time.
    node_per_s: float
    peak_per_s: float | None
    nodes: int | None

    @property
    def members(self) -> int:
        """Processes in all; each needs a queue of its own."""
        return self.cores * (self.nodes or 1)


def advice(laps: Sequence[Lap], *, cores: int, peak_per_s: float | None = None) -> Advice:
    """Return what LAPS, of which there is one at least, propose."""
    cpu_s = max(sum(lap.cpu_s for lap in laps) / len(laps), _CPU_LEAST_S)
    wall_s = max(sum(lap.wall_s for lap in laps) / len(laps), cpu_s)
    ideal = _ceil(wall_s / cpu_s)
    threads = min(ideal, THREADS_MAX)
    process_per_s = min(USE / cpu_s, threads / wall_s)
    node_per_s = cores * process_per_s
    return Advice(
        calls=len(laps),
        failed=sum(lap.failed for lap in laps),
        cpu_s=cpu_s,
        waiting_s=wall_s - cpu_s,
        slowest_s=max(lap.wall_s for lap in laps),
        cores=cores,
        threads=threads,
        is_cut=ideal > THREADS_MAX,
        node_per_s=node_per_s,
        peak_per_s=peak_per_s,
        nodes=None if peak_per_s is None else max(1, _ceil(peak_per_s / node_per_s)),
    )


def _ceil(value: float) -> int:
    """Return VALUE rounded up, without errors of floating point."""
    return math.ceil(round(value, 6))


def words(listener: str, advice: Advice, topic: str | None, queues: int | None) -> dict[str, str]:
    """Return ADVICE for people."""
    total = advice.cores * advice.threads
    found = {
        "listener": f"{listener}, {counted(advice.calls, 'call')} measured, {advice.failed:,} failed",
        "T1": f"{advice.cpu_s * 1e3:.3f} ms of CPU time per message",
        "T2": f"{advice.waiting_s * 1e3:.3f} ms of waiting per message;"
        f" the slowest call took {advice.slowest_s * 1e3:.1f} ms",
        "threads": f"{advice.threads} in each process: (T1 + T2) / T1 keep a core busy"
        + ("; more would be needed: write it for asyncio" if advice.is_cut else ""),
        "processes": f"{advice.cores} on a node of {counted(advice.cores, 'core')}, each runs one thread at a time:"
        f" {counted(total, 'thread')}, C·(T1 + T2) / T1",
        "a node does": f"{advice.node_per_s:,.0f} messages/s with its cores busy for {USE:.0%} of the time",
    }
    if advice.nodes is not None:
        found["nodes"] = (
            f"{advice.nodes:,} for {advice.peak_per_s:,.0f} messages/s: {counted(advice.members, 'process')}"
        )
    if queues is not None:
        enough = (
            "enough"
            if queues >= advice.members
            else f"too few: {advice.members - queues} would get none; use {advice.members}"
        )
        found["queues"] = f"{topic} has {queues} for {counted(advice.members, 'process')}, {enough}"
    return found
