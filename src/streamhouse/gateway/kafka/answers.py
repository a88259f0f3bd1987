"""Answers leave a connection in the order of its requests, whenever they are ready. No IO."""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from streamhouse.core.limits import KIB
from streamhouse.wire.buffers import BytesLike

OWN_WRITE_BYTES: Final = 32 * KIB
"""Joining less costs less than a system call; more is cheaper to send from where it lies."""


class AnswerSlot:
    """The place of one answer that is not ready yet."""

    __slots__ = (
        "api_key",
        "cancel_with_client",
        "correlation_id",
        "flexible",
        "future",
        "pieces",
        "ready",
        "request_bytes",
    )

    def __init__(self, *, api_key: int, correlation_id: int, flexible: bool, request_bytes: int) -> None:
        self.api_key = api_key
        self.correlation_id = correlation_id
        self.flexible = flexible
        self.request_bytes = request_bytes
        self.future: Future[Any] | None = None
        self.cancel_with_client = False
        self.pieces: Sequence[BytesLike] = ()
        self.ready = False


class Answers:
    __slots__ = ("_ready", "held_bytes", "slots")

    def __init__(self) -> None:
        self.slots: deque[AnswerSlot] = deque()
        """One for each request under way, oldest first."""
        self._ready: list[BytesLike] = []
        self.held_bytes = 0
        """Answers not taken yet, whether they may be sent or wait behind others."""

    def put(self, pieces: Sequence[BytesLike]) -> None:
        """The answer to the newest request."""
        self.held_bytes += sum(map(len, pieces))
        if not self.slots:
            self._ready += pieces
            return
        slot = AnswerSlot(api_key=-1, correlation_id=0, flexible=False, request_bytes=0)
        slot.pieces, slot.ready = pieces, True
        self.slots.append(slot)

    def settle(self, slot: AnswerSlot, pieces: Sequence[BytesLike]) -> None:
        """``pieces``: empty where a request has no answer."""
        self.held_bytes += sum(map(len, pieces))
        slot.pieces, slot.ready = pieces, True
        slots = self.slots
        while slots and slots[0].ready:
            self._ready += slots.popleft().pieces

    def take(self) -> list[BytesLike]:
        """Return the answers that may be sent now."""
        ready, self._ready = self._ready, []
        self.held_bytes -= sum(map(len, ready))
        return ready


def coalesce(pieces: list[BytesLike]) -> Iterator[BytesLike]:
    """Join small pieces and keep large ones, so that a socket needs few writes."""
    if len(pieces) == 1:
        yield pieces[0]
        return
    run: list[BytesLike] = []
    for piece in pieces:
        if len(piece) < OWN_WRITE_BYTES:
            run.append(piece)
            continue
        if run:
            yield b"".join(run)
            run = []
        yield piece
    if run:
        yield b"".join(run)
