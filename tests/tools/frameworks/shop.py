"""A Celery application for tests: its tasks write down that they ran."""

from __future__ import annotations

import os
import threading
from typing import Any

from celery import Celery
from celery.signals import task_revoked

import pocketmq.tools.frameworks.kombu_transport  # noqa: F401  # The scheme pocketmq://

app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": float(os.environ["SHOP_LEASE_S"])},
)


@task_revoked.connect
def revoked(request: Any, expired: bool, **_: Any) -> None:
    note(f"revoked {request.args[0]} {'expired' if expired else ''}".strip())


def note(text: str) -> None:
    """Write a line that a kill does not tear."""
    log = os.open(os.environ["SHOP_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{text}\n".encode())
    os.close(log)


@app.task
def handle(number: int, takes_s: float = 0.0) -> None:
    threading.Event().wait(takes_s)
    note(f"{number}")


@app.task(bind=True, max_retries=3)
def fails_twice(self: Any, name: str) -> None:
    note(f"{name} {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
