"""Deletes rows of the metadata store that are past their time (R5, R22).

    producers        windows of producers that have not written for long
    commits          append ids that no writer sends again
    epochs           leaderships whose offsets are gone
    agents           agents that ended without signing off
    flush requests   requests that have expired

Every agent runs it. Several are harmless and one is enough. A sweep deletes in small batches with pauses, and so never
holds the store for long. Which rows may go is the contract's matter: a window that is written stays, for example, and
so does an append id whose objects could still be committed. Needs only the metadata store.
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
from streamhouse.metadata.contract import HistoryPlace, MetadataStore

_log = logging.getLogger(__name__)

_ROWS_PER_BATCH: Final = 1_000  # some 10 ms in the store; commits to the same tables wait for no longer
_PAUSE_S: Final = 0.1  # between batches: 10,000 rows a second at most, ten times what a busy fleet adds
_INTERVAL_S: Final = 600.0  # Kafka's producer.id.expiration.check.interval.ms
_SLOW_INTERVAL_S: Final = 3_600.0  # for sweeps that look at rows that stay, of things that are kept for days
_FIRST_LOOK_S: Final = 60.0  # after the start, which has better things to do
_RETRY: Final = Backoff(first_ms=1_000, longest_ms=600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryOptions:
    producer_idle_ms: int
    """Windows of producers that have not written for longer go."""
    commit_keep_ms: int
    """Append ids are kept for longer than this."""
    epoch_keep_ms: int = 7 * 86_400_000
    """Leaderships are kept for longer than this after their end: a WAL may hold frames of theirs (R3, R4). An agent
    decides about them when it leads again, so this is the longest time that it may fail to do so."""
    agent_silent_ms: int = 7 * 86_400_000
    """Agents that have been silent for longer go. Until then people see that they are missing."""
    flush_request_keep_ms: int = 3_600_000
    """Expired flush requests are kept for longer than this, for people who look at the table."""

    def __post_init__(self) -> None:
        if self.epoch_keep_ms <= RESUBMIT_MAX_AGE_MS:
            raise ConfigError(
                f"leaderships kept for {format_duration(self.epoch_keep_ms)} after their end would be gone while they"
                " still say which records may be submitted again (R3, R4)",
                hint=f"keep them for more than {format_duration(RESUBMIT_MAX_AGE_MS)}",
            )
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
    epochs: int = 0
    agents: int = 0
    flush_requests: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    deleted: int
    more: bool
    """True when the sweep is not at its end, as far as is known."""


@dataclass(slots=True, kw_only=True)
class _Sweep:
    """One table: how its next batch is deleted, and when."""

    what: str
    delete: Callable[[int], Awaitable[_Batch]]
    """Called with the number of rows to delete, or to look at, in one batch."""
    pause_s: float
    interval_s: float = _INTERVAL_S
    """The longest pause after a sweep."""
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
        self._swept_to: HistoryPlace | None = None

    def start(self) -> None:
        for name, sweep in self._sweeps().items():
            self._loops.start(f"expiry of {name}", lambda sweep=sweep: self._step(sweep))  # type: ignore[misc]

    def _sweeps(self) -> dict[str, _Sweep]:
        options = self._options
        return {
            "producers": self._sweep(
                f"windows of producers idle for more than {format_duration(options.producer_idle_ms)}",
                self._delete_producers,
            ),
            "commits": self._sweep(
                f"append ids of commits older than {format_duration(options.commit_keep_ms)}", self._delete_commits
            ),
            "epochs": self._sweep(
                f"leaderships that ended more than {format_duration(options.epoch_keep_ms)} ago",
                self._delete_epochs,
                interval_s=_SLOW_INTERVAL_S,
            ),
            "agents": self._sweep(
                f"agents silent for more than {format_duration(options.agent_silent_ms)}",
                self._delete_agents,
                interval_s=_SLOW_INTERVAL_S,
            ),
            "flush requests": self._sweep(
                f"flush requests that expired more than {format_duration(options.flush_request_keep_ms)} ago",
                self._delete_flush_requests,
            ),
        }

    def _sweep(
        self, what: str, delete: Callable[[int], Awaitable[_Batch]], *, interval_s: float = _INTERVAL_S
    ) -> _Sweep:
        return _Sweep(what=what, delete=delete, pause_s=self._jittered_s(_FIRST_LOOK_S), interval_s=interval_s)

    async def close(self) -> None:
        await self._loops.close()

    async def _step(self, sweep: _Sweep) -> None:
        """One batch, after the pause that the one before has set. Raises what the store raises, for the report."""
        await asyncio.sleep(sweep.pause_s)
        try:
            batch = await sweep.delete(_ROWS_PER_BATCH)
        except Exception:
            self.stats.failures += 1
            sweep.failures += 1
            sweep.pause_s = _RETRY.pause_s(sweep.failures, self._randomness)
            raise
        sweep.failures = 0
        sweep.found += batch.deleted
        if batch.more:
            sweep.pause_s = _PAUSE_S
            return
        if sweep.found:
            _log.info("deleted %d %s", sweep.found, sweep.what)
        sweep.found = 0
        sweep.pause_s = self._jittered_s(sweep.interval_s)

    async def _delete_producers(self, limit: int) -> _Batch:
        count = await self._metadata.expire_producers(idle_ms=self._options.producer_idle_ms, limit=limit)
        self.stats.producers += count
        return _Batch(deleted=count, more=count == limit)

    async def _delete_commits(self, limit: int) -> _Batch:
        count = await self._metadata.expire_commits(keep_ms=self._options.commit_keep_ms, limit=limit)
        self.stats.commits += count
        return _Batch(deleted=count, more=count == limit)

    async def _delete_epochs(self, limit: int) -> _Batch:
        found = await self._metadata.expire_epochs(
            keep_ms=self._options.epoch_keep_ms, limit=limit, after=self._swept_to
        )
        self._swept_to = found.after
        self.stats.epochs += found.deleted
        return _Batch(deleted=found.deleted, more=found.after is not None)

    async def _delete_agents(self, limit: int) -> _Batch:
        gone = await self._metadata.expire_agents(silent_ms=self._options.agent_silent_ms, limit=limit)
        self.stats.agents += len(gone)
        return _Batch(deleted=len(gone), more=len(gone) == limit)

    async def _delete_flush_requests(self, limit: int) -> _Batch:
        count = await self._metadata.expire_flush_requests(keep_ms=self._options.flush_request_keep_ms, limit=limit)
        self.stats.flush_requests += count
        return _Batch(deleted=count, more=count == limit)

    def _jittered_s(self, longest_s: float) -> float:
        """Return a random pause, so that the agents of a fleet take turns."""
        return self._randomness.uniform(longest_s / 2, longest_s)
