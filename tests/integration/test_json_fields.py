"""`--json` prints the fields that docs/json-output.md lists."""

from __future__ import annotations

from typing import Any

import pytest

from ..repository.reference.json_output import FIELDS
from .command import Shell

pytestmark = pytest.mark.processes

#: The verbs that are run, in this order, each with its words.
_CALLS = {
    "pocketmq topic create": "topic create documented --json",
    "pocketmq group create": "group create readers --json",
    "pocketmq send": "send documented hello --key k1 --json",
    "pocketmq consume": "consume documented --group readers --limit 1 --json",
    "pocketmq find": "find --topic documented --key k1 --json",
    "pocketmq topic list": "topic list --json",
    "pocketmq topic describe": "topic describe documented --json",
    "pocketmq group list": "group list --json",
    "pocketmq group describe": "group describe readers --json",
    "pocketmq lag": "lag --group readers --json",
    "pocketmq brokers": "brokers --json",
    "pocketmq health": "health --json",
    "pocketmq connections": "connections --json",
    "pocketmq config show": "config show --json",
}


def fields_of(document: dict[str, Any], listed: set[str]) -> set[str]:
    """Return the names in DOCUMENT; those within a list only where LISTED has them."""
    found = set(document)
    for name, value in document.items():
        if isinstance(value, list) and any(one.startswith(f"{name}.") for one in listed):
            found |= {f"{name}.{inner}" for one in value for inner in one}
    return found


def test_every_listed_verb_is_run() -> None:
    assert _CALLS.keys() == FIELDS.keys()


def test_the_fields_are_those_of_the_documentation(call: Shell) -> None:
    found = {}
    for verb, words in _CALLS.items():
        document = call(*words.split()).documents[0]
        found[verb] = fields_of(document, set(FIELDS[verb]))

    assert found == {verb: set(listed) for verb, listed in FIELDS.items()}
