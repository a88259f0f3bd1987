"""Services on one cluster's stores, as several processes would make them; and a store that a test can hold up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from compaction_ground import AT_ONCE, WrittenLog
from keyed_logs import KeyGround, keyed

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.service import CompactionService, ServiceOptions
from streamhouse.maintenance.service.usage import PrefixUsage
from streamhouse.metadata.contract import MetadataStore

FAST = 1 << 40
"""A rate that never waits."""


class ServiceGround(KeyGround):
    """Holds what the processes tell of themselves, by the owner."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.problems: dict[str, Exception] = {}
        self.usage: dict[str, PrefixUsage] = {}
        self._made: list[CompactionService] = []

    def service(self, *, metadata: Any = None, objects: Any = None, owner: str = "c-1", **options: Any) -> Any:
        self._owners += 1

        def report(where: str, error: Exception | None) -> None:
            if error is None:
                self.problems.pop(where, None)
            else:
                self.problems[where] = error

        made = CompactionService(
            metadata=metadata or self.metadata,
            objects=objects or self.memory,
            offload=InlineOffload(),
            clock=self.clock,
            randomness=SeededRandomness(3_000 + self._owners),
            owner=owner,
            options=ServiceOptions(**{"rules": AT_ONCE, "bytes_per_second": FAST, **options}),
            report=report,
            on_usage=self.usage.update,
        )
        self._made.append(made)
        return made

    async def keyed_topic(self, name: str = "table") -> WrittenLog:
        """A topic of two objects with one key: the older record is superseded."""
        log = await self.log(name)
        await self.metadata.alter_topic_configs(
            log.topic.topic_id, set_configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        )
        for value in (b"old", b"new", b"newest"):
            await log.write(keyed((b"k", value)))
        await self.advance(1)
        return log

    async def close(self) -> None:
        for service in self._made:
            await service.close()


async def reached(condition: Callable[[], object]) -> None:
    """Returns once it holds. The limit is far beyond what it takes."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(0.01)


async def idle(service: CompactionService) -> None:
    """Returns once no task waits and none runs."""
    await reached(lambda: not service.pool.queue.waiting and not service.pool.queue.running)


class WatchedMetadata:
    """A metadata store that counts calls, fails those that it is told to, and holds up others."""

    def __init__(self, inner: MetadataStore) -> None:
        self.calls: Counter[str] = Counter()
        self.errors: dict[str, StreamHouseError] = {}
        self.held: dict[str, asyncio.Event] = {}
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)

        async def call(*args: Any, **more: Any) -> Any:
            self.calls[name] += 1
            if name in self.held:
                await self.held[name].wait()
            if name in self.errors:
                raise self.errors[name]
            return await real(*args, **more)

        return call


async def kinds(log: WrittenLog) -> list[str]:
    return [entry.kind.value for entry in await log.entries()]


def keys(*logs: WrittenLog) -> set[PartitionKey]:
    return {log.key for log in logs}
