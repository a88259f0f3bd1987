"""What a broker answers to batches of idempotent producers: each case with Apache Kafka's answers and StreamHouse's.

This file is the only place that holds these answers. ``test_idempotence_answers.py`` sends every case as raw requests
to both brokers. ``idempotence_report.py`` writes the same answers into docs/idempotence.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

MESSAGE_TOO_LARGE: Final = 10
OUT_OF_ORDER: Final = 45
DUPLICATE: Final = 46
OLD_EPOCH: Final = 47

CODE_NAMES: Final = {
    MESSAGE_TOO_LARGE: "MESSAGE_TOO_LARGE",
    OUT_OF_ORDER: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    DUPLICATE: "DUPLICATE_SEQUENCE_NUMBER",
    OLD_EPOCH: "INVALID_PRODUCER_EPOCH",
}

MAX_SEQUENCE: Final = 2**31 - 1
MAX_MESSAGE_BYTES: Final = 2048
"""``max.message.bytes`` of every topic that a case writes to."""

TOO_LARGE_BYTES: Final = 2 * MAX_MESSAGE_BYTES


class Answer(NamedTuple):
    code: int
    base_offset: int = -1


def at(base_offset: int) -> Answer:
    """The batch is at this offset: written now, or a repeat of what was written there."""
    return Answer(0, base_offset)


CREATED_AGAIN: Final = at(0)
"""StreamHouse's answer to a producer that goes on after its topic was deleted and created again. On 45 a librdkafka
producer gives up for good."""

UNKNOWN_NOT_FIRST: Final = Answer(OUT_OF_ORDER)
"""StreamHouse's answer to a producer that has never written to the partition and does not start at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    says: str = ""
    """What this batch is, for the table. Empty: the batch only prepares the next ones."""
    sequence: int
    count: int = 1
    epoch: int = 0
    value_bytes: int = 8
    kafka: Answer
    streamhouse: Answer | None
    """None: this state cannot be reached on StreamHouse by requests."""
    while_uncommitted: Answer | None = None
    """What StreamHouse may answer as well, as long as the batch is not yet in the object store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Batches that are sent before the answer to the first one is read."""

    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAllRecords:
    """DeleteRecords up to the end of the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicAgain:
    """The topic is deleted, and a new one gets its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The broker expires the state of every producer of the partition."""


Step = Batch | Together | DeleteAllRecords | CreateTopicAgain | Forget


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One producer id and one new partition."""

    name: str
    steps: tuple[Step, ...]

    @property
    def runs_on_streamhouse(self) -> bool:
        """False for a case that needs an expired producer, or a sequence that no producer reaches in a test."""
        forgets = any(isinstance(step, Forget) for step in self.steps)
        return not forgets and all(batch.streamhouse is not None for batch in self.batches())

    def batches(self) -> Iterator[Batch]:
        for step in self.steps:
            if isinstance(step, Batch):
                yield step
            elif isinstance(step, Together):
                yield from step.batches


def same(says: str, sequence: int, answer: Answer, *, count: int = 1, epoch: int = 0, value_bytes: int = 8) -> Batch:
    """Both brokers give this answer."""
    return Batch(
        says=says,
        sequence=sequence,
        count=count,
        epoch=epoch,
        value_bytes=value_bytes,
        kafka=answer,
        streamhouse=answer,
    )


def differs(says: str, sequence: int, kafka: Answer, streamhouse: Answer | None, *, count: int = 1) -> Batch:
    return Batch(says=says, sequence=sequence, count=count, kafka=kafka, streamhouse=streamhouse)


def below_the_window(says: str, sequence: int, offset: int) -> Batch:
    """A repeat of a batch of one record that stands at this offset, but is not among the last five."""
    return Batch(
        says=says,
        sequence=sequence,
        kafka=_NOT_IN_ORDER,
        streamhouse=Answer(DUPLICATE),
        while_uncommitted=at(offset),
    )


def written(*sequences: int, epoch: int = 0, first_offset: int = 0) -> tuple[Batch, ...]:
    """Batches of one record each that both brokers take, one after the other."""
    return tuple(
        same("", sequence, at(first_offset + number), epoch=epoch) for number, sequence in enumerate(sequences)
    )


_NOT_IN_ORDER: Final = Answer(OUT_OF_ORDER)
_FENCED: Final = Answer(OLD_EPOCH)
_TOO_LARGE: Final = Answer(MESSAGE_TOO_LARGE)

CASES: Final = (
    Case(
        name="unknown-first",
        steps=(
            same("an unknown producer starts at 0", 0, at(0)),
            same("it goes on", 1, at(1)),
        ),
    ),
    Case(
        name="unknown-later",
        steps=(
            differs("an unknown producer starts at another sequence", 5, at(0), UNKNOWN_NOT_FIRST),
            differs("then the batch before that one comes", 0, _NOT_IN_ORDER, at(0), count=5),
            differs("then the first one comes again", 5, at(0), at(5)),
        ),
    ),
    Case(
        name="window",
        steps=(
            *written(0, 1, 2, 3, 4, 5, 6),
            same("a repeat of the last batch", 6, at(6)),
            same("a repeat of the fifth last batch", 2, at(2)),
            below_the_window("a repeat of the sixth last batch", 1, offset=1),
            below_the_window("a repeat of the first of seven batches", 0, offset=0),
            same("the next batch after these repeats", 7, at(7)),
        ),
    ),
    Case(
        name="other-bounds",
        steps=(
            same("", 0, at(0), count=3),
            same("same first sequence as a known batch, fewer records", 0, _NOT_IN_ORDER, count=2),
            same("same first sequence as a known batch, more records", 0, _NOT_IN_ORDER, count=4),
            same("it lies inside a known batch", 1, _NOT_IN_ORDER),
            same("it starts inside a known batch and ends after it", 2, _NOT_IN_ORDER, count=3),
            same("the next batch after these refusals", 3, at(3)),
        ),
    ),
    Case(
        name="gap",
        steps=(
            *written(0),
            same("a known producer leaves one sequence out", 2, _NOT_IN_ORDER),
            same("then the missing one comes", 1, at(1)),
        ),
    ),
    Case(
        name="deleted-repeat",
        steps=(
            *written(0, 1),
            DeleteAllRecords(),
            same("all records were deleted; a repeat", 1, at(1)),
            same("all records were deleted; the next batch", 2, at(2)),
        ),
    ),
    Case(
        name="deleted-gap",
        steps=(*written(0, 1), DeleteAllRecords(), same("all records were deleted; a gap", 5, _NOT_IN_ORDER)),
    ),
    Case(
        name="created-again",
        steps=(
            *written(0, 1),
            CreateTopicAgain(),
            differs("the topic was created again; the producer goes on", 2, at(0), CREATED_AGAIN),
        ),
    ),
    Case(
        name="new-epoch",
        steps=(
            *written(0, 1),
            same("a new epoch starts at 0", 0, at(2), epoch=1),
            same("the old epoch: a repeat", 1, _FENCED),
            same("the old epoch: its next batch", 2, _FENCED),
            same("the new epoch with the next sequence of the old one", 2, _NOT_IN_ORDER, epoch=1),
            same("the new epoch goes on", 1, at(3), epoch=1),
        ),
    ),
    Case(
        name="new-epoch-later",
        steps=(
            *written(0, 1),
            same("a new epoch starts where the old one stopped", 2, _NOT_IN_ORDER, epoch=1),
            same("a new epoch starts at any other sequence", 4, _NOT_IN_ORDER, epoch=1),
            same("the old epoch goes on after that", 2, at(2)),
        ),
    ),
    Case(
        name="epoch-left-out",
        steps=(*written(0), same("an epoch is left out; the new one starts at 0", 0, at(1), epoch=5)),
    ),
    Case(
        name="wrap-exact",
        steps=(
            differs("", MAX_SEQUENCE - 1, at(0), None, count=2),
            differs("a batch ended at 2147483647; the next starts at 0", 0, at(2), None),
            differs("a repeat of the batch before the wrap", MAX_SEQUENCE - 1, at(0), None, count=2),
            differs("a gap after the wrap", 2, _NOT_IN_ORDER, None),
        ),
    ),
    Case(
        name="wrap-inside",
        steps=(
            differs("", MAX_SEQUENCE - 3, at(0), None, count=2),
            differs("the wrap lies inside a batch", MAX_SEQUENCE - 1, at(2), None, count=4),
            differs("a repeat of this batch", MAX_SEQUENCE - 1, at(2), None, count=4),
            differs("the batch after it", 2, at(6), None),
        ),
    ),
    Case(
        name="wrap-below-window",
        steps=(
            differs("", MAX_SEQUENCE - 1, at(0), None, count=2),
            *(differs("", sequence, at(2 + sequence), None) for sequence in range(5)),
            differs("a repeat from before the wrap, no longer in the window", MAX_SEQUENCE - 1, _NOT_IN_ORDER, None),
        ),
    ),
    Case(
        name="five-new",
        steps=(
            Together(
                batches=(
                    same(
                        "five in flight, an unknown producer: the first is too large",
                        0,
                        _TOO_LARGE,
                        value_bytes=TOO_LARGE_BYTES,
                    ),
                    differs("the second of the five", 1, at(0), UNKNOWN_NOT_FIRST),
                    differs("the third of the five", 2, at(1), UNKNOWN_NOT_FIRST),
                    differs("the fourth of the five", 3, at(2), UNKNOWN_NOT_FIRST),
                    differs("the fifth of the five", 4, at(3), UNKNOWN_NOT_FIRST),
                )
            ),
            differs("then sequence 0 comes again, small enough", 0, _NOT_IN_ORDER, at(0)),
        ),
    ),
    Case(
        name="five-known",
        steps=(
            *written(0),
            Together(
                batches=(
                    same(
                        "several in flight, a known producer: the first is too large",
                        1,
                        _TOO_LARGE,
                        value_bytes=TOO_LARGE_BYTES,
                    ),
                    same("the second of them", 2, _NOT_IN_ORDER),
                    same("the third of them", 3, _NOT_IN_ORDER),
                )
            ),
            same("then the first comes again, small enough", 1, at(1)),
            same("then the second", 2, at(2)),
        ),
    ),
    Case(
        name="expired-first",
        steps=(*written(0, 1), Forget(), same("an expired producer starts at 0", 0, at(2))),
    ),
    Case(
        name="expired-next",
        steps=(
            *written(0, 1),
            Forget(),
            same("an expired producer goes on with its next sequence", 2, at(2)),
        ),
    ),
    Case(
        name="expired-repeat",
        steps=(
            *written(0, 1),
            Forget(),
            same("an expired producer repeats its last batch", 1, at(2)),
        ),
    ),
    Case(
        name="expired-gap",
        steps=(
            *written(0, 1),
            Forget(),
            same("an expired producer leaves sequences out", 7, at(2)),
        ),
    ),
    Case(
        name="expired-old-epoch",
        steps=(
            *written(0, epoch=3),
            Forget(),
            same("an expired producer comes with an older epoch, at 0", 0, at(1), epoch=2),
        ),
    ),
)
