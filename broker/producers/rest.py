"""What is left of a run of which a part is stored: its other records, each with its own number. Pure."""

from __future__ import annotations

from ...proto import properties as names
from ...proto.record_copy import RecordCopier
from ...proto.record_run import Longs
from ...store.run import Run
from .numbers import RunNumbers


def rest_of(numbers: RunNumbers, run: Run, rows: Longs) -> list[bytes]:
    """Return the records ROWS of RUN. Raises MessageTooLarge for properties that have no room for the number."""
    copier = RecordCopier(run.records, run.columns)
    rest = []
    for row in rows.tolist():
        string = names.without(copier.properties(row), (names.PRODUCER_SEQUENCE,))
        string += names.encode_pair(names.PRODUCER_SEQUENCE, numbers.own(row))
        rest.append(copier.copy(row, topic=run.topic, queue_id=run.queue, properties=string))
    return rest
