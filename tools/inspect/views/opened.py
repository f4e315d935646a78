"""The store that a view looks at."""

from __future__ import annotations

import click

from ....store.os_disk import OsDisk
from ....store.view import StoreView
from ..output import Inspected


def opened() -> StoreView:
    """Return the files of the store that the command line names."""
    inspected = click.get_current_context().find_object(Inspected)
    assert inspected is not None, "a view runs below `inspect`"
    return StoreView(OsDisk(), inspected.store, inspected.given)
