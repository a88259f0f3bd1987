"""Broken variants of the leased log: when it acknowledges, what it remembers, what it shows, what it brings back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from simulator.anomalies import Kind
from simulator.errands import Errands
from simulator.mutant import Mutant
from simulator.mutants_metadata import base_offset_unchecked
from simulator.run import replaced
from simulator.scenario import Scenario
from simulator.world import World
from streamhouse.core.errors import MetadataError
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.log.leased import recovery, resubmission
from streamhouse.log.leased.commit import Committer, Turn
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.replay import Replay
from streamhouse.log.leased.resubmission import Resubmission
from streamhouse.log.leased.writing import Writing
from streamhouse.log.reader.cursor import Cursor
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.reader.views import PartitionView
from streamhouse.metadata.contract import Durability, ProducerPage


def _fleet(scenario: Scenario) -> bool:
    return scenario.durability is Durability.OBJECT


def _single(scenario: Scenario) -> bool:
    return scenario.durability is Durability.WAL


def _with_idempotent(scenario: Scenario) -> bool:
    return any(plan.idempotent for plan in scenario.producers)


def _idempotent_fleet(scenario: Scenario) -> bool:
    return _fleet(scenario) and _with_idempotent(scenario)


def _provisional(scenario: Scenario) -> bool:
    return _fleet(scenario) and any(plan.acks == 1 and not plan.idempotent for plan in scenario.producers)


def _ack_before_commit(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(replaced(Writing, "_waits_for_commit", lambda original: lambda self, acks, has_producer: False))


def _ack_before_sync(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def append_to(self: Writing, *args: Any, **kwargs: Any) -> Any:
            appended = original(self, *args, **kwargs)
            if not appended.done.done():
                appended.done.set_result(None)
            return appended

        return append_to

    stack.enter_context(replaced(Writing, "append_to", make))


def _starts_at_the_watermark(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        async def run(self: Replay, partition: PartitionLog, frames: Any) -> Any:
            frames.replay.clear()
            return await original(self, partition, frames)

        return run

    stack.enter_context(replaced(Replay, "run", make))


def _foreign_epochs_ignored(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(replaced(recovery, "foreign_start", lambda original: lambda *args, **kwargs: None))


def _everything_comes_back(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(replaced(recovery, "_may_resubmit", lambda original: lambda *args, **kwargs: True))


def _compacted_comes_back(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        return lambda frame, *, compacted, oldest_ms: original(frame, compacted=False, oldest_ms=oldest_ms)

    stack.enter_context(replaced(recovery, "_may_resubmit", make))


def _comes_back_under_a_new_id(stack: ExitStack, world: World, errands: Errands) -> None:
    dice = world.dice.child("mutant")
    stack.enter_context(
        replaced(resubmission, "resubmission_id", lambda original: lambda wal_id, lsn: AppendId(dice.uuid()))
    )


def _gives_offsets_twice(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        async def run(self: Resubmission, partition: PartitionLog, frames: Any) -> Any:
            before = (partition.next_offset, partition.high_watermark, partition.synced_end)
            came = await original(self, partition, frames)
            partition.next_offset, partition.high_watermark, partition.synced_end = before
            return came

        return run

    stack.enter_context(replaced(Resubmission, "run", make))


def _repacks_after_doubt(stack: ExitStack, world: World, errands: Errands) -> None:
    """ "The commit failed, so the batches are not in the log": put them at its end, under a new id."""

    def make(original: Any) -> Any:
        async def commit_slices(self: Committer, append_id: AppendId, slices: Any) -> Any:
            while True:
                try:
                    return await self.metadata.commit_leased(append_id, slices)
                except MetadataError:
                    await asyncio.sleep(0.05)
                try:
                    states = await self.metadata.get_partitions([piece.key for piece in slices])
                except MetadataError:
                    continue
                ends = {state.key: state.high_watermark for state in states}
                append_id = AppendId(self.randomness.uuid())
                slices = [replace(piece, base_offset=ends.get(piece.key, piece.base_offset)) for piece in slices]

        return commit_slices

    stack.enter_context(replaced(Committer, "commit_slices", make))


def _forgets_producers(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            answer = original(name, args, kwargs)
            if name != "load_producers":
                return answer
            return dict.fromkeys(answer, ProducerPage(states=(), more=False, forgotten_up_to=-1, highest_id=-1))

        return run

    stack.enter_context(replaced(world.metadata, "run", make))


def _retry_before_its_original(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def repeat(self: Writing, base_offset: int, pending: Any, *args: Any, **kwargs: Any) -> Any:
            return original(self, base_offset, None, *args, **kwargs)

        return repeat

    stack.enter_context(replaced(Writing, "_repeat", make))


def _producers_not_rolled_back(stack: ExitStack, world: World, errands: Errands) -> None:
    windows: dict[tuple[int, PartitionKey], Mapping[int, Any]] = {}

    def make_drop(original: Any) -> Any:
        def drop(self: LeasedLog, key: PartitionKey, reason: str) -> None:
            if key in self._partitions:
                windows[id(self), key] = self._partitions[key].producers.windows
            original(self, key, reason)

        return drop

    def make_open(original: Callable[..., Awaitable[None]]) -> Any:
        async def open_partition(self: LeasedLog, lease: Any, topic: Any, **kwargs: Any) -> None:
            await original(self, lease, topic, **kwargs)
            self._partitions[lease.key].producers.windows.update(windows.get((id(self), lease.key), {}))

        return open_partition

    stack.enter_context(replaced(LeasedLog, "drop_partition", make_drop))
    stack.enter_context(replaced(LeasedLog, "open_partition", make_open))


def _acknowledges_what_it_drops(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def drop(self: PartitionLog, error: Exception) -> Any:
            for batch in self.pending:
                batch.acknowledge()
            return original(self, error)

        return drop

    stack.enter_context(replaced(PartitionLog, "drop", make))


def _commits_out_of_order(stack: ExitStack, world: World, errands: Errands) -> None:
    async def wait(self: Turn) -> None:
        self.before.clear()

    stack.enter_context(replaced(Turn, "wait", lambda original: wait))
    base_offset_unchecked(stack, world, errands)


def _commits_before_upload(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        async def put(self: Committer, packed: Any) -> None:
            task = asyncio.ensure_future(self.store.put(packed.object.key, packed.buffers))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        return put

    stack.enter_context(replaced(Committer, "put", make))


def _shows_what_is_not_visible(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(replaced(PartitionLog, "visible_end", lambda original: property(lambda self: self.next_offset)))


def _out_of_range_from_memory(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def is_unsure(self: LogReader, cursor: Cursor, view: PartitionView | None) -> bool:
            if view is not None and cursor.offset > self._end(view):
                return False  # beyond the end, as it is remembered: said without a fresh look
            return bool(original(self, cursor, view))

        return is_unsure

    stack.enter_context(replaced(LogReader, "_is_unsure", make))


MUTANTS = (
    Mutant(
        name="ack before commit",
        rule="acks=all",
        story="acks=all is acknowledged once the local WAL has it",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET}),
        breaks=_ack_before_commit,
        applies=_fleet,
    ),
    Mutant(
        name="ack before WAL sync",
        rule="durability=wal",
        story="a write is acknowledged as soon as it is queued for the WAL",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET}),
        breaks=_ack_before_sync,
        applies=_single,
    ),
    Mutant(
        name="restart at the watermark",
        rule="R2",
        story="a single node that starts again begins at the watermark and not at the end of its WAL",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET}),
        breaks=_starts_at_the_watermark,
        applies=_single,
    ),
    Mutant(
        name="foreign epochs ignored",
        rule="R3",
        story="recovery takes every frame below the watermark for committed, also where another agent wrote it",
        shows_as=frozenset({Kind.LOST, Kind.PROBLEM}),
        breaks=_foreign_epochs_ignored,
        applies=_provisional,
    ),
    Mutant(
        name="everything comes back",
        rule="R4",
        story="after another agent has led, all frames are submitted again, not only acks=1 without producer id",
        shows_as=frozenset({Kind.DUPLICATED, Kind.REORDERED}),
        breaks=_everything_comes_back,
        applies=_idempotent_fleet,
    ),
    Mutant(
        name="old values come back",
        rule="R4",
        story="frames are submitted again on compacted topics too, behind newer values of their keys",
        shows_as=frozenset({Kind.REORDERED}),
        breaks=_compacted_comes_back,
        applies=lambda scenario: scenario.compacted and _provisional(scenario),
    ),
    Mutant(
        name="comes back under a new id",
        rule="R4",
        story="a frame is submitted again under a fresh append id each time",
        shows_as=frozenset({Kind.DUPLICATED}),
        breaks=_comes_back_under_a_new_id,
        applies=_provisional,
    ),
    Mutant(
        name="offsets given twice",
        rule="R4",
        story="what came back does not move the next offset, and the next write gets the same one",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET, Kind.UNSTABLE_READ, Kind.PROBLEM}),
        breaks=_gives_offsets_twice,
        applies=_provisional,
    ),
    Mutant(
        name="repack after doubt",
        rule="R5",
        story="a commit without an answer counts as failed, and its batches go to the end of the log under a new id",
        shows_as=frozenset({Kind.DUPLICATED, Kind.WRONG_OFFSET}),
        breaks=_repacks_after_doubt,
    ),
    Mutant(
        name="producers forgotten",
        rule="R9",
        story="a new leader does not load the producers' windows",
        shows_as=frozenset({Kind.DUPLICATED}),
        breaks=_forgets_producers,
        applies=_with_idempotent,
    ),
    Mutant(
        name="retry before its original",
        rule="R9",
        story="a retry is acknowledged at once although its original is not committed",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET}),
        breaks=_retry_before_its_original,
        applies=_with_idempotent,
    ),
    Mutant(
        name="producers not rolled back",
        rule="R11",
        story="when a leadership ends, its producers' windows outlive the batches that never were committed",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET, Kind.PROBLEM}),
        breaks=_producers_not_rolled_back,
        applies=_idempotent_fleet,
    ),
    Mutant(
        name="acknowledges what it drops",
        rule="R11",
        story="after a refused commit the batches buffered behind it are acknowledged all the same",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET}),
        breaks=_acknowledges_what_it_drops,
        applies=_fleet,
    ),
    Mutant(
        name="commits out of order",
        rule="R10",
        story="flushes under way commit in any order, and the metadata does not compare the base with the watermark",
        shows_as=frozenset({Kind.WRONG_OFFSET, Kind.REORDERED, Kind.TORN, Kind.BAD_OBJECT, Kind.LOST}),
        breaks=_commits_out_of_order,
    ),
    Mutant(
        name="commit before upload",
        rule="invariant 5",
        story="a flush commits without waiting for its objects",
        shows_as=frozenset({Kind.MISSING_OBJECT}),
        breaks=_commits_before_upload,
    ),
    Mutant(
        name="reader past the visible end",
        rule="visibility",
        story="a leader shows records before they are durable",
        shows_as=frozenset({Kind.VANISHED, Kind.UNSTABLE_READ}),
        breaks=_shows_what_is_not_visible,
    ),
    Mutant(
        name="out of range from memory",
        rule="R16",
        story="an agent says that an offset is out of range by the watermark that it remembers",
        shows_as=frozenset({Kind.PROBLEM}),
        breaks=_out_of_range_from_memory,
        applies=_fleet,
    ),
)
