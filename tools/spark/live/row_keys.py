"""The key of a row that Spark sends: the same whenever the same row of the same task is sent again. Pure.

    SPARK_SEQ = "16 hexadecimal digits:row"

The digits hash query, batch and partition: of a stream its query id and batch id, of a batch its job's id and 0. The
row counts within the task from 0 on. So a task that is tried again, a batch that is repeated after a crash and a task
that runs twice give each row the key that it had, as long as the rows come in the same order.
"""

from __future__ import annotations

import hashlib
from typing import Final

#: The property that carries it.
SPARK_SEQUENCE: Final = "SPARK_SEQ"


def task_key(query_id: str, batch_id: int, partition: int) -> int:
    """Return 63 bits that say which task of which batch of which query it is; never 0."""
    text = f"{query_id}\n{batch_id}\n{partition}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1 or 1


def row_key(task: int, row: int) -> str:
    """Return the key of row ROW of the task with key TASK."""
    return f"{task:016x}:{row}"
