"""What is proposed for a listener, and how it is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pocketmq.proto.errors import InvalidArgument
from pocketmq.tools import cli
from pocketmq.tools.size import Lap, advice, load, measure, message_of, rate_of

LISTENERS = """
import asyncio
seen = []
def works(message):
    seen.append(message.body)
    return sum(range(20_000))
def fails(message):
    raise ValueError("no")
async def waits(message):
    await asyncio.sleep(0.002)
class Handlers:
    @staticmethod
    def handle(message):
        pass
number = 3
"""


@pytest.fixture(autouse=True)
def listeners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "advised_listeners.py").write_text(LISTENERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "advised_listeners", raising=False)


def laps(cpu_ms: float, wall_ms: float, count: int = 10) -> list[Lap]:
    return [Lap(wall_ms / 1e3, cpu_ms / 1e3)] * count


def test_a_listener_that_only_works_needs_one_thread_a_core() -> None:
    told = advice(laps(2, 2), cores=4, peak_per_s=2_800)

    assert (told.threads, told.cores) == (1, 4)
    # 70 % of 500 messages a second, four times.
    assert told.node_per_s == pytest.approx(1_400)
    assert (told.nodes, told.members) == (2, 8)


def test_threads_are_as_many_as_keep_a_core_busy_while_others_wait() -> None:
    told = advice(laps(1, 10), cores=2)

    assert told.threads == 10
    assert told.waiting_s == pytest.approx(0.009)
    assert told.node_per_s == pytest.approx(1_400)
    assert told.nodes is None


def test_threads_are_bounded_and_then_bound_what_a_node_does() -> None:
    told = advice(laps(0.01, 1_000), cores=1, peak_per_s=1_000)

    assert told.threads == 256
    assert told.is_cut
    assert told.node_per_s == pytest.approx(256)
    assert told.nodes == 4


def test_a_call_that_costs_nothing_measurable_is_not_divided_by() -> None:
    assert advice([Lap(0.0, 0.0)], cores=1).threads == 1


def test_calls_are_measured_after_warming_up() -> None:
    found = measure(load("advised_listeners:works"), [message_of(b"a"), message_of(b"b")], 20)

    assert len(found) == 20
    assert all(one.cpu_s > 0 for one in found)
    assert sys.modules["advised_listeners"].seen == [b"a", b"b"] * 11


def test_coroutines_and_errors_are_measured_too() -> None:
    (waited,) = measure(load("advised_listeners:waits"), [message_of(b"a")], 1)
    (failed,) = measure(load("advised_listeners:fails"), [message_of(b"a")], 1)

    assert waited.wall_s >= 0.002 > waited.cpu_s
    assert failed.failed
    assert not waited.failed


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("advised_listeners", "not module:function"),
        ("no_such_module:f", "No module named"),
        ("advised_listeners:none", "has no attribute 'none'"),
        ("advised_listeners:number", "is int, not a function"),
    ],
)
def test_what_is_no_function_is_refused(name: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        load(name)


def test_a_function_within_a_class_is_found() -> None:
    assert load("advised_listeners:Handlers.handle")(message_of(b"")) is None


@pytest.mark.parametrize(
    ("text", "per_s"), [("5000/s", 5_000), ("90,000/min", 1_500), ("3600/h", 1), ("2.5", 2.5)]
)
def test_rates_are_read(text: str, per_s: float) -> None:
    assert rate_of(text) == per_s


@pytest.mark.parametrize("text", ["", "fast", "0/s", "-1", "5/day"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="5000/s"):
        rate_of(text)


def test_a_listener_that_always_fails_gets_its_error_and_no_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "body").write_bytes(b"x")

    assert cli.run(["size", "advised_listeners:fails", "--body", "body", "--messages", "3"]) == 1

    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("Traceback")
    assert "advised_listeners.py" in told.err.splitlines()[1]
    assert "\npocketmq: advised_listeners:fails failed in 3 of 3 calls\n" in told.err


def test_the_command_runs_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "body").write_bytes(b"x")
    arguments = ["size", "advised_listeners:works", "--body", "body", "--messages", "10"]

    assert cli.run([*arguments, "--peak", "1000/s", "--cores", "2"]) == 0
    told = capsys.readouterr().out
    assert "10 calls measured, 0 failed" in told
    assert "for 1,000 messages/s" in told
    assert cli.run([*arguments, "--cores", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["calls"], document["cores"], document["queues"]) == (10, 2, None)
    assert cli.run(["size", "advised_listeners:works"]) == 2
