"""`pocketmq recall`: takes a delayed message back before it is due, by the handle that `pocketmq send` printed.

Exit code 3: no such message waits there (any more), 5: it is due already.
"""

from __future__ import annotations

import click

from ..client import Producer
from .options import json_option, nameserver_option
from .output import print_json


@click.command()
@click.argument("handle")
@json_option("an object")
@nameserver_option
def recall(handle: str, *, as_json: bool, nameserver: str) -> None:
    """Take back the delayed message of HANDLE, which its receipt told, before it is due."""
    with Producer(nameserver) as producer:
        message_id = producer.recall(handle)
    if as_json:
        print_json({"message_id": message_id, "recalled": True})
    else:
        click.echo(f"{message_id}  recalled")
