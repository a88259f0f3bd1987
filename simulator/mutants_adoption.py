"""Broken variants of adoption and of the intents behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from simulator.anomalies import Kind
from simulator.errands import Errands
from simulator.mutant import Mutant
from simulator.run import replaced
from simulator.scenario import Mischief, Scenario
from simulator.world import World
from streamhouse.core.errors import MetadataError
from streamhouse.log.leased.adoption import Adoption, Share
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.metadata.contract import Intent
from streamhouse.metadata.rows import intents
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.spark.sink_commit import SinkCommit


def _with_sinks(scenario: Scenario) -> bool:
    return scenario.sinks > 0


def _offsets_before_the_commit(stack: ExitStack, world: World, errands: Errands) -> None:
    """The share gets its offsets in memory, appends go on behind it, and only then is it committed."""

    def without_barrier(original: Any) -> Any:
        @contextmanager
        def barrier(self: LeasedLog, partition: PartitionLog) -> Iterator[None]:
            yield

        return barrier

    def make(original: Any) -> Any:
        async def adopt_at_watermark(self: Adoption, partition: PartitionLog, share: Share) -> None:
            base_offset = partition.next_offset
            partition.next_offset += sum(piece.record_count for piece in share.slices)
            outcome = await self.metadata.adopt_intent(
                share.intent, share.partition, epoch=partition.epoch, base_offset=base_offset
            )
            partition.high_watermark = max(partition.high_watermark, outcome.end_offset + 1)

        return adopt_at_watermark

    stack.enter_context(replaced(LeasedLog, "barrier", without_barrier))
    stack.enter_context(replaced(Adoption, "_adopt_at_watermark", make))


def _doubt_is_no(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        async def verdict(self: Adoption, partition: PartitionLog, share: Share) -> Any:
            try:
                return await self.metadata.adopt_intent(
                    share.intent, share.partition, epoch=partition.epoch, base_offset=partition.high_watermark
                )
            except MetadataError:
                return None

        return verdict

    stack.enter_context(replaced(Adoption, "_verdict", make))


def _adopted_again(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def adopt_intent(tx: Any, key: Any, partition: int, *, epoch: int, base_offset: int | None) -> Any:
            tx.run(
                "UPDATE sink_slices SET adopted_base_offset = NULL"
                " WHERE query_id = ? AND topic_id = ? AND partition_id = ?",
                (key.query_id, key.topic_id.bytes, partition),
            )
            return original(tx, key, partition, epoch=epoch, base_offset=base_offset)

        return adopt_intent

    stack.enter_context(replaced(SqliteMetadata.adopt_intent, "step", make))


def _every_manifest_counts(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        async def again(tx: Any, intent: Intent, *, complete: bool) -> Any:
            if (
                complete
                and (winner := await intents.read_intent(tx, intent.key)) is not None
                and winner.slices != intent.slices
            ):
                await intents._replace(tx, intent)
                complete = False
            return await original(tx, intent, complete=complete)

        return again

    stack.enter_context(replaced(intents, "_again", make))


def _gone_is_complete(stack: ExitStack, world: World, errands: Errands) -> None:
    async def is_replaced(self: SinkCommit, key: Any, share: Any) -> bool:
        return True

    stack.enter_context(replaced(SinkCommit, "_is_replaced", lambda original: is_replaced))


MUTANTS = (
    Mutant(
        name="lost intent counts as written",
        rule="R23",
        story="a driver takes an intent that is gone for complete, also when the metadata has lost it",
        shows_as=frozenset({Kind.PROBLEM}),
        breaks=_gone_is_complete,
        applies=lambda scenario: _with_sinks(scenario) and Mischief.LOSSY_METADATA in scenario.mischief,
    ),
    Mutant(
        name="adopted before its commit",
        rule="R13",
        story="an uploaded share gets its offsets in memory and writes go on behind them before its commit",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET, Kind.VANISHED}),
        breaks=_offsets_before_the_commit,
        applies=_with_sinks,
    ),
    Mutant(
        name="doubtful adoption forgotten",
        rule="R13",
        story="an adoption without an answer counts as not done, and the next write gets its offset",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET}),
        breaks=_doubt_is_no,
        applies=_with_sinks,
    ),
    Mutant(
        name="adopted twice",
        rule="R8",
        story="adopting a share does not look whether it is in the log already",
        shows_as=frozenset({Kind.DUPLICATED}),
        breaks=_adopted_again,
        applies=_with_sinks,
    ),
    Mutant(
        name="every manifest counts",
        rule="R8",
        story="a second intent for a batch that is complete replaces the first",
        shows_as=frozenset({Kind.DUPLICATED}),
        breaks=_every_manifest_counts,
        applies=_with_sinks,
    ),
)
