"""When to flush for clients that wait for a commit. Pure: no clock, no IO. Both ways to write share it.

A flush is one PUT of everything that waits, or a few, and one commit. A client that has as many requests under way as
it may have sends nothing more until one of them is answered. Then waiting longer gains nothing, because nothing more
will share the PUT. So the time to flush is when every waiting client has stopped sending:

    full window    each waiting producer has WINDOW_REQUESTS batches under way; idempotent clients send no more
    quiet          for ``quiet_ms`` nothing has arrived that a client waits for
    longest wait   clients that never stop: the oldest batch has waited for as long as a flush takes, or for less if
                   many bytes wait. Each batch is then committed within about two flushes

A PUT costs money, so small objects have a **budget** of PUTs per second: a token bucket that holds what one second
brings. While it is empty, batches wait for the next token, and share a flush. A flush of a segment's worth takes no
token: its PUTs per GiB are few, however many they are per second. When so much waits that a PUT of it is nearly free,
it does not wait for clients either.

        arrival        due                 token?
    ──────●──────────────●───────────────────●──────► flush
          │ full, quiet, │ the budget may    │
          │ longest wait │ make it later     │

Measured in simulations of real clients: tests/log/test_flush_policy.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamhouse.core.limits import MIB

WINDOW_REQUESTS: Final = 5
"""The most batches of one idempotent producer and partition under way: no client sends more (Kafka allows no more)."""
ENOUGH_BYTES: Final = 8 * MIB
"""128 PUTs for a GiB cost less than a thousandth of a dollar."""
_FIRST_ROUND_MS: Final = 10.0  # until the first flush has been measured
_ROUND_WEIGHT: Final = 0.125  # of a new measurement: eight flushes make the estimate
_LARGEST_STEP: Final = 4.0  # one slow flush counts as at most this many times the estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPace:
    puts_per_second: float
    """How many small objects the budget allows."""
    longest_wait_ms: float
    """The longest wait, however long a flush takes."""
    quiet_ms: float = 2.0
    """Longer than the pauses in which a busy client sends, shorter than the fastest PUT to a remote store."""
    unbudgeted_bytes: int = MIB
    """A flush of this size or more takes no token: a segment's worth."""
    enough_bytes: int = ENOUGH_BYTES
    """A flush of this size or more waits for nothing. Not less than a segment may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits for a flush at this moment, all partitions together."""

    size_bytes: int = 0
    oldest_ms: float | None = None
    """When the oldest batch arrived that a client waits for. None: no client waits."""
    newest_ms: float = 0.0
    """When the newest of them arrived."""
    windows_full: bool = False
    """Each producer that waits has filled its window."""


class RoundTime:
    """How long a flush takes, from its start to the end of its commit, as far as the last ones tell."""

    __slots__ = ("estimate_ms",)

    def __init__(self) -> None:
        self.estimate_ms = _FIRST_ROUND_MS

    def observe(self, round_ms: float) -> None:
        """Leave out flushes that had to be repeated: an outage says nothing about the next flush."""
        usable_ms = min(round_ms, self.estimate_ms * _LARGEST_STEP)
        self.estimate_ms += (usable_ms - self.estimate_ms) * _ROUND_WEIGHT


class PutBudget:
    """A token bucket. It holds at most what one second brings, and at least one token fits into it."""

    __slots__ = ("_at_ms", "_burst", "_per_ms", "_tokens")

    def __init__(self, puts_per_second: float) -> None:
        self._per_ms = puts_per_second / 1000
        self._burst = max(puts_per_second, 1.0)
        self._tokens = self._burst
        self._at_ms: float | None = None

    def available(self, now_ms: float) -> float:
        """Tokens at this time; less than 0 after flushes that were urgent."""
        if self._at_ms is not None and now_ms > self._at_ms:
            self._tokens = min(self._tokens + (now_ms - self._at_ms) * self._per_ms, self._burst)
        if self._at_ms is None or now_ms > self._at_ms:
            self._at_ms = now_ms
        return self._tokens

    def spend(self, now_ms: float) -> None:
        """Take one token. Urgent flushes take it when there is none; the debt is at most what one second brings."""
        self._tokens = max(self.available(now_ms) - 1, -self._burst)

    def ready_ms(self, now_ms: float) -> float:
        """When one token is there: now or later."""
        missing = 1 - self.available(now_ms)
        return now_ms if missing <= 0 else now_ms + missing / self._per_ms


def due_ms(
    waiting: Waiting, pace: FlushPace, *, round_ms: float, last_start_ms: float | None, now_ms: float
) -> float | None:
    """When to start the next flush, if nothing else arrives until then, the budget aside. None: no client waits for it.

    ``last_start_ms``: when the last flush started, if one is under way. A small one starts about half a round after
    it at the earliest: clients that send at different times then share flushes instead of taking turns.
    """
    if waiting.size_bytes >= pace.enough_bytes:
        return now_ms
    if waiting.oldest_ms is None:
        return None
    # The more bytes wait, the less there is to gain.
    missing_share = 1 - waiting.size_bytes / pace.enough_bytes
    wait_ms = min(max(round_ms, pace.quiet_ms), pace.longest_wait_ms) * missing_share
    at_ms = waiting.oldest_ms
    if not waiting.windows_full:
        at_ms = min(waiting.newest_ms + pace.quiet_ms, waiting.oldest_ms + wait_ms)
    if last_start_ms is not None:
        at_ms = max(at_ms, last_start_ms + wait_ms / 2)
    return at_ms


def affordable_ms(at_ms: float, size_bytes: int, pace: FlushPace, *, budget: PutBudget, now_ms: float) -> float:
    """The same time, or when the budget has a token for a flush of this size."""
    return at_ms if size_bytes >= pace.unbudgeted_bytes else max(at_ms, budget.ready_ms(now_ms))
