"""`bench scan` measures what it says; here small stores."""

from pathlib import Path

import pytest

from pocketmq.tools.bench import scanning as bench
from pocketmq.tools.bench.generated_traffic import Traffic
from pocketmq.tools.bench.measure import BenchConditions


def test_messages_and_entries_are_measured_beside_parquet_of_as_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(bench, "MESSAGES", Traffic(count=3_000, log_file_bytes=256 << 10))
    monkeypatch.setattr(bench, "QUEUES", Traffic(count=5_000, log_file_bytes=256 << 10))

    figure = bench.scan(BenchConditions(folder=tmp_path, seconds=0.01))

    assert (figure.facts["messages"], figure.facts["entries"]) == (3_000, 5_000)
    assert parquet.read_metadata(tmp_path / "messages.parquet").num_rows == 3_000
    assert parquet.read_metadata(tmp_path / "consumequeue.parquet").num_rows == 5_000
    assert {name for name in figure.beside if not name.startswith("ratio")} == {
        "parquet_messages_per_second",
        "parquet_entries_per_second",
    }
    assert figure.facts["messages_per_cpu_second"] > 0
