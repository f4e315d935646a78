"""Stores damaged at random: what we predict of Apache's broker is what it does. POCKETMQ_SEED chooses others."""

import contextlib
import io
import os
import random
from pathlib import Path

import pytest

from pocketmq.proto.clock import SystemClock
from pocketmq.store.apache.settings import ApacheSettings
from pocketmq.tools.inspect.document import describe_apache

from ..recorded import recorded_store, settings
from ..stores import comparable, differences
from .java_oracle import damage_tool, dumps, require_java

pytestmark = [pytest.mark.long, pytest.mark.java, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("POCKETMQ_SEED", "1"))
STORES = int(os.environ.get("POCKETMQ_STORES", "12"))
#: The oracle fails where a batch queue has lost its records, so `encodings` and `prop-crc` are left out.
BASES = ["rolled", "unclean-late", "cleaned", "delays", "transactions"]
#: A store without config files has versions of this very moment, and the oracle fails where both copies are cut.
LEFT_OUT = {"no-config", "broken-json-both"}


def damaged(rng: random.Random, folder: Path) -> tuple[Path, dict[str, str]]:
    """Make a store with one to three kinds of damage, in FOLDER."""
    tool = damage_tool()
    kinds = sorted(set(tool.KINDS) - LEFT_OUT)
    while True:
        base = rng.choice(BASES)
        chosen = rng.sample(kinds, rng.choice([1, 1, 2, 3]))
        if rng.random() < 0.5:
            chosen.append("unclean")
        target = folder / f"{base}--{'_'.join(chosen)}"
        if target.exists():
            continue
        source = recorded_store(base, folder / f"source-{rng.getrandbits(64):x}")
        # A kind that finds nothing to damage, or what another removed, ends the tool.
        with (
            contextlib.suppress(SystemExit, OSError, IndexError),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            tool.main("+".join(chosen), str(source), str(target))
            return target, settings(base)


def test_damaged_stores_are_predicted_exactly(tmp_path: Path) -> None:
    require_java()
    rng = random.Random(SEED)
    stores = [damaged(rng, tmp_path) for _ in range(STORES)]

    wanted = dumps(stores, tmp_path / "java")

    wrong = {}
    for (store, given), java in zip(stores, wanted, strict=True):
        chosen = ApacheSettings.of(given)
        ours = describe_apache(str(store), given, chosen, SystemClock().now_ms())
        places = differences(comparable(java), comparable(ours))
        if places:
            wrong[store.name] = places
    assert wrong == {}
