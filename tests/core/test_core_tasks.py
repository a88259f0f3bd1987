"""Errors of tasks that no caller waits for any more."""

from __future__ import annotations

import asyncio
import gc

import pytest

from streamhouse.core.tasks import retrieve


@pytest.mark.parametrize("retrieved", [True, False])
async def test_the_error_of_an_abandoned_task_is_not_logged(retrieved: bool) -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))

    async def fails() -> None:
        raise OSError

    task = asyncio.ensure_future(fails())
    if retrieved:
        task.add_done_callback(retrieve)
    await asyncio.wait({task})
    await asyncio.sleep(0)
    del task
    gc.collect()
    assert complaints == ([] if retrieved else ["Task exception was never retrieved"])


async def test_a_cancelled_task_has_no_error_to_see() -> None:
    task = asyncio.ensure_future(asyncio.sleep(3600))
    task.cancel()
    await asyncio.wait({task})
    retrieve(task)
