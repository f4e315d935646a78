"""Replica sets: the model searched through, random walks, and how many of them a broken rule takes to be found out.

    python -m tests.simulation.replica_campaign --walks 10000 --mutant-walks 20000 --depth 40

Every walk replays from its plan, which is printed where something is found.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import Final

from .replica_folder_model import Setup, roam as roam_with_folders
from .replica_model import roam, search
from .replica_mutants import MUTANTS, mutant
from .replicas import Plan, Violated, walk

#: Walks are of each kind in turn.
KINDS: Final = (
    Plan(seed=0),
    Plan(seed=0, flush_sync=True),
    Plan(seed=0, min_in_sync=2),
    Plan(seed=0, replicas=2),
    Plan(seed=0, replicas=2, min_in_sync=2, flush_sync=True),
    Plan(seed=0, replica_ack="memory"),
    Plan(seed=0, timed=True, steps=600),
    Plan(seed=0, flush_sync=True, emphasis="sessions"),
    Plan(seed=0, flush_sync=True, emphasis="power"),
    Plan(seed=0, flush_sync=True, emphasis="registry"),
    Plan(seed=0, flush_sync=True, emphasis="restarts"),
    Plan(seed=0, replicas=4, min_in_sync=2, flush_sync=True, emphasis="sessions", steps=800),
    Plan(seed=0, emphasis="moves"),
    Plan(seed=0, min_in_sync=2, flush_sync=True, emphasis="moves"),
    Plan(seed=0, flush_sync=True, goes_back=True, steps=600),
    Plan(seed=0, replicas=2, goes_back=True, steps=600),
)
#: Folders go back in each of these.
FOLDERS: Final = (
    Setup(kind="none"),
    Setup(kind="none", replicas=3, min_in_sync=2),
    Setup(kind="none", replicas=3),
    Setup(persons=1),
    Setup(replicas=2, min_in_sync=2),
    Setup(replicas=3, persons=1),
    Setup(replicas=3, min_in_sync=2, persons=1),
    Setup(kind="any", each=True),
    Setup(kind="any", each=True, replicas=3, min_in_sync=2),
)


def walk_all(seeds: range) -> tuple[int, int]:
    """Walk each of SEEDS; return how often something was acknowledged, and a master elected. Raises Violated."""
    acknowledged = elections = 0
    for seed in seeds:
        found = walk(replace(KINDS[seed % len(KINDS)], seed=seed))
        acknowledged += found.acknowledged
        elections += found.elections
    return acknowledged, elections


def catch(name: str, seeds: range) -> tuple[int, str] | None:
    """Return the first of SEEDS whose walk finds the mutant NAME out, and what was found; None: none does."""
    plan = MUTANTS[name][1]
    with mutant(name):
        for seed in seeds:
            try:
                walk(replace(plan, seed=seed))
            except Violated as error:
                return seed, str(error).partition("\n")[0]
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=10_000)
    parser.add_argument("--mutant-walks", type=int, default=20_000)
    parser.add_argument("--only", default="", help="mutants with this in their names")
    parser.add_argument("--depth", type=int, default=25)
    given = parser.parse_args()
    for least in (1, 2):
        count, deep = search(given.depth, least)
        heard = sum(roam(seed, 3, 80, least) for seed in range(given.walks))
        tell(
            f"model, min_in_sync {least}: 2 replicas, {count} states {deep} deep; 3, {heard} acknowledged"
        )
    for setup in FOLDERS:
        models = [roam_with_folders(seed, setup) for seed in range(given.walks)]
        heard = sum(one.acknowledgements for one in models)
        found_out = sum(one.found_out for one in models)
        tell(f"{setup}: {given.walks} walks, {heard} acknowledged, {found_out} found out")
    began_s = time.process_time()
    acknowledged, elections = walk_all(range(given.walks))
    spent_s = time.process_time() - began_s
    tell(
        f"{given.walks} walks, {acknowledged} acknowledged, {elections} elections, {spent_s:.0f} s"
    )
    missed = 0
    for name in MUTANTS:
        if given.only in name:
            found = catch(name, range(given.mutant_walks))
            missed += found is None
            tell(f"{name:36} {f'seed {found[0]}: {found[1]}' if found else 'NOT FOUND'}")
    return 1 if missed else 0


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
