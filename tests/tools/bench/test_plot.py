"""The picture of `bench ordinary --plot` shows both rates of each row, and the ratio, also one below 1."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pocketmq.tools import cli
from pocketmq.tools.bench import measure, ordinary
from pocketmq.tools.bench.measure import BenchConditions, Figure
from pocketmq.tools.bench.plot import LABELS, PlotRow, compared, drawn

from ...repository.source_tree import ROOT

RECORDED = ROOT / "docs/img/bench.svg"
SVG = "{http://www.w3.org/2000/svg}"


def figure(**facts: Any) -> Figure:
    """The results of two kinds of work."""
    return Figure(
        name="ordinary",
        what="128 B & more",
        facts={
            "in_flight_per_second": 50_000.0,
            "in_flight_echo_per_second": 200_000.0,
            "delayed_per_second": 10_000.0,
            "delayed_echo_per_second": 5_000.0,
            "one_at_a_time_p50_ms": 0.5,
            "one_at_a_time_echo_p50_ms": 0.05,
            **facts,
        },
        beside={
            "apache_in_flight_per_second": 12_500.0,
            "apache_delayed_per_second": 30_000.0,
            "apache_one_at_a_time_p50_ms": 0.25,
        },
    )


def widths(picture: str, kind: str) -> list[float]:
    return [
        float(found)
        for found in re.findall(rf'<rect class="{kind}" x="\d+" y="\d+" width="([\d.]+)"', picture)
    ][1:]  # The first one is in the legend.


def test_apache_rocketmq_is_the_baseline_where_it_ran() -> None:
    assert compared(figure(apache_version="5.5.0")) == (
        "Apache RocketMQ 5.5.0",
        [
            PlotRow("64 sends in flight", 50_000.0, 12_500.0),
            PlotRow("one send at a time", 2_000.0, 4_000.0, waited_for=True),
            PlotRow("delayed, 64 in flight", 10_000.0, 30_000.0),
        ],
    )


def test_without_it_the_baseline_is_an_echo() -> None:
    baseline, rows = compared(figure())

    assert baseline == "echo of the same bytes"
    assert [row.ratio for row in rows] == [0.25, pytest.approx(0.1), 2.0]


def test_bars_of_a_row_have_one_scale_and_the_ratio_is_beside_them() -> None:
    picture = drawn(figure(apache_version="5.5.0"), machine="2 cores", date="2026-11-29")
    texts = [one.text for one in ElementTree.fromstring(picture).iter(f"{SVG}text")]

    own, other = widths(picture, "own"), widths(picture, "other")
    assert own[0] == pytest.approx(4 * other[0])
    assert other[1] == pytest.approx(2 * own[1], rel=0.01)
    assert other[2] == pytest.approx(3 * own[2], rel=0.01)
    assert max(own) == max(other)
    assert {"4.00", "0.50", "0.33", "50,000/s", "30,000/s", "0.50 ms", "0.25 ms"} <= set(texts)
    assert re.findall(r'class="ratio( below)?" [^>]*>[\d.]+<', picture) == ["", " below", " below"]


def test_the_caption_says_what_was_measured_where_and_when() -> None:
    picture = drawn(figure(), machine="2 cores", date="2026-11-29")

    texts = [one.text for one in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert "128 B & more" in texts
    assert "2 cores, 2026-11-29" in texts


def test_every_kind_of_work_has_a_label() -> None:
    java = Path(ordinary.__file__).parent / "java"
    shapes = [
        name
        for program in ("ClassicLoad", "OfficialLoad")
        for name in re.findall(r'tell\("([^"]+)", ', (java / f"{program}.java").read_text("utf-8"))
    ]

    assert len(shapes) == 10
    assert {ordinary._key(name) for name in shapes} <= LABELS.keys()


@pytest.mark.parametrize(
    "picture",
    [
        drawn(figure(apache_version="5.5.0"), machine="2 cores", date="today"),
        RECORDED.read_text(encoding="utf-8"),
    ],
    ids=["drawn", "recorded"],
)
def test_it_is_small_has_no_script_and_fits_light_and_dark_pages(picture: str) -> None:
    tags = {one.tag.removeprefix(SVG) for one in ElementTree.fromstring(picture).iter()}

    assert len(picture) < 80_000
    assert tags <= {"svg", "title", "desc", "style", "rect", "text"}
    assert "@media (prefers-color-scheme: dark)" in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_the_recorded_picture_is_of_the_run_that_the_page_shows() -> None:
    texts = [one.text or "" for one in ElementTree.parse(RECORDED).iter(f"{SVG}text")]
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    table = page.partition("| program | PocketMQ |")[2].partition("\n\n")[0]

    shown = [text.removesuffix("/s") for text in texts if re.fullmatch(r"[\d,]+/s|[\d.]+ ms", text)]
    assert len(shown) == 2 * 12
    assert [text for text in shown if text.removesuffix(" ms") not in table] == []
    assert re.search(r", 20\d\d-\d\d-\d\d$", texts[-1])
    assert texts[-1].rpartition(", ")[2] in page


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_: BenchConditions) -> Figure:
        return figure()

    monkeypatch.setattr(ordinary, "ordinary", measured)

    assert cli.run(["bench", "ordinary", "--plot", str(tmp_path / "bench.svg")]) == 0

    assert "0.25" in (tmp_path / "bench.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["wheel", "--plot", "x.svg"], "needs"), (["ordinary", "--plot", "no/x.svg"], "folder")],
)
def test_it_is_refused_before_anything_is_measured(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["bench", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_the_machine_is_described_with_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (2.25, 0.0, 0.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})

    assert re.fullmatch(
        r"1 core( \(.+\))?, CPython 3\.\d+\.\d+\S*, (C core|pure Python \(.+\)), load before the run 2\.2",
        measure.machine(),
    )
