"""Broken variants of what idempotent producers and the order of writes rest on (R11, R21), and of what forgets them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from simulator.anomalies import Kind
from simulator.errands import Errands
from simulator.mutant import Mutant
from simulator.run import replaced
from simulator.scenario import Errand, Scenario, on_busy_machines
from simulator.world import World
from streamhouse.broker import produce
from streamhouse.broker.produce import Produce, ProduceCall, WriteOrder
from streamhouse.core.errors import DuplicateSequence, OutOfOrderSequence
from streamhouse.log.leased.idempotence import Idempotence, Original
from streamhouse.log.leased.pending import run_of
from streamhouse.metadata.contract import BatchVerdict, Durability
from streamhouse.metadata.dedup import ProducerWindow


def _with_idempotent(scenario: Scenario) -> bool:
    return any(plan.idempotent for plan in scenario.producers)


def _log_takes_any_first(stack: ExitStack, world: World, errands: Errands) -> None:
    """What the log did before R21: a producer without a window starts wherever it likes, and
    a connection does not remember what it refused. Each of the two rules alone would prevent the loss."""

    def make(original: Any) -> Any:
        def judge(self: Idempotence, header: Any, partition: object) -> Original | None:
            return None if header.producer_id not in self.windows else original(self, header, partition)

        return judge

    stack.enter_context(replaced(Idempotence, "judge", make))
    _refuses_at_once(stack, world, errands)


def _dedup_takes_any_first(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def judge(self: ProducerWindow, batch: Any, **kwargs: Any) -> Any:
            outcome = original(self, batch, **kwargs)
            return None if outcome is not None and outcome.verdict is BatchVerdict.UNKNOWN_PRODUCER else outcome

        return judge

    stack.enter_context(replaced(ProducerWindow, "judge", make))
    _refuses_at_once(stack, world, errands)


def _new_epoch_starts_anywhere(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def judge(self: ProducerWindow, batch: Any, **kwargs: Any) -> Any:
            is_newer = bool(self.batches) and batch.producer_epoch > self.producer_epoch
            return None if is_newer else original(self, batch, **kwargs)

        return judge

    stack.enter_context(replaced(ProducerWindow, "judge", make))


def _old_epochs_accepted(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def judge(self: ProducerWindow, batch: Any, **kwargs: Any) -> Any:
            return None if batch.producer_epoch < self.producer_epoch else original(self, batch, **kwargs)

        return judge

    stack.enter_context(replaced(ProducerWindow, "judge", make))


def _noted_before_taken(stack: ExitStack, world: World, errands: Errands) -> None:
    """The producer's window moves on when a batch is judged, although there may be no room for it."""

    def make(original: Any) -> Any:
        def judge(self: Idempotence, header: Any, partition: Any) -> Original | None:
            outcome: Original | None = original(self, header, partition)
            if outcome is None:
                window = self.windows.setdefault(header.producer_id, ProducerWindow())
                window.record(run_of(header), partition.next_offset)
            return outcome

        return judge

    def make_took(original: Any) -> Any:
        def took(self: Idempotence, batch: Any) -> None:
            self.windows[batch.header.producer_id].batches.pop()
            original(self, batch)

        return took

    stack.enter_context(replaced(Idempotence, "judge", make))
    stack.enter_context(replaced(Idempotence, "took", make_took))


def _gaps_are_duplicates(stack: ExitStack, world: World, errands: Errands) -> None:
    """46 for a batch whose predecessors are missing: "it will be there"."""

    def make(original: Any) -> Any:
        def judge(self: Idempotence, header: Any, partition: Any) -> Original | None:
            try:
                outcome: Original | None = original(self, header, partition)
            except OutOfOrderSequence as error:
                raise DuplicateSequence(str(error)) from error
            return outcome

        return judge

    stack.enter_context(replaced(Idempotence, "judge", make))


def _failed_when_overdue_is_acknowledged(stack: ExitStack, world: World, errands: Errands) -> None:
    """A batch whose future is done when the request's time-out is over counts as written, also if it has failed."""
    stack.enter_context(replaced(produce, "_succeeded", lambda original: lambda done: done.done()))


def _refusals_forgotten(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(replaced(WriteOrder, "has_refusals", lambda original: property(lambda self: False)))


def _refuses_at_once(stack: ExitStack, world: World, errands: Errands) -> None:
    """Nothing waits for a partition or for room, so that refusals are many, and they are not remembered."""
    stack.enter_context(replaced(produce, "MAX_WAIT_S", lambda original: 0.0))
    _refusals_forgotten(stack, world, errands)


def _later_overtakes(stack: ExitStack, world: World, errands: Errands) -> None:
    """A connection's requests do not wait for one another."""

    def make(original: Any) -> Any:
        def begin(self: Produce, batches: Any, *, order: WriteOrder, **kwargs: Any) -> Any:
            held, order.gate = order.gate, None
            call = original(self, batches, order=order, **kwargs)
            if order.gate is None:
                order.gate = held
            return call

        return begin

    stack.enter_context(replaced(Produce, "begin", make))


def _answers_without_waiting(stack: ExitStack, world: World, errands: Errands) -> None:
    """A time-out counts as an acknowledgement."""

    def make(original: Any) -> Any:
        def overdue(self: ProduceCall) -> None:
            if all(outcome.append is not None for outcome in self.outcomes):
                self._finish()
            else:
                original(self)

        return overdue

    stack.enter_context(replaced(ProduceCall, "overdue", make))


def _forgetting_forgotten(stack: ExitStack, world: World, errands: Errands) -> None:
    stack.enter_context(replaced(Idempotence, "forgot", lambda original: lambda self, up_to: None))


MUTANTS = (
    Mutant(
        name="forgotten producer gets 45",
        rule="R21",
        story="the log does not know that it forgot producers, and an idle one that goes on is out of order",
        shows_as=frozenset({Kind.PROBLEM}),
        breaks=_forgetting_forgotten,
        applies=lambda scenario: Errand.EXPIRE_PRODUCERS in scenario.errands and _with_idempotent(scenario),
    ),
    Mutant(
        name="unknown producer starts anywhere",
        rule="R21",
        story="a partition takes any first batch of a producer, and a connection refuses at once and forgets it",
        shows_as=frozenset({Kind.LOST}),
        breaks=_log_takes_any_first,
        applies=_with_idempotent,
    ),
    Mutant(
        name="unknown producer starts anywhere in dedup",
        rule="R21",
        story="the same in the rules that the log and the stores share",
        shows_as=frozenset({Kind.LOST}),
        breaks=_dedup_takes_any_first,
        applies=_with_idempotent,
    ),
    Mutant(
        name="new epoch starts anywhere",
        rule="R21",
        story="after an epoch bump the first batch is taken whatever its sequence",
        shows_as=frozenset({Kind.LOST, Kind.REORDERED, Kind.DUPLICATED}),
        breaks=_new_epoch_starts_anywhere,
        applies=_with_idempotent,
    ),
    Mutant(
        name="old epochs accepted",
        rule="R9",
        story="a batch of an older producer epoch is taken after a newer one has written",
        shows_as=frozenset({Kind.LOST, Kind.REORDERED, Kind.DUPLICATED}),
        breaks=_old_epochs_accepted,
        applies=_with_idempotent,
    ),
    Mutant(
        name="sequence noted before the batch is taken",
        rule="R11",
        story="a refused batch moves its producer's window all the same",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET}),
        breaks=_noted_before_taken,
        applies=_with_idempotent,
    ),
    Mutant(
        name="46 for a gap",
        rule="R21",
        story="a batch whose predecessors are missing is called a duplicate",
        shows_as=frozenset({Kind.LOST}),
        breaks=_gaps_are_duplicates,
        applies=_with_idempotent,
    ),
    Mutant(
        name="followers of a refused batch get 45",
        rule="R21",
        story="a connection does not remember what it refused, so what follows is out of order",
        shows_as=frozenset({Kind.PROBLEM}),
        breaks=_refusals_forgotten,
        applies=_with_idempotent,
    ),
    Mutant(
        name="later batch overtakes a waiting one",
        rule="R21",
        story="a request does not wait for an earlier one of its connection that waits for its partition",
        shows_as=frozenset({Kind.PROBLEM, Kind.LOST, Kind.REORDERED}),
        breaks=_later_overtakes,
        applies=_with_idempotent,
    ),
    Mutant(
        name="time-out counts as written",
        rule="acks=all",
        story="a request whose time is up is answered with its offsets although nothing is committed",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET}),
        breaks=_answers_without_waiting,
    ),
    Mutant(
        name="failed at the time-out counts as written",
        rule="R11",
        story="a batch whose leadership ends at the moment its request times out is acknowledged",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET}),
        breaks=_failed_when_overdue_is_acknowledged,
        applies=lambda scenario: scenario.durability is Durability.OBJECT,
        needs=on_busy_machines,
    ),
)
