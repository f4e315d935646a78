"""A story as a table of its events for people, the groups below it, and the sentence that ends it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..output import instant
from .story import Event, Story

_STYLES = {
    "dead letter": "red",
    "gone": "red",
    "rolled back": "red",
    "given up": "red",
    "sent back": "yellow",
    "revived": "yellow",
    "waits": "cyan",
    "moved": "green",
    "committed": "green",
    "acknowledged": "green",
    "read": "green",
}


def print_story(console: Console, story: Story, broker: str) -> None:
    """Print STORY, which the store of BROKER tells."""
    if story.state != "gone":  # Of which nothing is known but its end.
        _print_life(console, story, broker)
    console.print(Text(f"→ {story.conclusion}", style="bold"), soft_wrap=True)
    for note in story.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)


def _print_life(console: Console, story: Story, broker: str) -> None:
    words = [
        story.message_id or "a message without an id",
        f"topic {story.topic or '?'}",
        f"keys {story.keys or '-'}",
        f"tag {story.tags or '-'}",
        f"broker {broker}",
    ]
    console.print(Text("  ".join(words), style="bold"), soft_wrap=True)
    if story.born_ms is not None:
        console.print(Text(f"born {instant(story.born_ms)}"), soft_wrap=True)
    console.print(_events_table(story))
    for view in story.groups:
        if view.verdict != "read":  # That is an event, and so is a failure.
            where = f"{view.topic}/{view.queue} at offset {view.offset:,}"
            console.print(Text(f"group {view.group}, {where}: {view.text}"), soft_wrap=True)


def _events_table(story: Story) -> Table:
    table = Table(box=None, pad_edge=False, show_header=True)
    table.add_column("time", no_wrap=True)
    table.add_column("what", overflow="fold", ratio=1)
    table.add_column("log offset", justify="right", no_wrap=True)
    table.add_column("file", overflow="fold")
    for event in story.events:
        place = "" if event.copy is None else f"{event.copy.log_offset:,}"
        path = "" if event.copy is None else event.copy.path.rsplit("/", 1)[-1]
        text = Text(event.text, style=_STYLES.get(event.kind, ""))
        table.add_row(_when(event), text, place, path)
    return table


def _when(event: Event) -> str:
    if event.time_ms is None:
        return "?"
    return ("≤ " if event.is_bound else "  ") + instant(event.time_ms)
