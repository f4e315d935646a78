"""Alarms and the board of docker/: each alarm rings when it should, and all names are on a page, ours or Apache's."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketmq.broker.metrics.page import text_of
from pocketmq.broker.replication.in_sync import ReplicaSettings
from pocketmq.broker.replication.replica_metrics import (
    Behind,
    CellChanges,
    ReplicaStatus,
    replica_figures,
)

from ..service_v2.serving import Served
from .alarms import Evaluation, Page, Vector, read
from .busy import GROUP, busy_page, families, make_busy, page_of, receive

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((DOCKER / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
}
BOARD = json.loads((DOCKER / "grafana.json").read_text("utf-8"))
MINUTE_S = 60
#: Quiet scrapes, one a minute, and then as many of trouble.
SCRAPES = 40


def scraped(quiet: Page, trouble: Page) -> list[tuple[float, Page]]:
    return [(MINUTE_S * at, quiet if at < SCRAPES else trouble) for at in range(2 * SCRAPES)]


def rings(alert: str, scrapes: Sequence[tuple[float, Page]], now_s: float) -> Vector:
    return Evaluation(RULES[alert]["expr"], scrapes, now_s).value


def of_replicas(behind_s: float) -> Page:
    """Return a page of a master with a follower that has not caught up for BEHIND_S."""
    look = ReplicaStatus(
        settings=ReplicaSettings(
            cluster="C", set_name="orders", replica_id=1, address="127.0.0.1:1", file_size=1 << 20
        ),
        changes=CellChanges(),
        is_master=True,
        behind={2: Behind(1_000, int(1_000 * behind_s))},
    )
    return read(text_of(replica_figures(look)).decode())


def of_target(up: int) -> Page:
    """Return what Prometheus itself notes of a target."""
    key = frozenset({("job", "rocketmq"), ("instance", "localhost:8081")})
    return {"up": {key: up}}


async def pages(folder: Path) -> dict[str, tuple[Page, Page]]:
    """Return for each alarm a page on which all is well, and one of the same broker in trouble."""
    async with Served(folder) as served:
        await make_busy(served)
        before = read(await page_of(served, disk_used_ratio=0.5))
        full = read(await page_of(served, disk_used_ratio=0.85))
        refusing = read(await page_of(served, writable=False))
        await served.clock.advance(700_000)
        late = read(await page_of(served))
        handles = receive(served, "orders")
        served.parts.pops.forward_to_dead_letters(GROUP, "orders", handles[0], "bad")
        dead = read(await page_of(served))
    return {
        "BrokerGone": (of_target(1), of_target(0)),
        "BrokerNotWritable": (before, refusing),
        "DiskNearlyFull": (before, full),
        "GroupBehind": (before, late),
        "DeadLetters": (before, dead),
        "FollowerBehind": (of_replicas(0.4), of_replicas(45)),
    }


async def test_each_alarm_rings_in_its_trouble_and_at_no_other_time(tmp_path: Path) -> None:
    found = await pages(tmp_path)

    assert found.keys() == RULES.keys()
    for alert, (quiet, trouble) in found.items():
        scrapes = scraped(quiet, trouble)
        # With the last quiet one, and with the third of trouble.
        assert not rings(alert, scrapes, MINUTE_S * (SCRAPES - 1)), alert
        assert rings(alert, scrapes, MINUTE_S * (SCRAPES + 2)), alert


async def test_an_alarm_names_who_is_in_trouble(tmp_path: Path) -> None:
    found = await pages(tmp_path)

    for alert, (quiet, trouble) in found.items():
        rung = rings(alert, scraped(quiet, trouble), MINUTE_S * (SCRAPES + 2))
        summary = RULES[alert]["annotations"]["summary"]
        told = set(re.findall(r"\$labels\.(\w+)", summary)) - {"instance"}
        for key in rung:
            assert told <= dict(key).keys(), alert


async def test_the_first_dead_letter_of_a_group_rings_too(tmp_path: Path) -> None:
    """Its series begins with it: nothing has increased since the last scrape."""
    quiet, trouble = (await pages(tmp_path))["DeadLetters"]
    without = {name: values for name, values in quiet.items() if "_dlq_" not in name}
    scrapes = scraped(without, trouble)

    assert not rings("DeadLetters", scrapes, MINUTE_S * (SCRAPES - 1))
    assert rings("DeadLetters", scrapes, MINUTE_S * (SCRAPES + 2))
    assert not rings("DeadLetters", scrapes, MINUTE_S * (SCRAPES + 20)), "it is over"


def test_a_restart_of_a_broker_is_no_increase() -> None:
    key = frozenset({("topic", "T")})
    counted: list[float] = [5, 7, 0, 1]
    scrapes = [(60.0 * at, {"a_total": {key: value}}) for at, value in enumerate(counted)]

    assert Evaluation("increase(a_total[10m])", scrapes, 180).value == {key: 3}


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")
async def test_prometheus_finds_the_same(tmp_path: Path) -> None:
    """Its own engine, on the same scrapes: `promtool` says of each expression what we say."""
    found = await pages(tmp_path)
    tests = []
    for alert, (quiet, trouble) in found.items():
        expression = RULES[alert]["expr"]
        scrapes = scraped(quiet, trouble)
        at_s = MINUTE_S * (SCRAPES + 2)
        evaluation = Evaluation(expression, scrapes, at_s)
        tests.append(
            {
                "interval": "1m",
                "input_series": _input(evaluation.names, quiet, trouble),
                "promql_expr_test": [
                    {
                        # How much it is differs: Prometheus extrapolates.
                        "expr": f"count by (topic, consumer_group, node_id, replica) ({expression})",
                        "eval_time": "42m",
                        "exp_samples": [
                            {"labels": _braces(_shown(key)), "value": 1} for key in evaluation.value
                        ],
                    }
                ],
            }
        )
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(DOCKER / "alerts.yaml")], "tests": tests}))

    for command in (["check", "rules", str(DOCKER / "alerts.yaml")], ["test", "rules", str(file)]):
        done = await asyncio.to_thread(
            subprocess.run, ["promtool", *command], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _shown(key: frozenset[tuple[str, str]]) -> dict[str, str]:
    shown = ("topic", "consumer_group", "node_id", "replica")
    return {label: value for label, value in key if label in shown}


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items()) + "}"


def _input(names: Sequence[str], quiet: Page, trouble: Page) -> list[dict[str, str]]:
    """Return the series called NAMES of both pages, as promtool wants them."""
    found = []
    for name in dict.fromkeys(names):
        before, after = quiet.get(name, {}), trouble.get(name, {})
        for key in before.keys() | after.keys():
            values = [
                f"{page[key]!r}x{SCRAPES - 1}" if key in page else f"_x{SCRAPES}"
                for page in (before, after)
            ]
            found.append({"series": name + _braces(dict(key)), "values": " ".join(values)})
    return found


# --- the board


def expressions() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def test_the_board_has_a_dozen_panels_which_do_not_overlap() -> None:
    panels = BOARD["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}

    assert len(panels) >= 12
    assert len(places) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["targets"] for panel in panels)


async def test_all_that_the_board_asks_for_is_on_the_page_with_its_labels(tmp_path: Path) -> None:
    page = families(await busy_page(tmp_path))
    samples: dict[str, set[str]] = {}
    for family in page.values():
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)

    for expression in expressions():
        (name,) = re.findall(r"rocketmq_\w+", expression)
        labels = set(re.findall(r"(\w+)=~?\"", expression))
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            labels |= set(grouped.split(", "))
        assert labels <= samples[name], expression
        assert "pocketmq" not in expression, "it works with Apache's exporter as well"
        assert all(expression.count(a) == expression.count(b) for a, b in ("()", "{}", "[]"))


def test_legends_and_variables_are_those_of_the_expressions() -> None:
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables
            by = re.findall(r"by \(([^)]*)\)", target["expr"])
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            if by:
                assert named <= set(by[-1].split(", ")), target["expr"]


# --- docker compose --profile monitoring


def test_prometheus_and_grafana_are_given_their_files() -> None:
    services: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))[
        "services"
    ]
    mounted = {
        name: {
            target: DOCKER / source
            for source, target, _ in (volume.split(":") for volume in services[name]["volumes"])
        }
        for name in ("prometheus", "grafana")
    }
    settings = yaml.safe_load(mounted["prometheus"]["/etc/prometheus/prometheus.yml"].read_text())
    (job,) = settings["scrape_configs"]
    (source,) = yaml.safe_load(
        mounted["grafana"]["/etc/grafana/provisioning/datasources/rocketmq.yaml"].read_text()
    )["datasources"]
    (provider,) = yaml.safe_load(
        mounted["grafana"]["/etc/grafana/provisioning/dashboards/rocketmq.yaml"].read_text()
    )["providers"]

    for rules in settings["rule_files"]:
        assert mounted["prometheus"][rules] == DOCKER / "alerts.yaml"
    assert "rocketmq" in job["job_name"], "RocketMQ Studio and the alarms look for it"
    for target in job["static_configs"][0]["targets"]:
        host, _, port = target.partition(":")
        assert f"127.0.0.1:{port}:{port}" in services[host]["ports"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert services[host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    boards = [target for target in mounted["grafana"] if target.endswith(".json")]
    assert [Path(board).parent for board in boards] == [Path(provider["options"]["path"])]
    assert all(re.fullmatch(r"[\w/-]+:v?[\d.]+", services[name]["image"]) for name in mounted)
    assert all(services[name]["profiles"] == ["monitoring"] for name in mounted)
