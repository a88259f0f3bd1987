"""Broken variants of the fences: commits, epochs, horizons, leases and their local deadlines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from simulator.anomalies import Kind
from simulator.dice import Dice
from simulator.errands import ORPHAN_AGE_MS, Errands
from simulator.loop import Lane, SimClock
from simulator.mutant import Mutant
from simulator.run import replaced
from simulator.scenario import Errand, Mischief, Scenario
from simulator.world import World
from streamhouse.cluster.lease_table import Leadership, LeaseTable
from streamhouse.core.errors import MetadataError
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.log.leased.commit import Committer
from streamhouse.metadata.contract import Durability, SliceOutcome, Verdict
from streamhouse.metadata.sqlite import commits
from streamhouse.metadata.sqlite.clock import StoreClock
from streamhouse.metadata.sqlite.store import SqliteMetadata


def _fleet(scenario: Scenario) -> bool:
    return scenario.durability is Durability.OBJECT


def _with(errand: Errand) -> Callable[[Scenario], bool]:
    return lambda scenario: errand in scenario.errands


def commits_may_expire(scenario: Scenario) -> bool:
    return _fleet(scenario) and scenario.maintenance is None


def with_expiring_commits(scenario: Scenario, dice: Dice) -> Scenario:
    """A commit that is sent again just after its row has gone is rare."""
    return replace(scenario, errands=(*scenario.errands, Errand.EXPIRE_COMMITS, Errand.EXPIRE_COMMITS))


def _pausing_fleet(scenario: Scenario) -> bool:
    # A process that waits for a CPU is paused too, but its machine is not suspended.
    return _fleet(scenario) and Mischief.PAUSE in scenario.mischief and not scenario.starved_ms


def base_offset_unchecked(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(
        replaced(
            commits,
            "judge_leased",
            lambda original: lambda tail, **asked: original(tail, **{**asked, "base_offset": tail.watermark}),
        )
    )


def _epoch_unchecked(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(
        replaced(
            commits,
            "judge_leased",
            lambda original: lambda tail, **asked: original(tail, **{**asked, "epoch": tail.leader_epoch}),
        )
    )


def _epoch_checked_before(stack: ExitStack, world: World, errands: Errands) -> None:
    """The epoch in one call, the watermark in the next: each is right by itself."""

    def make(original: Any) -> Any:
        async def commit_slices(self: Committer, append_id: AppendId, slices: Any) -> list[SliceOutcome]:
            states = await self._persist(
                lambda: self.metadata.get_partitions([piece.key for piece in slices]), MetadataError, _ignore
            )
            epochs = {state.key: state.leader_epoch for state in states}
            fenced = {piece.key for piece in slices if epochs.get(piece.key) != piece.epoch}
            passed = [piece for piece in slices if piece.key not in fenced]
            outcomes = {each.key: each for each in (await original(self, append_id, passed) if passed else [])}
            return [outcomes.get(piece.key, SliceOutcome(key=piece.key, verdict=Verdict.FENCED)) for piece in slices]

        return commit_slices

    stack.enter_context(replaced(Committer, "commit_slices", make))
    _epoch_unchecked(stack, world, errands)


def _ignore(problem: str) -> None:
    pass


def _epoch_reset_on_release(stack: ExitStack, world: World, errands: Errands) -> None:
    """A release deletes the lease's row, and the next leader begins at epoch 1 again."""

    def make(original: Any) -> Any:
        def release_leases(tx: Any, holder: Any, held: Any) -> Any:
            released = original(tx, holder, held)
            for key in released:
                if isinstance(key, PartitionKey):
                    place = (key.topic_id.bytes, key.partition)
                    tx.run("UPDATE partitions SET leader_epoch = 0 WHERE topic_id = ? AND partition_id = ?", place)
                    tx.run("DELETE FROM epoch_history WHERE topic_id = ? AND partition_id = ?", place)
                    tx.run("DELETE FROM partition_leases WHERE topic_id = ? AND partition_id = ?", place)
            return released

        return release_leases

    stack.enter_context(replaced(SqliteMetadata.release_leases, "step", make))


def _horizon_not_raised(stack: ExitStack, world: World, errands: Errands) -> None:
    """Vacuum does not raise the horizon, and the store does not look at it."""
    errands.raises_horizon = False
    stack.enter_context(replaced(SqliteMetadata, "_HORIZON", lambda original: f"(sh_now_ms() - {ORPHAN_AGE_MS})"))


def _horizon_unchecked(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(
        replaced(
            commits,
            "judge_leased",
            lambda original: lambda tail, **asked: original(tail, **{**asked, "object_stamp_ms": None}),
        )
    )


def _by_name(stack: ExitStack, world: World, errands: Errands) -> None:
    """Commits find their partition by the topic's name: a recreated topic gets its predecessor's buffer."""
    names: dict[Any, str] = {}

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            names.update({topic.topic_id: topic.name for topic in world.topics.values()})
            if name != "commit_leased":
                return original(name, args, kwargs)
            slices = [_of_today(world, names, piece) for piece in args[1]]
            if len({piece.key for piece in slices}) < len(slices):
                return original(name, args, kwargs)
            answer = original(name, (args[0], slices), kwargs)
            return [replace(outcome, key=piece.key) for outcome, piece in zip(answer, args[1], strict=True)]

        return run

    stack.enter_context(replaced(world.metadata, "run", make))
    stack.enter_context(
        replaced(
            commits,
            "judge_leased",
            lambda original: (
                lambda tail, **asked: original(
                    tail, **{**asked, "epoch": tail.leader_epoch, "base_offset": tail.watermark}
                )
            ),
        )
    )


def _of_today(world: World, names: dict[Any, str], piece: Any) -> Any:
    today = world.topics.get(names.get(piece.key.topic_id, ""))
    if today is None:
        return piece
    return replace(piece, key=PartitionKey(today.topic_id, piece.key.partition))


def _clock_goes_back(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(replaced(StoreClock, "now_ms", lambda original: lambda self, stored_ms: self._clock.wall_ms()))


def _commits_expire_at_once(stack: ExitStack, world: World, errands: Errands) -> None:
    def expire(tx: Any, *, keep_ms: int, limit: int) -> Any:
        return tx.run("DELETE FROM commits")

    stack.enter_context(replaced(SqliteMetadata.expire_commits, "step", lambda original: expire))


def _no_local_deadline(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(replaced(Leadership, "valid", lambda original: lambda self: True))


def _deadline_from_the_reply(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def counted_from_now(self: LeaseTable, what: Any, *, sent_ms: int) -> Any:
            return original(self, what, sent_ms=self._clock.boot_ms())

        return counted_from_now

    stack.enter_context(replaced(LeaseTable, "hold", make))
    stack.enter_context(replaced(LeaseTable, "renewed", make))


def _clock_stops_when_paused(stack: ExitStack, world: World, errands: Errands) -> None:
    """CLOCK_MONOTONIC in place of CLOCK_BOOTTIME: a suspended machine does not notice how late it is."""
    paused_at: dict[Lane, float] = {}

    def make_pause(original: Any) -> Any:
        def pause(self: Lane) -> None:
            paused_at.setdefault(self, world.now_ms())
            original(self)

        return pause

    def make_resume(original: Any) -> Any:
        def resume(self: Lane, **kwargs: Any) -> None:
            original(self, **kwargs)
            if self.paused:
                return
            slept_ms = world.now_ms() - paused_at.pop(self, world.now_ms())
            for agent in world.agents:
                if agent.lane is self:
                    _set_back(agent.clock, slept_ms)

        return resume

    stack.enter_context(replaced(Lane, "pause", make_pause))
    stack.enter_context(replaced(Lane, "resume", make_resume))


def _set_back(clock: SimClock, by_ms: float) -> None:
    clock._boot_base_ms -= int(by_ms)


MUTANTS = (
    Mutant(
        name="commit without epoch fence",
        rule="R1",
        story="a commit does not look at the leader epoch",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET, Kind.DUPLICATED, Kind.STALE_EPOCH, Kind.PROBLEM}),
        breaks=_epoch_unchecked,
        applies=_fleet,
    ),
    Mutant(
        name="epoch checked before the commit",
        rule="R1",
        story="the epoch is checked in one step and the watermark moved in another",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET, Kind.DUPLICATED, Kind.STALE_EPOCH, Kind.PROBLEM}),
        breaks=_epoch_checked_before,
        applies=_fleet,
    ),
    Mutant(
        name="epoch reset on release",
        rule="R1",
        story="a released lease's row is deleted and the next leader begins at epoch 1",
        shows_as=frozenset({Kind.STALE_EPOCH, Kind.LOST, Kind.PROBLEM}),
        breaks=_epoch_reset_on_release,
        applies=_fleet,
    ),
    Mutant(
        name="vacuum without horizon",
        rule="R6",
        story="vacuum deletes old objects without a reference and does not raise the horizon first",
        shows_as=frozenset({Kind.MISSING_OBJECT, Kind.LOST}),
        breaks=_horizon_not_raised,
        applies=_with(Errand.VACUUM),
    ),
    Mutant(
        name="commit below the horizon",
        rule="R6",
        story="a commit does not compare its object's stamp with the horizon",
        shows_as=frozenset({Kind.MISSING_OBJECT, Kind.LOST}),
        breaks=_horizon_unchecked,
        applies=_with(Errand.VACUUM),
    ),
    Mutant(
        name="topics by name",
        rule="R19",
        story="a recreated topic receives what was buffered for its predecessor",
        shows_as=frozenset({Kind.PHANTOM, Kind.STALE_EPOCH, Kind.UNSTABLE_READ}),
        breaks=_by_name,
        applies=_with(Errand.RECREATE_TOPIC),
    ),
    Mutant(
        name="store clock goes back",
        rule="R20",
        story="the store's clock is the wall clock of its machine, also after it was set back by minutes",
        shows_as=frozenset({Kind.PROBLEM}),
        breaks=_clock_goes_back,
        applies=lambda scenario: _fleet(scenario) and Mischief.STORE_CLOCK in scenario.mischief,
    ),
    Mutant(
        name="commits expire at once",
        rule="R5",
        story="the rows of commits are deleted while the same commit may still be sent again",
        shows_as=frozenset({Kind.DUPLICATED, Kind.LOST, Kind.WRONG_OFFSET, Kind.PROBLEM}),
        breaks=_commits_expire_at_once,
        applies=commits_may_expire,
        needs=with_expiring_commits,
    ),
    Mutant(
        name="no local deadline",
        rule="R20",
        story="a leader takes writes until it hears from the store that its lease has ended",
        shows_as=frozenset({Kind.STALE_LEADER}),
        breaks=_no_local_deadline,
        applies=_fleet,
    ),
    Mutant(
        name="deadline from the reply",
        rule="R20",
        story="a lease's local deadline counts from the answer and not from the request",
        shows_as=frozenset({Kind.STALE_LEADER}),
        breaks=_deadline_from_the_reply,
        applies=_fleet,
    ),
    Mutant(
        name="clock that stops in a pause",
        rule="R20",
        story="local deadlines are measured by a clock that stands still while the machine sleeps",
        shows_as=frozenset({Kind.STALE_LEADER}),
        breaks=_clock_stops_when_paused,
        applies=_pausing_fleet,
    ),
)
