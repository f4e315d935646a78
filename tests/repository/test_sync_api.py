"""The clients for ordinary threads are what `make sync` generates, and lack no method."""

from __future__ import annotations

import inspect

import pytest

from pocketmq import client

from . import sync_api

#: Methods for coroutines that threads do not need: constructors and `with` blocks do their work.
WITHOUT_COUNTERPART = {
    "Producer": {"start"},
    "PullConsumer": {
        "start",
        "cursor",
        "take",
        "stop_waiting",
        "acknowledge_rebalance",
        "pending_revocation",
        "disconnect",
    },
    "Transaction": {"begin", "finish"},
    "AtomicCommit": {"begin", "finish"},
}
NAMES = [target.name for target in sync_api.TARGETS]


@pytest.mark.processes
@pytest.mark.parametrize("file", [target.file for target in sync_api.TARGETS])
def test_a_generated_file_is_up_to_date(file: str) -> None:
    (target,) = (one for one in sync_api.TARGETS if one.file == file)

    assert (sync_api.FOLDER / file).read_text("utf-8") == sync_api.text_of(target), (
        "run `make sync`"
    )


def test_no_other_file_is_in_the_generated_folder() -> None:
    expected = {"__init__.py", *(target.file for target in sync_api.TARGETS)}

    assert {path.name for path in sync_api.FOLDER.glob("*.py")} == expected


@pytest.mark.parametrize("name", NAMES)
def test_each_public_method_for_coroutines_has_a_counterpart(name: str) -> None:
    of_coroutines, of_threads = getattr(client, f"Async{name}"), getattr(client, name)
    methods = {one for one in dir(of_coroutines) if not one.startswith("_")}

    assert methods - set(dir(of_threads)) == WITHOUT_COUNTERPART.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_a_method_for_threads_takes_the_same_parameters_and_is_no_coroutine(name: str) -> None:
    of_coroutines, of_threads = getattr(client, f"Async{name}"), getattr(client, name)
    for method, function in inspect.getmembers(of_threads, inspect.isfunction):
        if method.startswith("_") or method == "run":  # Admin.run is its own.
            continue
        expected = inspect.signature(getattr(of_coroutines, method)).parameters
        assert list(inspect.signature(function).parameters) == list(expected)
        assert not inspect.iscoroutinefunction(function)
        assert not inspect.isasyncgenfunction(function)
        assert inspect.getdoc(function)
