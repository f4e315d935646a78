"""What a replica is not served with: refused at the start, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..integration.command import pocketmq

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--grpc", "grpcio"), "--grpc grpcio is for one broker"),
        (("--clock", "virtual"), "--clock virtual is for one broker"),
    ],
)
def test_what_is_for_one_broker_is_refused(
    tmp_path: Path, words: tuple[str, str], said: str
) -> None:
    store = tmp_path / "store"
    replica = ("--replica-set", "orders", "--replica-id", "1", "--zookeeper", "127.0.0.1:1")

    done = pocketmq("broker", "--store", str(store), "--port", "0", *replica, *words)

    assert (done.code, store.exists()) == (2, False)
    assert said in done.err
