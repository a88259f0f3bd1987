"""When to try again what has failed. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

K = TypeVar("K")


class Patience(Generic[K]):
    """What not to try again for a while, each time it fails twice as long."""

    def __init__(self, *, first_ms: int, longest_ms: int) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._waits: dict[K, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def __contains__(self, thing: object) -> bool:
        """Whether it has failed and not worked since."""
        return thing in self._waits

    def failed(self, thing: K, *, now_ms: int) -> None:
        _, pause_ms = self._waits.get(thing, (0, 0))
        pause_ms = min(2 * pause_ms or self._first_ms, self._longest_ms)
        self._waits[thing] = (now_ms + pause_ms, pause_ms)

    def worked(self, thing: K) -> None:
        self._waits.pop(thing, None)

    def may_try(self, thing: K, *, now_ms: int) -> bool:
        return thing not in self._waits or self._waits[thing][0] <= now_ms

    def waiting(self, *, now_ms: int) -> list[K]:
        return [thing for thing, (until_ms, _) in self._waits.items() if until_ms > now_ms]

    def next_ms(self, *, now_ms: int) -> int | None:
        """When the first that still waits may be tried again."""
        return min((until_ms for until_ms, _ in self._waits.values() if until_ms > now_ms), default=None)

    def forget_except(self, existing: Collection[K]) -> None:
        for thing in [thing for thing in self._waits if thing not in existing]:
            del self._waits[thing]
