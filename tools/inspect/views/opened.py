"""The store that a view looks at."""

from __future__ import annotations

import click

from ....store.os_disk import OsDisk
from ..output import Inspected
from ..store_files import StoreFiles


def opened() -> StoreFiles:
    """Return the files of the store that the command line names."""
    inspected = click.get_current_context().find_object(Inspected)
    assert inspected is not None, "a view runs below `inspect`"
    return StoreFiles(OsDisk(), inspected.store, inspected.given)
