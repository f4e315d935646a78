"""`pocketmq top`: the rates of topics, the lag of groups and its cause, and the owners of queues, continuously.

Rates are averages over the last `_WINDOW_MS`: consumers commit every few seconds, and a shorter time would show bursts.
A queue counts as stalled after `_STALLED_MS`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ..client import Admin, GroupStatus, Queue
from ..client.config import ReadFrom
from ..proto.clock import Clock, SystemClock
from ..proto.errors import NotAuthorized, TopicNotFound
from ..proto.time_text import format_duration, format_instant, parse_duration
from . import terminal
from .counted import counted
from .hidden_names import HiddenNames
from .lag.live import cluster_groups
from .lag.rows import LagRow, LagVerdict
from .lag.snapshots import LagProgress, LagSnapshot, compare
from .options import (
    COUNT,
    WAIT_MAX_MS,
    json_option,
    nameserver_option,
    pattern_options,
    read_from_of,
    read_from_option,
)
from .output import print_json
from .stores.names import KnownNames

if TYPE_CHECKING:
    from rich.console import RenderableType

_INTERVAL: Final = "2s"
_WINDOW_MS: Final = 15_000
_STALLED_MS: Final = 10_000
_SHOWN_MAX: Final = 20
_WIDTH: Final = 160
#: The worst first.
_SEVERITY: Final = (
    LagVerdict.QUEUE_MISSING,
    LagVerdict.OFFSET_PAST_END,
    LagVerdict.EXPIRED_UNREAD,
    LagVerdict.STALLED,
    LagVerdict.RETRYING,
    LagVerdict.LAGGING,
    LagVerdict.DEAD_LETTERS,
    LagVerdict.IN_FLIGHT,
    LagVerdict.NEVER_COMMITTED,
    LagVerdict.DELAYED,
    LagVerdict.OK,
)
_STYLES: Final = {
    LagVerdict.OK: "green",
    LagVerdict.DELAYED: "green",
    LagVerdict.IN_FLIGHT: "cyan",
    LagVerdict.NEVER_COMMITTED: "cyan",
    LagVerdict.LAGGING: "yellow",
    LagVerdict.RETRYING: "yellow",
}


@click.command()
@pattern_options
@click.option(
    "--interval",
    default=_INTERVAL,
    show_default=True,
    metavar="2s",
    help="Time between two reports, 100ms or longer.",
)
@click.option("--iterations", type=COUNT, help="Number of reports, then stop.  [default: for ever]")
@click.option("--once", is_flag=True, help="Print one report, after --interval, and stop.")
@read_from_option("report the queues of groups; they may be a moment behind")
@json_option("one document per report")
@nameserver_option
def top(
    *,
    topic: str,
    group: str,
    interval: str,
    iterations: int | None,
    once: bool,
    as_json: bool,
    **brokers: Any,
) -> None:
    """Show live rates, lag and queue owners.

    Prints three tables, the worst rows first: topics with their rates, groups with their lag and its cause, and queues
    with their owners. On a terminal they are redrawn until Ctrl-C.

    \b
    Example: pocketmq top --group 'billing*' --interval 5s
    """
    interval_ms = parse_duration(interval, field="--interval", max_ms=WAIT_MAX_MS)
    if interval_ms < 100:
        raise click.UsageError(
            f"--interval {interval} is too short: give 100ms or more, such as 2s."
        )
    if once and iterations is not None:
        raise click.UsageError("Give only one of --once and --iterations.")
    wanted = _Wanted(topic, group, read_from_of(brokers["read_from"]))
    with Admin(brokers["nameserver"]) as admin:
        known = KnownNames()
        known.add_cluster(admin)
        known.check(topics=[topic], groups=[group])
        hidden = HiddenNames()
        looks = _looks(admin, wanted, hidden, interval_ms, SystemClock())
        boards = _boards(islice(looks, 2 if once else iterations))
        _show(list(boards)[-1:] if once else boards, as_json=as_json)
        hidden.warn_once(admin)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLook:
    """Answers of brokers at AT_MS. MESSAGES: by topic, those stored now, and the number of all that ever were."""

    at_ms: int
    brokers: int
    messages: Mapping[str, tuple[int, int]]
    groups: Sequence[tuple[GroupStatus, Sequence[LagRow]]]

    @property
    def rows(self) -> list[LagRow]:
        return [row for _, rows in self.groups for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLine:
    """A topic: messages that are there, and how many come a second; None: not known yet."""

    topic: str
    messages: int
    in_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """A group: the worst of its verdicts, and the sums of its queues."""

    group: str
    readers: int
    lag: int
    verdict: LagVerdict
    because: str
    in_per_s: float | None
    read_per_s: float | None
    catch_up_s: float | None
    skipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterBoard:
    """What is shown of one moment, over the SECONDS before it."""

    at_ms: int
    seconds: float
    brokers: int
    topics: Sequence[TopicLine]
    groups: Sequence[GroupLine]
    queues: Sequence[tuple[LagProgress, str]]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON shows it."""
        return {
            "at_ms": self.at_ms,
            "seconds": self.seconds,
            "brokers": self.brokers,
            "topics": [
                {"topic": one.topic, "messages": one.messages, "in_per_s": one.in_per_s}
                for one in self.topics
            ],
            "groups": [
                {
                    "group": one.group,
                    "readers": one.readers,
                    "lag": one.lag,
                    "verdict": str(one.verdict),
                    "because": one.because,
                    "in_per_s": one.in_per_s,
                    "read_per_s": one.read_per_s,
                    "catch_up_s": one.catch_up_s,
                    "skipped": one.skipped,
                }
                for one in self.groups
            ],
            "queues": [one.to_json() | {"owner": owner or None} for one, owner in self.queues],
        }


class _Wanted(NamedTuple):
    """Patterns of topics and groups, and which replicas look at these."""

    topic: str
    group: str
    read_from: ReadFrom


def _boards(looks: Iterable[ClusterLook]) -> Iterator[ClusterBoard]:
    """Yield what each of LOOKS found, compared with the oldest one of the window."""
    window: deque[ClusterLook] = deque()
    for now in looks:
        while len(window) > 1 and window[1].at_ms <= now.at_ms - _WINDOW_MS:
            window.popleft()
        yield board(window[0] if window else None, now)
        window.append(now)


def _looks(
    admin: Admin, wanted: _Wanted, hidden: HiddenNames, interval_ms: int, clock: Clock
) -> Iterator[ClusterLook]:
    """Yield what is found now, and again every INTERVAL_MS."""
    while True:
        looked_ms = clock.now_ms()
        yield _look(admin, wanted, hidden, clock.unix_ms())
        asyncio.run(clock.sleep_until(looked_ms + interval_ms))


def _look(admin: Admin, wanted: _Wanted, hidden: HiddenNames, at_ms: int) -> ClusterLook:
    topic, group, read_from = wanted
    messages: dict[str, tuple[int, int]] = {}
    for one in admin.topics():
        if fnmatchcase(one.name, topic):
            try:
                queues = admin.describe_topic(one.name).queues
            except TopicNotFound:
                continue  # It was deleted meanwhile.
            except NotAuthorized:
                hidden.topics.add(one.name)
                continue
            total = sum(queue.max_offset for queue in queues)
            messages[one.name] = sum(queue.message_count for queue in queues), total
    groups = [
        (report, [row for row in rows if fnmatchcase(row.facts.topic, topic)])
        for report, rows in cluster_groups(admin, hidden, group, read_from)
    ]
    return ClusterLook(at_ms=at_ms, brokers=len(admin.brokers()), messages=messages, groups=groups)


def board(before: ClusterLook | None, now: ClusterLook) -> ClusterBoard:
    """Return the report on NOW, with rates since BEFORE. Pure."""
    elapsed_ms = 0 if before is None else now.at_ms - before.at_ms
    rows = now.rows
    snapshot = None if before is None else LagSnapshot.of(before.rows, before.at_ms)
    progress = compare(snapshot, rows, now.at_ms)
    if elapsed_ms < _STALLED_MS:  # Too short: consumers did not have to commit yet.
        progress = [replace(one, row=row) for one, row in zip(progress, rows, strict=True)]
    by_group: dict[str, list[LagProgress]] = defaultdict(list)
    for one in progress:
        by_group[one.row.facts.group].append(one)
    owners = {
        (report.name, one.queue): one.owner for report, _ in now.groups for one in report.queues
    }
    lines = [_group_line(report, by_group[report.name]) for report, _ in now.groups]
    return ClusterBoard(
        at_ms=now.at_ms,
        seconds=elapsed_ms / 1000,
        brokers=now.brokers,
        topics=sorted(
            (_topic_line(name, before, now) for name in now.messages),
            key=lambda line: (-(line.in_per_s or 0), -line.messages, line.topic),
        ),
        groups=sorted(
            lines, key=lambda line: (_SEVERITY.index(line.verdict), -line.lag, line.group)
        ),
        queues=sorted(
            ((one, owners.get(_place(one.row), "")) for one in progress),
            key=lambda item: (
                _SEVERITY.index(item[0].row.verdict),
                -(item[0].row.lag or 0),
                item[0].row.key,
            ),
        ),
    )


def _place(row: LagRow) -> tuple[str, Queue]:
    return row.facts.group, Queue(row.facts.topic, row.broker_name, row.facts.queue_id)


def _topic_line(name: str, before: ClusterLook | None, now: ClusterLook) -> TopicLine:
    messages, total = now.messages[name]
    rate = None
    if before is not None and name in before.messages and now.at_ms > before.at_ms:
        came = total - before.messages[name][1]
        rate = came * 1000 / (now.at_ms - before.at_ms) if came >= 0 else None
    return TopicLine(topic=name, messages=messages, in_per_s=rate)


def _group_line(report: GroupStatus, found: Sequence[LagProgress]) -> GroupLine:
    worst = min(found, key=lambda one: _SEVERITY.index(one.row.verdict), default=None)
    lag = sum(one.row.lag or 0 for one in found)
    read, written = _sum(one.read_per_s for one in found), _sum(one.written_per_s for one in found)
    catch_up = None
    if not lag:
        catch_up = 0.0
    elif read is not None and written is not None and read > written:
        catch_up = lag / (read - written)
    return GroupLine(
        group=report.name,
        readers=len(report.members) + len(report.clients),
        lag=lag,
        verdict=LagVerdict.OK if worst is None else worst.row.verdict,
        because="it reads no queue" if worst is None else worst.row.reasons[0],
        in_per_s=written,
        read_per_s=read,
        catch_up_s=catch_up,
        skipped=sum(one.row.facts.skipped or 0 for one in found),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _show(boards: Iterable[ClusterBoard], *, as_json: bool) -> None:
    """Print each report, on a terminal in place of the last."""
    if as_json:
        for one in boards:
            print_json(one.document())
            sys.stdout.flush()
        return
    from rich.live import Live

    console = terminal.console(width=None if sys.stdout.isatty() else _WIDTH)
    in_place = console.is_terminal and not isinstance(boards, list)
    live = Live(console=console, screen=True, auto_refresh=False) if in_place else None
    with live or nullcontext():
        for one in boards:
            if live is None:
                console.print(rendered(one))
            else:
                live.update(rendered(one), refresh=True)


def rendered(found: ClusterBoard) -> RenderableType:
    """Return FOUND for rich: the first rows of each table."""
    from rich.console import Group

    looked = f"the last {found.seconds:.3g} s" if found.seconds else "no rates yet"
    title = f"{counted(found.brokers, 'broker')} at {format_instant(found.at_ms)}, {looked}"
    topics = _table(["topic", "messages", "in/s"])
    for topic in found.topics[:_SHOWN_MAX]:
        topics.add_row(topic.topic, f"{topic.messages:,}", _rate(topic.in_per_s))
    groups = _table(
        [
            "group",
            "readers",
            "lag",
            "verdict",
            "in/s",
            "read/s",
            "caught up in",
            "skipped",
            "because",
        ]
    )
    for group in found.groups[:_SHOWN_MAX]:
        groups.add_row(
            *(group.group, str(group.readers), f"{group.lag:,}", _verdict(group.verdict)),
            *(_rate(group.in_per_s), _rate(group.read_per_s), _soon(group.catch_up_s)),
            *(f"{group.skipped:,}", group.because),
        )
    queues = _table(["broker", "topic", "queue", "group", "lag", "verdict", "read/s", "owner"])
    for one, owner in found.queues[:_SHOWN_MAX]:
        facts = one.row.facts
        queues.add_row(
            *(one.row.broker_name, facts.topic, str(facts.queue_id), facts.group),
            "-" if one.row.lag is None else f"{one.row.lag:,}",
            *(_verdict(one.row.verdict), _rate(one.read_per_s), owner or "-"),
        )
    more = sum(
        max(0, len(part) - _SHOWN_MAX) for part in (found.topics, found.groups, found.queues)
    )
    rest = f"… {counted(more, 'more line')}: use --topic, --group or --json" if more else ""
    return Group(title, "", topics, "", groups, "", queues, rest)


def _table(titles: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in titles:
        right = name in ("messages", "in/s", "read/s", "lag", "readers", "queue", "skipped")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "because")
    return table


def _verdict(verdict: LagVerdict) -> RenderableType:
    from rich.text import Text

    return Text(verdict.text, style=_STYLES.get(verdict, "red"))


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.1f}"


def _soon(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(round(seconds) * 1000) if seconds else "done"
