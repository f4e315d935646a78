"""The text of `pocketmq inspect STORE --recovery WHOSE`: a store as a broker would have it after its recovery."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from ...proto.lite_topics import split_lite_queue
from ...proto.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from .. import terminal
from ..counted import counted

_TOPICS_MAX = 50
_PLACES_MAX = 20


def print_summary(store: str, document: dict[str, Any]) -> None:
    """Print DOCUMENT, which describes STORE."""
    console = terminal.console(soft_wrap=True)
    stop = "unclean (abort is there)" if document["abortPresent"] else "clean"
    told = f"  as {document['oracle']} would open it; last stop: {stop}"
    console.print(Text.assemble((store, "bold"), told))
    if not document["accepted"]:
        console.print(Text.assemble(("refused", "red"), f": {document['refusal']}"))
        console.print(_files(document["filesBefore"]))
        return
    console.print(_log_line(document))
    if waiting := _waiting(document):
        console.print(waiting)
    console.print(_queues(document["queues"]))
    console.print(_groups(document["config"]["consumerOffsets"], document["queues"]))
    console.print(_files(document["filesAfter"]))
    console.print(_checkpoint(document["checkpoint"]))
    for line in _findings(document):
        console.print(line)


def _log_line(document: dict[str, Any]) -> Text:
    records = document["records"]
    wrong = sum(not record["crcOk"] for record in records)
    size = sum(record["storeSize"] for record in records)
    text = f"log {document['minPhyOffset']:,}–{document['maxPhyOffset']:,}: "
    text += f"{counted(len(records), 'record')}, {size:,} bytes"
    if records:
        times = [record["storeTimestamp"] for record in records]
        text += f", stored {_instant(min(times))} to {_instant(max(times))}"
    if not wrong:
        return Text(text)
    return Text.assemble(text, ", ", (f"{wrong:,} with a wrong CRC", "red"))


def _waiting(document: dict[str, Any]) -> str:
    """Return how many scheduled messages wait; "" for none."""
    queues = {
        (queue["topic"], queue["queueId"]): queue["maxOffset"] for queue in document["queues"]
    }
    done = document["config"]["delayOffsets"]
    levels = sum(
        max(0, end - done.get(str(queue + 1), 0))
        for (topic, queue), end in queues.items()
        if topic == SCHEDULE_TOPIC
    )
    timed, until = queues.get((TIMER_TOPIC, 0), 0), ""
    if timer := document.get("timer"):
        read_ms = timer["checkpoint"]["lastReadTimeMs"]
        slots = [slot["num"] for slot in timer["slots"] if slot["timeMs"] >= read_ms]
        timed = sum(slots) + max(0, timed - timer["commitQueueOffset"])
        until = f", handed on until {_instant(read_ms)}"
    return f"waiting: {levels:,} by delay level, {timed:,} timed{until}" if levels or timed else ""


def _instant(time_ms: int) -> str:
    if not 0 < time_ms < 1 << 47:
        return str(time_ms)
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _queues(queues: list[dict[str, Any]]) -> Table:
    table = Table(title="topics", title_justify="left", box=None, pad_edge=False)
    table.add_column("topic")
    for name in ("used queues", "offsets", "entries", "unreadable"):
        table.add_column(name, justify="right")
    topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for queue in queues:
        if queue["entries"] or queue["maxOffset"] > 0:
            topics[queue["topic"]].append(queue)
    for topic, found in sorted(topics.items())[:_TOPICS_MAX]:
        bounds = f"{min(q['minOffset'] for q in found):,}–{max(q['maxOffset'] for q in found):,}"
        entries = sum(len(queue["entries"]) for queue in found)
        # RocketMQ's check finds the entries of lite queues unreadable: their records are those of the parent.
        unreadable = sum(len(queue["unreachable"]) for queue in found)
        said = "-" if split_lite_queue(topic) else f"{unreadable:,}"
        table.add_row(topic, str(len(found)), bounds, f"{entries:,}", said)
    if len(topics) > _TOPICS_MAX:
        table.add_row(f"… and {len(topics) - _TOPICS_MAX:,} more")
    return table


def _groups(offsets: dict[str, dict[str, int]], queues: list[dict[str, Any]]) -> Table:
    table = Table(title="consumer groups", title_justify="left", box=None, pad_edge=False)
    table.add_column("group")
    table.add_column("topic")
    table.add_column("lag", justify="right")
    ends = {(queue["topic"], str(queue["queueId"])): queue["maxOffset"] for queue in queues}
    for key, progress in sorted(offsets.items())[:_TOPICS_MAX]:
        topic, _, group = key.partition("@")
        lag = sum(max(0, ends.get((topic, q), 0) - offset) for q, offset in progress.items())
        table.add_row(group, topic, f"{lag:,}")
    return table


def _files(files: dict[str, int]) -> Table:
    table = Table(title="files", title_justify="left", box=None, pad_edge=False)
    table.add_column("folder")
    table.add_column("files", justify="right")
    table.add_column("bytes (length)", justify="right")
    folders: dict[str, list[int]] = defaultdict(list)
    for path, size in files.items():
        top = path.split("/")[0] if "/" in path else "."
        folders[top].append(size)
    for folder, sizes in sorted(folders.items()):
        table.add_row(folder, f"{len(sizes):,}", f"{sum(sizes):,}")
    return table


def _checkpoint(values: dict[str, int]) -> str:
    return (
        f"checkpoint: log {_instant(values['physicMsgTimestamp'])}, queues {_instant(values['logicsMsgTimestamp'])}, "
        f"index {_instant(values['indexMsgTimestamp'])}, last valid record at {values['confirmPhyOffset']:,}"
    )


def _findings(document: dict[str, Any]) -> list[Text]:
    lines = [
        Text.assemble(
            (found["kind"], "yellow"),
            f": {posixpath.basename(found['path'])}",
            "" if found["offset"] is None else f" at {found['offset']:,}",
            f": {found['why']}",
        )
        for found in document.get("recovery", {}).get("findings", [])
    ]
    lines += [
        Text.assemble(("broken", "red"), f" at {place['offset']:,}: {place['why']}")
        for place in document["broken"]
    ]
    for queue in document["queues"]:
        for begin, end in queue["holes"]:
            lines.append(
                Text.assemble(
                    ("hole", "red"), f" in {queue['topic']}/{queue['queueId']}: {begin:,}–{end:,}"
                )
            )
    before, after = set(document["filesBefore"]), set(document["filesAfter"])
    for path in sorted(before - after):
        if not path.startswith("rocksdbstore/"):
            lines.append(Text(f"recovery deletes {path}"))
    if len(lines) > _PLACES_MAX:
        lines[_PLACES_MAX:] = [Text(f"… and {len(lines) - _PLACES_MAX:,} more")]
    return lines
