"""The Python blocks of the pages on Spark and its jobs run as they are, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ....recorded import recorded_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

DOCS = Path(__file__).parents[4] / "docs"
PAGES = ("spark.md", "spark-jobs.md")


@pytest.mark.timeout(300)
def test_every_python_block_runs(
    tmp_path: Path,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorded_store("consumption", tmp_path / "data" / "broker-a" / "store")
    # Spark's processes have working folders of their own.
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    for path in ("data/broker-*/store", "lake"):
        text = text.replace(f'"{path}"', f'"{tmp_path}/{path}"')
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}

    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)

    shown = capsys.readouterr().out
    shown_in_guide = re.findall(r"^\|(?:G_|Consumed).*\|$", text, re.MULTILINE)
    assert len(blocks) >= 8
    assert len(shown_in_guide) > 10
    assert [line for line in shown_in_guide if line not in shown] == []
