"""`pocketmq group`: create, list, describe, plan, reset offsets, delete.

Done, and visible to the next call, when they return 0.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from ..client import Admin, GroupDescription
from ..proto.duration import format_duration, parse_duration
from .group_describe import describe
from .group_plan import plan
from .group_reset import reset_offset
from .options import json_option, nameserver_option
from .output import print_json, print_table


@click.group()
def group() -> None:
    """Create, list, describe, move and delete consumer groups."""


@group.command()
@click.argument("name")
@click.option("--fifo", is_flag=True, help="Its messages are delivered in order.")
@click.option(
    "--retries",
    type=click.IntRange(0, 1000),
    default=16,
    show_default=True,
    help="How often a message that failed is delivered again.",
)
@click.option(
    "--retry-intervals",
    "intervals",
    metavar="10s,30s,1m,…",
    default="",
    help="How long it waits before the first retry, the second …; the last one repeats.  [default: 10s to 2h]",
)
@click.option(
    "--subscriptions",
    type=click.Choice(["refuse", "warn"]),
    default="refuse",
    show_default=True,
    help="What becomes of a member that wants something else than the others.",
)
@json_option("the group")
@nameserver_option
def create(
    name: str,
    *,
    fifo: bool,
    retries: int,
    intervals: str,
    subscriptions: str,
    as_json: bool,
    nameserver: str,
) -> None:
    """Create group NAME on every broker. One that exists is changed; what is left out gets its default again."""
    intervals_ms = [
        parse_duration(part, field="--retry-intervals")
        for part in intervals.split(",")
        if intervals
    ]
    with Admin(nameserver) as admin:
        made = admin.create_group(
            name, order=fifo, retry_max_times=retries, retry_intervals_ms=intervals_ms
        )
        if subscriptions != made.subscription_check:
            made = admin.set_subscription_check(name, subscriptions)
    if as_json:
        print_json(asdict(made))
    else:
        kind = "in order" if made.order else "in any order"
        after = f", after {_intervals(made)}" if made.retry_intervals_ms else ""
        click.echo(f"group {made.name}: {kind}, up to {made.retry_max_times} retries{after}")


def _intervals(one: GroupDescription) -> str:
    return ",".join(map(format_duration, one.retry_intervals_ms))


@group.command("list")
@json_option("a group a line")
@nameserver_option
def list_groups(*, as_json: bool, nameserver: str) -> None:
    """List all groups."""
    with Admin(nameserver) as admin:
        groups = admin.groups()
    if as_json:
        for one in groups:
            print_json(asdict(one))
        return
    print_table(
        ["group", "order", "retries", "after", "consumes", "other subscriptions"],
        [
            [
                one.name,
                "fifo" if one.order else "-",
                one.retry_max_times,
                _intervals(one) or "-",
                "yes" if one.consume_enable else "no",
                "warned of" if one.subscription_check == "warn" else "refused",
            ]
            for one in groups
        ],
    )


@group.command()
@click.argument("name")
@nameserver_option
def delete(name: str, *, nameserver: str) -> None:
    """Delete group NAME and its offsets on every broker."""
    with Admin(nameserver) as admin:
        admin.delete_group(name)
    click.echo(f"group {name} deleted")


group.add_command(plan)
group.add_command(describe)
group.add_command(reset_offset)
