"""Errors of Spark, as one sentence without the JVM's pages.

Spark passes on what Python raises in a task as text with a traceback. If a line of it names an error of PocketMQ, that
error is raised again; otherwise the first line of the text is the message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ....proto import errors
from ....proto.errors import PocketMQError

_RAISED: Final = re.compile(r"(?:^|[\s\]])(?:pocketmq\.[\w.]+\.)?([A-Z]\w+): ([^\n]*)")
_TEXT_MAX: Final = 500


@contextmanager
def told_plainly() -> Iterator[None]:
    """Raise a PocketMQError in place of what Spark raises while the block runs."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise plain_error(str(error)) from error


def plain_error(text: str) -> PocketMQError:
    """Return the error of PocketMQ in TEXT, an error of Spark; or one with the first line of TEXT."""
    for name, message in _RAISED.findall(text):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, PocketMQError):
            return kind(message.strip()[:_TEXT_MAX])
    return PocketMQError(f"Spark: {text.strip().splitlines()[0][:_TEXT_MAX]}")
