"""Broken variants of what the code does when a store has lost something (R23), when a disk is full (R11), and when rows
are collected as garbage (R5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from simulator.anomalies import Kind
from simulator.errands import Errands
from simulator.mutant import Mutant
from simulator.mutants_metadata import commits_may_expire, with_expiring_commits
from simulator.run import replaced
from simulator.scenario import Mischief, Scenario
from simulator.world import World
from streamhouse.core.errors import CorruptData
from streamhouse.log.leased import recovery
from streamhouse.log.leased.held import HeldFrames
from streamhouse.log.leased.lost_commits import LostCommits
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.recovery import SortedFrames
from streamhouse.log.wal import files
from streamhouse.metadata.contract import Durability
from streamhouse.metadata.sqlite.store import SqliteMetadata

_EXPIRED_MS = 300


def _lossy(scenario: Scenario) -> bool:
    return scenario.durability is Durability.OBJECT and Mischief.LOSSY_METADATA in scenario.mischief


def _stranded_is_corrupt(stack: ExitStack, world: World, errands: Errands) -> None:
    async def write_off(self: LostCommits, lease: Any, partition: PartitionLog, frames: SortedFrames) -> Any:
        raise CorruptData(recovery.stranded_words(str(partition), frames))

    stack.enter_context(replaced(LostCommits, "write_off", lambda original: write_off))


def _decided_in_memory(stack: ExitStack, world: World, errands: Errands) -> None:
    """R4 sorts stranded frames, and the history has no leadership that would make a later start do the same."""

    def make(original: Any) -> Any:
        async def sort(self: HeldFrames, partition: PartitionLog) -> SortedFrames:
            found: SortedFrames = await original(self, partition)
            oldest_ms = self.clock.wall_ms() - self.max_age_ms
            compacted = partition.config.compacts
            dropped = []
            for frame in found.stranded:
                if recovery._may_resubmit(frame, compacted=compacted, oldest_ms=oldest_ms):
                    found.resubmit.append(frame)
                else:
                    dropped.append(frame)
            found.stranded.clear()
            found.dropped += dropped
            self.settle(partition.key, dropped)
            return found

        return sort

    stack.enter_context(replaced(HeldFrames, "sort", make))


def _full_disk_is_fatal(stack: ExitStack, world: World, errands: Errands) -> None:
    @contextmanager
    def untold(size_bytes: int) -> Iterator[None]:
        yield

    stack.enter_context(replaced(files, "_told_when_full", lambda original: untold))


def _expiry_ignores_the_horizon(stack: ExitStack, world: World, errands: Errands) -> None:
    def expire(tx: Any, *, keep_ms: int, limit: int) -> Any:
        return tx.run("DELETE FROM commits WHERE committed_at < ?", (tx.now_ms - _EXPIRED_MS,))

    stack.enter_context(replaced(SqliteMetadata.expire_commits, "step", lambda original: expire))


MUTANTS = (
    Mutant(
        name="lost commits are called corruption",
        rule="R23",
        story="frames beyond the end of a log whose last commits were lost are refused, and the partition never opens",
        shows_as=frozenset({Kind.PROBLEM}),
        breaks=_stranded_is_corrupt,
        applies=_lossy,
    ),
    Mutant(
        name="lost commits leave no leadership",
        rule="R23",
        story="what becomes of such frames is decided in memory, and a restart finds them once more",
        shows_as=frozenset({Kind.DUPLICATED, Kind.LOST, Kind.REORDERED, Kind.WRONG_OFFSET, Kind.PROBLEM}),
        breaks=_decided_in_memory,
        applies=_lossy,
    ),
    Mutant(
        name="full disk ends the process",
        rule="R11",
        story="no room for the next WAL file counts as a failure of the disk",
        shows_as=frozenset({Kind.PROBLEM}),
        breaks=_full_disk_is_fatal,
        applies=lambda scenario: Mischief.FULL_DISK in scenario.mischief,
    ),
    Mutant(
        name="commit expiry ignores the horizon",
        rule="R5",
        story="rows of commits go after 300 ms, also those whose objects could be committed again",
        shows_as=frozenset({Kind.DUPLICATED, Kind.LOST, Kind.WRONG_OFFSET, Kind.PROBLEM}),
        breaks=_expiry_ignores_the_horizon,
        applies=commits_may_expire,
        needs=with_expiring_commits,
    ),
)
