"""Loops of an agent beside its membership: again and again, whatever goes wrong, and what does is heard of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from streamhouse.core.errors import StreamHouseError

Report = Callable[[str, Exception | None], None]
"""Called with (loop name, error); None on recovery."""

_PAUSE_S: Final = 1.0
"""After a failure: the store may be away, and a defect must not eat the processor."""


def unheard(where: str, error: Exception | None) -> None:
    """For a loop whose troubles nobody watches."""


class Background:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._forever(name, step), name=name))

    def works(self, name: str) -> None:
        """For a step that goes on for long: what was wrong is over."""
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
                # Also a defect does not end it: no record and no lease hangs on such a loop, and an agent without one
                # would serve on, stale, with nobody the wiser. Ended agents are worse off than one that tries again.
                self._report(name, error)
                if not isinstance(error, StreamHouseError):
                    asyncio.get_running_loop().call_exception_handler(
                        {"message": f"the loop {name} failed; it goes on", "exception": error}
                    )
                await asyncio.sleep(_PAUSE_S)
            else:
                self._report(name, None)
