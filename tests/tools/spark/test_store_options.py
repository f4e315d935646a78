"""What the options of `rocketmq-store` say; none of these tests needs Spark."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: run `make dev`")

from pocketmq.proto.errors import ConfigError
from pocketmq.tools.spark.store_options import store_options


def test_a_store_is_opened_as_of_now_whatever_instant_that_is() -> None:
    options = store_options({"path": "store", "now": "0"})

    assert options.opening.now_ms == 0


def test_the_brokers_settings_go_to_scans_and_to_whole_stores() -> None:
    options = store_options({"path": "store", "maxindexnum": "2000", "recovery": "POCKETMQ"})

    assert options.scan.settings == options.opening.settings == {"maxIndexNum": "2000"}
    assert options.opening.recovery == "pocketmq"


@pytest.mark.parametrize(
    ("name", "value"),
    [("queueId", "0,x"), ("recovery", "theirs"), ("now", "-1"), ("batchRows", "0")],
)
def test_a_value_that_cannot_be_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name} is '{value}'"):
        store_options({"path": "store", name: value})
