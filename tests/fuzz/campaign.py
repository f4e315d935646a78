"""Fuzz decoders with atheris, which mutates bytes towards code that did not run yet.

    python -m tests.fuzz.campaign --seconds 60            every target for so long
    python -m tests.fuzz.campaign sql --replay FILE       the bytes of FILE again, with a traceback

Bytes that break a rule are stored in `fuzz-findings/`. Once the fault is mended, move them to `tests/fuzz/corpus/`,
where `test_targets.py` tries them again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from ..repository.source_tree import ROOT
from .all_targets import BY_NAME

FINDINGS: Final = ROOT / "fuzz-findings"
#: Inputs are not longer: decoders of more are slow, and reach no other code.
_BYTES_MAX: Final = 4_096
#: An input that takes longer, or needs more memory, is a finding.
_INPUT_S: Final = 10
_MEMORY_MIB: Final = 2_048


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="[TARGET]…", type=click.Choice(list(BY_NAME)))
@click.option("--seconds", default=60, show_default=True, help="Time for each target.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(1))
@click.option("--replay", type=click.Path(exists=True, path_type=Path), help="Try only this file.")
def main(names: Sequence[str], seconds: int, seed: int, replay: Path | None) -> None:
    if replay is not None:
        for name in names:
            BY_NAME[name].check(replay.read_bytes())
            click.echo(f"{name}: {replay} breaks no rule")
        return
    if find_spec("atheris") is None:
        raise click.ClickException(
            "atheris is not installed: run `make fuzz`, or pip install atheris"
        )
    found = [name for name in names or BY_NAME if not _fuzz(name, seconds, seed)]
    if found:
        raise click.ClickException(f"rules broken: {', '.join(found)}; the bytes are in {FINDINGS}")


def _fuzz(name: str, seconds: int, seed: int) -> bool:
    """Fuzz target NAME in a process of its own; return whether no rule was broken."""
    FINDINGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(BY_NAME[name].inputs()):
            Path(folder, str(number)).write_bytes(data)
        command = [
            *(sys.executable, "-m", "tests.fuzz.process", name, folder),
            *(f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={_BYTES_MAX}"),
            *(f"-timeout={_INPUT_S}", f"-rss_limit_mb={_MEMORY_MIB}"),
            f"-artifact_prefix={FINDINGS}/{name}-",
        ]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    tries = next((line for line in reversed(ended.stderr.splitlines()) if "cov:" in line), "")
    click.echo(f"{name}: {tries.strip() or 'nothing was tried'}")
    if ended.returncode:
        click.echo(ended.stdout + ended.stderr[-4_000:])
    return ended.returncode == 0


if __name__ == "__main__":
    main()
