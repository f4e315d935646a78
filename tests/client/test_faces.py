"""The synchronous and the asyncio face of a client offer the same."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pocketmq.client import AsyncProducer, Producer

#: What only coroutines need, or only tests.
ONLY_ASYNC = {"start"}


def public(face: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(face)
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }


@pytest.mark.parametrize(("face", "other"), [(Producer, AsyncProducer)])
def test_faces_have_the_same_methods_with_the_same_parameters(face: type, other: type) -> None:
    ours, theirs = public(face), public(other)

    assert set(ours) == set(theirs) - ONLY_ASYNC
    for name, member in ours.items():
        if callable(member):
            expected = inspect.signature(theirs[name]).parameters
            assert list(inspect.signature(member).parameters) == list(expected), name
            kinds = [parameter.kind for parameter in expected.values()]
            assert [p.kind for p in inspect.signature(member).parameters.values()] == kinds, name
            defaults = [parameter.default for parameter in expected.values()]
            assert [p.default for p in inspect.signature(member).parameters.values()] == defaults


def test_settings_are_arguments_of_both() -> None:
    expected = {"nameservers", "checker", "settings"}

    assert set(inspect.signature(Producer).parameters) == expected
    assert set(inspect.signature(AsyncProducer).parameters) == expected | {
        "clock",
        "connections",
        "random",
    }
