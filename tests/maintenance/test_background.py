"""Loops beside the membership: what they survive, and how it shows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.maintenance import background
from streamhouse.maintenance.background import Background


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_PAUSE_S", 0)


@pytest.mark.parametrize(
    ("error", "is_defect"), [(MetadataUnavailable("away"), False), (KeyError("oops"), True)], ids=["store", "defect"]
)
async def test_a_loop_goes_on_after_a_failure_and_tells_of_it(error: Exception, is_defect: bool) -> None:
    heard: list[tuple[str, Exception | None]] = []
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
    works = asyncio.Event()
    failures = [error]

    async def step() -> None:
        if failures:
            raise failures.pop()
        works.set()
        await asyncio.sleep(0)

    loops = Background(lambda where, error: heard.append((where, error)))
    loops.start("a loop", step)
    async with asyncio.timeout(5):
        await works.wait()
        await asyncio.sleep(0.001)
    await loops.close()
    assert heard[:2] == [("a loop", error), ("a loop", None)]
    assert [context["exception"] for context in logged] == ([error] if is_defect else [])
