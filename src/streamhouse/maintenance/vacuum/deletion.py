"""Deletes objects, a few requests at a time, and finds out which of them cannot be deleted.

One object that may not be deleted (a legal hold, a file of another user) must not keep the others. So a request that
is refused for good is halved until the object is found. A request that fails because the store is away is not: the
store's own retries have tried for long, and half of the keys would fail too. What fails is left to the next vacuum.
After a thousand failures it is not one object that may not be deleted: the store refuses deletes, and trying each of a
million objects would not help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from streamhouse.core.errors import StoreError, as_result
from streamhouse.objectstore.contract import ObjectStore

KEYS_PER_REQUEST: Final = 250  # S3 takes 1,000; smaller servers need seconds for that many, and a try has 15 s
MAX_FAILURES: Final = 1_000  # the header says why; a page of objects holds as many
PARALLEL_REQUESTS: Final = 4  # a thousand keys in flight: more would take requests per second from readers and writers


class Deletion:
    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._gate = asyncio.Semaphore(PARALLEL_REQUESTS)
        self._failures = 0

    @property
    def is_hopeless(self) -> bool:
        return self._failures >= MAX_FAILURES

    async def delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        """Delete them and return the keys that could not be deleted, each with its error. Missing objects are fine."""
        failed: dict[str, Exception] = {}

        async def one(part: Sequence[str]) -> None:
            async with self._gate:
                failed.update(await self._delete(part))

        async with asyncio.TaskGroup() as group:
            for start in range(0, len(keys), KEYS_PER_REQUEST):
                group.create_task(one(keys[start : start + KEYS_PER_REQUEST]))
        return failed

    async def _delete(self, keys: Sequence[str]) -> dict[str, Exception]:
        try:
            await self._objects.delete(keys)
        except (StoreError, OSError) as error:  # OSError: as in the leased writer, a client library may raise one
            if len(keys) == 1 or isinstance(error, OSError) or error.retriable or self.is_hopeless:
                self._failures += len(keys)
                return dict.fromkeys(keys, as_result(error))
            half = len(keys) // 2
            return await self._delete(keys[:half]) | await self._delete(keys[half:])
        return {}
