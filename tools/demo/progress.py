"""What the demo shows: headings, progress bars, and the result of each check."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

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

_REFRESH_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the last table."""

    what: str
    count: int
    seconds: float


class Bar:
    """The bar of one step; it is drawn a few times per second, however often it is updated."""

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
