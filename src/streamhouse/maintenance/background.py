"""Runs loops beside an agent's membership. An error is reported, and the loop goes on after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from streamhouse.core.errors import StreamHouseError

Report = Callable[[str, Exception | None], None]
"""Called with (loop name, error); None on recovery."""

_PAUSE_S: Final = 1.0
"""The pause after a failure, so that a store that is away, or a bug, does not use a whole core."""


def unheard(where: str, error: Exception | None) -> None:
    """Ignores the report, for a loop whose errors are not watched."""


class Background:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._forever(name, step), name=name))

    def works(self, name: str) -> None:
        """A step that goes on for long calls this when what was wrong is over."""
        self._report(name, None)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forever(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except Exception as error:
                # A defect does not end it either: no record and no lease depends on such a loop, and an agent that has
                # lost one would go on with old data, unnoticed. To try again is better than to end the agent.
                self._report(name, error)
                if not isinstance(error, StreamHouseError):
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": f"the loop {name} failed; it goes on", "exception": error}
                    )
                await asyncio.sleep(_PAUSE_S)
            else:
                self._report(name, None)
