"""Deletes rows of the metadata store that are past their time: idle producers and old append ids (R5, R22).

Every agent runs it. Agents that sweep at the same time take different rows, so that several are harmless and one is
enough. A sweep deletes in small batches with pauses, and so never holds the store for long. Which rows may go is the
contract's matter: a window that is written stays, and so does an append id whose objects could still be committed.
Needs only the metadata store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import ConfigError
from streamhouse.core.limits import RESUBMIT_MAX_AGE_MS
from streamhouse.core.randomness import Randomness
from streamhouse.core.units import format_duration
from streamhouse.maintenance.background import Background, Report, unheard
from streamhouse.metadata.contract import MetadataStore

_log = logging.getLogger(__name__)

_ROWS_PER_BATCH: Final = 1_000  # some 10 ms in the store; commits to the same tables wait for no longer
_PAUSE_S: Final = 0.1  # between batches: 10,000 rows a second at most, ten times what a busy fleet adds
_INTERVAL_S: Final = 600.0  # Kafka's producer.id.expiration.check.interval.ms
_FIRST_LOOK_S: Final = 60.0  # after the start, which has better things to do
_RETRY: Final = Backoff(first_ms=1_000, longest_ms=600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryOptions:
    producer_idle_ms: int
    """Windows of producers that have not written for longer go."""
    commit_keep_ms: int
    """Append ids are kept for longer than this."""

    def __post_init__(self) -> None:
        if self.commit_keep_ms <= RESUBMIT_MAX_AGE_MS:
            raise ConfigError(
                f"append ids kept for {format_duration(self.commit_keep_ms)} would be gone while records of that age "
                "may still be submitted again under them, and would come twice (R4, R5)",
                hint=f"set metadata.commit_retention to more than {format_duration(RESUBMIT_MAX_AGE_MS)}",
            )


@dataclass(slots=True, kw_only=True)
class ExpiryStats:
    """Counters since the start."""

    producers: int = 0
    commits: int = 0
    failures: int = 0


@dataclass(slots=True, kw_only=True)
class _Sweep:
    """One table: how its next batch is deleted, and when."""

    what: str
    delete: Callable[[int], Awaitable[int]]
    pause_s: float
    found: int = 0
    """Deleted so far by the sweep under way."""
    failures: int = 0
    """The number of failures in a row."""


class RowExpiry:
    def __init__(
        self, *, metadata: MetadataStore, randomness: Randomness, options: ExpiryOptions, report: Report = unheard
    ) -> None:
        self.stats = ExpiryStats()
        self._metadata = metadata
        self._randomness = randomness
        self._options = options
        self._loops = Background(report)

    def start(self) -> None:
        for name, sweep in {
            "expiry of producers": _Sweep(
                what=f"windows of producers idle for more than {format_duration(self._options.producer_idle_ms)}",
                delete=self._delete_producers,
                pause_s=self._jittered_s(_FIRST_LOOK_S),
            ),
            "expiry of commits": _Sweep(
                what=f"append ids of commits older than {format_duration(self._options.commit_keep_ms)}",
                delete=self._delete_commits,
                pause_s=self._jittered_s(_FIRST_LOOK_S),
            ),
        }.items():
            self._loops.start(name, lambda sweep=sweep: self._step(sweep))  # type: ignore[misc]

    async def close(self) -> None:
        await self._loops.close()

    async def _step(self, sweep: _Sweep) -> None:
        """One batch, after the pause that the one before has set. Raises what the store raises, for the report."""
        await asyncio.sleep(sweep.pause_s)
        try:
            count = await sweep.delete(_ROWS_PER_BATCH)
        except Exception:
            self.stats.failures += 1
            sweep.failures += 1
            sweep.pause_s = _RETRY.pause_s(sweep.failures, self._randomness)
            raise
        sweep.failures = 0
        sweep.found += count
        if count == _ROWS_PER_BATCH:
            sweep.pause_s = _PAUSE_S
            return
        if sweep.found:
            _log.info("deleted %d %s", sweep.found, sweep.what)
        sweep.found = 0
        sweep.pause_s = self._jittered_s(_INTERVAL_S)

    async def _delete_producers(self, limit: int) -> int:
        count = await self._metadata.expire_producers(idle_ms=self._options.producer_idle_ms, limit=limit)
        self.stats.producers += count
        return count

    async def _delete_commits(self, limit: int) -> int:
        count = await self._metadata.expire_commits(keep_ms=self._options.commit_keep_ms, limit=limit)
        self.stats.commits += count
        return count

    def _jittered_s(self, longest_s: float) -> float:
        """Return a random pause, so that the agents of a fleet take turns."""
        return self._randomness.uniform(longest_s / 2, longest_s)
