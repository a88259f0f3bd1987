"""Where heavy computing runs: in a thread, or on the event loop.

The work is compiled code that releases the interpreter lock (decompression, checksums); pure Python gains nothing in a
thread. The caller limits how much of it runs at a time.
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
        """Returns ``work(*args, **kwargs)``. If the call is cancelled, the work may still run to its end."""
        ...


class InlineOffload:
    """Runs it at once, on the event loop. For the simulator, where the order must be the same in every run."""

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return work(*args, **kwargs)


class ThreadOffload:
    """A bounded pool of threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="offload")

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))

    async def close(self) -> None:
        """Returns after the running work has ended."""
        await asyncio.to_thread(self._pool.shutdown)
