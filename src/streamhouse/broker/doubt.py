"""What may have changed since the cluster view last read it from the store. Pure, except that it wakes the view."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from streamhouse.metadata.contract import LeaseKey

_MANY_TOPICS: Final = 16  # above it, one look at all of them is cheaper than one at each
_MANY_KEYS: Final = 5_000


class Doubt:
    """Bounded: above a number of names or keys it is everything."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.keys: set[LeaseKey] = set()
        self.of_everything = False
        self._any = asyncio.Event()

    def add(self, keys: Iterable[LeaseKey]) -> None:
        if not self.of_everything:
            self.keys.update(keys)
            if len(self.keys) > _MANY_KEYS:
                self.everything()
            elif self.keys:
                self._any.set()

    def add_name(self, name: str) -> None:
        if not self.of_everything:
            self.names.add(name)
            if len(self.names) > _MANY_TOPICS:
                self.everything()
            self._any.set()

    def everything(self) -> None:
        self.of_everything = True
        self.names, self.keys = set(), set()
        self._any.set()

    def clear(self) -> None:
        self.of_everything = False
        self.names, self.keys = set(), set()
        self._any.clear()

    async def wait(self) -> None:
        await self._any.wait()
