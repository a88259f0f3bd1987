"""How long to wait before a failed call is tried again. Pure: it computes pauses and never sleeps.

Every retry in the code base uses this module, so that all of them keep three rules.

**The pause doubles with each failure in a row, up to a bound.** A short outage ends soon after the first failure, so
the first pauses are short. A server that is down for long must not get many calls, so later pauses are long. The bound
says how late a caller notices that the other side works again.

**Part of the pause is random (jitter).** A server that comes back after an outage has many clients. Without jitter all
of them call at the same moments, and the server fails again. The randomness is passed in, so that a simulated run
repeats exactly. ``least_share`` is the share of a step that is always waited:

    0.0   "full jitter": between nothing and the whole step. Best for many clients of one server (the object store).
    0.5   "equal jitter": between half of the step and all of it. Never shorter than half, so the rate has a bound.
    1.0   no jitter: for a wait inside one process, where no second client exists.

**A success resets it.** The caller counts the failures in a row and passes the count; this module keeps no state.
``KeyedBackoff`` does the counting for callers that retry many things, each with a pause of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from streamhouse.core.randomness import Randomness

K = TypeVar("K")

_MAX_DOUBLINGS: Final = 30  # larger than any bound divided by any first pause; keeps the shift small


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    first_ms: int
    """The longest pause after the first failure."""
    longest_ms: int
    """The longest pause."""
    least_share: float = 0.5
    """The share of each step that is always waited; the rest is random."""

    def __post_init__(self) -> None:
        if self.first_ms < 1 or self.longest_ms < 1:
            raise ValueError(f"a backoff from {self.first_ms} ms to {self.longest_ms} ms: both must be at least 1")
        if not 0 <= self.least_share <= 1:
            raise ValueError(f"least_share is {self.least_share}; it must be between 0 and 1")

    def step_ms(self, failures: int) -> int:
        """The longest pause after this many failures in a row, without jitter. 0 after no failure."""
        if failures < 1:
            return 0
        return min(self.longest_ms, self.first_ms << min(failures - 1, _MAX_DOUBLINGS))

    def pause_s(self, failures: int, randomness: Randomness) -> float:
        """The pause after this many failures in a row, with jitter, in seconds."""
        step_s = self.step_ms(failures) / 1000
        return randomness.uniform(self.least_share * step_s, step_s)


class KeyedBackoff(Generic[K]):
    """A backoff for each of many keys. Holds one entry for each key that has failed and has not worked since; the
    caller drops keys that no longer exist with ``forget_except``. Without jitter: the keys belong to one process."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._failed: dict[K, tuple[int, int]] = {}
        """Keeps for each key when it may be tried again, and how often it has failed in a row."""

    def __len__(self) -> int:
        return len(self._failed)

    def __contains__(self, key: object) -> bool:
        """Whether it has failed and not worked since."""
        return key in self._failed

    def failed(self, key: K, *, now_ms: int) -> None:
        failures = self._failed[key][1] + 1 if key in self._failed else 1
        self._failed[key] = (now_ms + self._backoff.step_ms(failures), failures)

    def worked(self, key: K) -> None:
        self._failed.pop(key, None)

    def may_try(self, key: K, *, now_ms: int) -> bool:
        return key not in self._failed or self._failed[key][0] <= now_ms

    def waiting(self, *, now_ms: int) -> list[K]:
        """The keys that may not be tried yet."""
        return [key for key, (until_ms, _) in self._failed.items() if until_ms > now_ms]

    def next_ms(self, *, now_ms: int) -> int | None:
        """When the next waiting key may be tried; None if no key waits."""
        return min((until_ms for until_ms, _ in self._failed.values() if until_ms > now_ms), default=None)

    def forget_except(self, existing: Collection[K]) -> None:
        for key in [key for key in self._failed if key not in existing]:
            del self._failed[key]
