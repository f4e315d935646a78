"""The process of `campaign.py` that fuzzes one target: `python -m tests.fuzz.process TARGET FOLDER -option=value…`."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any

#: It has no types, and is not installed with the rest.
atheris: Any = import_module("atheris")

with atheris.instrument_imports(include=["pocketmq"]):
    from .all_targets import BY_NAME


def main() -> None:
    """Call the target until the time is over, or a rule is broken."""
    logging.disable(logging.CRITICAL)
    program, name, *rest = sys.argv
    atheris.Setup([program, *rest], BY_NAME[name].check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
