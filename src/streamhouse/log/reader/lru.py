"""Least recently used, bounded by bytes. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteLru(Generic[K, V]):
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        """Without counting as a use."""
        return key in self._items

    def get(self, key: K) -> V | None:
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def demote(self, key: K) -> None:
        """The next to go, should room be needed."""
        if key in self._items:
            self._items.move_to_end(key, last=False)

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """What is larger than the whole cache is not kept, and pushes nothing out."""
        self.drop(key)
        if size_bytes > self._max_bytes:
            return
        self._items[key] = (value, size_bytes)
        self._bytes += size_bytes
        while self._bytes > self._max_bytes:
            _, (_, freed) = self._items.popitem(last=False)
            self._bytes -= freed

    def drop(self, key: K) -> None:
        found = self._items.pop(key, None)
        if found is not None:
            self._bytes -= found[1]
