import os
from pathlib import Path

import pytest

from pocketmq.tools.bench import measure
from pocketmq.tools.bench.grpc_echo import echo_per_second
from pocketmq.tools.bench.measure import Figure
from pocketmq.tools.bench.socket_echo import echo
from pocketmq.tools.server_process import cpu_seconds, rss_bytes

COLUMNS = [
    "name", "messages_per_second", "bytes_per_second", "p50_ms", "p99_ms",
    "server_cpu_seconds", "client_cpu_seconds", "server_rss_bytes", "beside",
]  # fmt: skip


def test_what_does_not_apply_is_null() -> None:
    document = Figure(name="x").document()

    assert list(document)[: len(COLUMNS)] == COLUMNS
    assert [document[name] for name in COLUMNS[1:-1]] == [None] * 7
    assert document["beside"] == {}


def test_a_yardstick_stands_beside_with_our_share_of_it() -> None:
    figure = Figure(name="x")

    figure.compare("memcpy_bytes_per_second", 8e9, 2e9)

    assert figure.document()["beside"] == {
        "memcpy_bytes_per_second": 8_000_000_000,
        "ratio_to_memcpy_bytes": 0.25,
    }


@pytest.mark.parametrize(
    ("aim", "met"),
    [((2.0, 1.0, True), True), ((2.0, 1.0, False), False), ((0.5, 1.0, False), True), (None, None)],
)
def test_an_aim_is_met_from_above_or_below(
    aim: tuple[float, float, bool] | None, met: bool | None
) -> None:
    assert Figure(name="x", aim=aim).met is met


def test_percentiles_are_in_milliseconds() -> None:
    assert measure.percentiles_ms([number / 1000 for number in range(101)]) == (50.0, 99.0)


def test_a_rate_counts_messages_and_bytes() -> None:
    figure = Figure(name="x")

    figure.add_rate(100, 12_800, 0.5)

    assert (figure.messages_per_second, figure.bytes_per_second) == (200, 25_600)


def test_rounds_are_bounded_by_number_and_done_at_least_once() -> None:
    assert len(measure.rounds(lambda: None, seconds=10, at_most=3)) == 3
    assert len(measure.rounds(lambda: None, seconds=0)) == 1


def test_echoes_measure_something(tmp_path: Path) -> None:
    assert measure.memcpy_bytes_per_second(1 << 20) > 1e8
    assert measure.synced_writes_per_second(tmp_path, seconds=0.05) > 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_an_echo_answers() -> None:
    assert echo_per_second(request_bytes=1000, reply_bytes=10, in_flight=4, seconds=0.1) > 10


@pytest.mark.processes
def test_the_bare_loopback_echo_answers_all_that_it_was_asked() -> None:
    echoed = echo(request_bytes=100, reply_bytes=30, in_flight=8, seconds=0.05)

    assert len(echoed.latencies) >= 8
    assert min(echoed.latencies) > 0
    assert echoed.cpu_s > 0


def test_figures_become_a_table() -> None:
    figure = Figure(name="x", messages_per_second=1_234_567.8, aim=(1.0, 2.0, True))

    titles, rows = measure.figures_table([figure])

    assert len(titles) == len(rows[0])
    assert rows[0] == ["x", "1,234,568", "-", "-", "-", "-", "-", "-", "≥ 2 missed: 1.0"]


def test_a_process_is_measured_from_outside() -> None:
    assert cpu_seconds(os.getpid()) > 0
    assert rss_bytes(os.getpid()) > 1 << 20
