"""Where heavy computing runs: beside the event loop, or on it.

The work handed over is compiled code that lets go of the interpreter lock (inflating, checksums); pure Python gains
nothing in a thread. How much of it is under way at a time is bounded by whoever hands it over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Offload(Protocol):
    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of ``work(*args, **kwargs)``. When cancelled, the work may still run to its end."""
        ...


class InlineOffload:
    """At once, on the event loop: for the simulator, where nothing may happen in another order when run again."""

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return work(*args, **kwargs)


class ThreadOffload:
    """A bounded pool of threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="offload")

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))

    async def close(self) -> None:
        """After the work under way has ended."""
        await asyncio.to_thread(self._pool.shutdown)
