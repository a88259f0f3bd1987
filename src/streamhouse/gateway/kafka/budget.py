"""How much memory the requests of all connections may take together. Over the limit, sockets are not read.

Counted are the buffers that connections keep and the requests that are being served. A connection that finds the
budget spent after a read waits in line; as memory is given back, those in line read again, one a turn of the loop. One
never waits: the one that has been receiving a request for longest. Else connections that each hold half a request would
wait for each other for ever. The server closes it if it takes too long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Receiver(Protocol):
    """A connection, as the budget sees it. It must be hashable and compared by identity."""

    def resume_receiving(self) -> None: ...


_R = TypeVar("_R", bound=Receiver)


class MemoryBudget(Generic[_R]):
    def __init__(self, limit_bytes: int, *, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._call_soon = call_soon
        self._held: dict[_R, int] = {}
        self._receiving: dict[_R, None] = {}
        self._waiting: dict[_R, None] = {}
        self._waking = False

    @property
    def is_spent(self) -> bool:
        return self.used_bytes > self.limit_bytes

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def eldest(self) -> _R | None:
        """The one that has been receiving a request for longest."""
        return next(iter(self._receiving), None)

    def receiving(self) -> list[_R]:
        """The connections that are in the middle of a request, the eldest first."""
        return list(self._receiving)

    def charge(self, count: int) -> None:
        self.used_bytes += count

    def release(self, count: int) -> None:
        self.used_bytes -= count
        self._wake_soon()

    def hold(self, receiver: _R, count: int, *, receiving: bool) -> None:
        """A connection keeps ``count`` bytes now. ``receiving``: the rest of a request is what it waits for."""
        before = self._held.get(receiver, 0)
        if count:
            self._held[receiver] = count
        else:
            self._held.pop(receiver, None)
        if receiving:
            self._receiving[receiver] = None
        elif receiver in self._receiving:
            del self._receiving[receiver]
            self._wake_soon()
        self.used_bytes += count - before
        if count < before:
            self._wake_soon()

    def may_read(self, receiver: _R) -> bool:
        return self.used_bytes <= self.limit_bytes or receiver is self.eldest

    def wait(self, receiver: _R) -> None:
        """``resume_receiving`` is called when it may read again."""
        self._waiting[receiver] = None

    def forget(self, receiver: _R) -> None:
        self._waiting.pop(receiver, None)
        self.hold(receiver, 0, receiving=False)

    def _wake_soon(self) -> None:
        if self._waiting and not self._waking:
            self._waking = True
            self._call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = False
        eldest = self.eldest
        if eldest is not None and eldest in self._waiting:
            del self._waiting[eldest]
            eldest.resume_receiving()
        elif self._waiting and not self.is_spent:
            first = next(iter(self._waiting))
            del self._waiting[first]
            first.resume_receiving()
        else:
            return
        self._wake_soon()
