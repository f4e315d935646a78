"""Spells: what is meant for the worker goes to the worker, and the message is not handled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.client.pushing.listening import Calls, Job

from .test_process_queue import held


@pytest.mark.parametrize("size", [1, 2])
def test_an_interrupt_ends_the_worker_and_the_message_has_failed(size: int) -> None:
    _, (portion,) = held(0, 1, 2)
    told: list[object] = []

    async def listener(given: Any) -> None:
        raise KeyboardInterrupt

    spell = Calls(listener, size, in_order=False, on_progress=told.append).async_function()

    with pytest.raises(KeyboardInterrupt):
        spell(Job(portion), portion.join()).send(None)
    assert [index for index, _ in portion.results] == list(range(size))
    assert told == [portion]


async def test_a_worker_that_is_cancelled_ends_and_the_message_has_failed() -> None:
    _, (portion,) = held(0, 1, 2)
    told: list[object] = []
    begun = asyncio.Event()

    async def listener(message: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    spell = Calls(listener, 1, in_order=False, on_progress=told.append).async_function()
    worker = asyncio.ensure_future(spell(Job(portion), portion.join()))
    await begun.wait()
    worker.cancel()

    with pytest.raises(asyncio.CancelledError):
        await worker
    assert [index for index, _ in portion.results] == [0]
    assert portion.left == 2


def test_a_spell_that_calls_goes_to_the_end_of_the_row() -> None:
    _, (portion,) = held(*range(100))
    seen: list[Any] = []
    spell = Calls(seen.append, 1, in_order=False, on_progress=print).function()
    job, place = Job(portion), portion.join()

    assert [spell(job, place) for _ in range(3)] == [64, 36, 0]
    assert seen == portion.run.messages()
    assert place.index == 100
