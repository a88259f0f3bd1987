"""Judges one partition's log against what its producers were told and its readers were given.

Memory grows with the records of one partition: 20 bytes each for the log and an entry in one table.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streamhouse.chaos.checker.anomalies import AnomalyKind, Findings
from streamhouse.chaos.history import DAMAGED, lines

_NOTHING: Final = -1
_FOREIGN: Final = -2  # damaged, or written for another place: the history does not say which record it is
_NUMBER_BITS: Final = 40  # of a record's key: its producer's place in the table stands above them


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A producer, and the promises that its settings give."""

    name: str
    client: str
    once: bool
    """No record of it may be in the log twice: it is idempotent, or never sends a record again."""
    ordered: bool
    """Its records stand in the order of sending: it is idempotent, or has one request in flight."""
    acks: str
    """``all``, or ``1``: a take-over may lose what was acknowledged with 1."""
    place: int


@dataclass(slots=True, kw_only=True)
class WriteFacts:
    """The numbers of records on one partition: those that are right, and those that are wrong."""

    acknowledged: Counter[str] = field(default_factory=Counter)
    """The number of acknowledged writes, by client and acks, such as ``librdkafka all``."""
    failed: int = 0
    unresolved_present: int = 0
    """The number of records that the client gave up and that are in the log, which is allowed."""
    permitted_duplicates: int = 0
    lost_acks_1: int = 0
    moved_acks_1: int = 0
    log_end: int = 0
    deliveries: int = 0


class AckedLog:
    """The last read of one partition: which record is at which offset."""

    def __init__(self) -> None:
        self.keys = array("q")
        """The key at each offset; _NOTHING where a hole is, _FOREIGN where a damaged record is."""
        self.end = 0
        self.complete = False

    def at(self, offset: int) -> int:
        return self.keys[offset] if 0 <= offset < len(self.keys) else _NOTHING


def read_producers(directory: Path) -> dict[str, Producer]:
    found: dict[str, Producer] = {}
    for path in sorted((directory / "producers").glob("*")):
        for name, client, once, ordered, acks in lines(path):
            place = len(found)
            found[name] = Producer(
                name=name, client=client, once=once == "1", ordered=ordered == "1", acks=acks, place=place
            )
    return found


class WritesJudge:
    """Judges one partition.

    ``killed`` names client processes that were killed: the last lines of their history may be missing, so a record of
    an unknown producer may be one of theirs. ``cut_short``: the run itself ended the last read before its end.
    """

    def __init__(
        self,
        part: Path,
        where: str,
        producers: Mapping[str, Producer],
        findings: Findings,
        *,
        killed: Collection[str] = (),
        cut_short: bool = False,
    ) -> None:
        self._part = part
        self._where = where
        self._producers = producers
        self._places = {name: producer.place for name, producer in producers.items()}
        """The place of each producer. Those that the history does not know get the places behind the known ones."""
        self._names = list(producers)
        self._findings = findings
        self._killed = tuple(f"{process}-" for process in killed)
        self._cut_short = cut_short
        self.facts = WriteFacts()
        self.log = AckedLog()
        self._first_place: dict[int, int] = {}
        """The lowest offset of every record in the log."""

    def judge(self) -> None:
        failed = self._failures()
        self._read_log()
        self._judge_copies_and_order(failed)
        self.facts.unresolved_present = sum(key in self._first_place for key in failed)
        self._judge_acknowledgements()
        self._judge_reads()

    def _key(self, producer: str, number: str) -> int:
        if producer == DAMAGED:
            return _FOREIGN
        place = self._places.get(producer)
        if place is None:
            place = self._places[producer] = len(self._names)
            self._names.append(producer)
        return place << _NUMBER_BITS | int(number)

    def _may_be_of_a_killed_client(self, producer: str) -> bool:
        return producer.startswith(self._killed)

    def _name(self, key: int) -> str:
        if key < 0:
            return "nothing" if key == _NOTHING else "a foreign record"
        return f"record {key & (1 << _NUMBER_BITS) - 1} of {self._names[key >> _NUMBER_BITS]}"

    def _failures(self) -> set[int]:
        failed = {
            self._key(words[2], words[3])
            for path in self._part.glob("*.produce")
            for words in lines(path)
            if words[0] == "F"
        }
        self.facts.failed = len(failed)
        return failed

    def _read_log(self) -> None:
        keys = self.log.keys
        for words in lines(self._part / "final"):
            if words[0] == "E":
                self.log.complete, self.log.end = True, int(words[1])
                continue
            offset = int(words[1])
            if offset < len(keys):
                self._read_again(offset, words)
                continue
            if offset > len(keys):
                self._add(AnomalyKind.HOLE, f"after offset {len(keys) - 1} came {offset}")
                keys.extend([_NOTHING] * (offset - len(keys)))
            if words[0] == "X":
                self._add(AnomalyKind.FOREIGN, f"offset {offset}: {words[2]}")
            elif words[2] not in self._producers and not self._may_be_of_a_killed_client(words[2]):
                self._add(
                    AnomalyKind.FOREIGN, f"offset {offset}: record {words[3]} of {words[2]}, which was never started"
                )
            keys.append(self._key(words[2], words[3]) if words[0] == "V" else _FOREIGN)
        if not self.log.complete and not self._cut_short:
            self._add(AnomalyKind.UNREADABLE, f"the last read stopped at offset {len(keys)}")
        elif self.log.complete and self.log.end > len(keys):
            self._add(AnomalyKind.HOLE, f"nothing was read between offset {len(keys)} and the end, {self.log.end}")
        self.facts.log_end = max(self.log.end, len(keys))

    def _read_again(self, offset: int, words: list[str]) -> None:
        """The last read gave an offset twice: a consumer that lost its connection may begin again a little earlier."""
        key = self._key(words[2], words[3]) if words[0] == "V" else _FOREIGN
        if key != self.log.keys[offset]:
            self._add(
                AnomalyKind.UNSTABLE_READ,
                f"offset {offset} gave {self._name(self.log.keys[offset])}, then {self._name(key)}",
            )

    def _judge_copies_and_order(self, failed: set[int]) -> None:
        producers = list(self._producers.values())
        last: dict[int, int] = {}
        for offset, key in enumerate(self.log.keys):
            if key < 0 or key >> _NUMBER_BITS >= len(producers):
                continue
            producer = producers[key >> _NUMBER_BITS]
            first = self._first_place.setdefault(key, offset)
            if first != offset:
                if producer.once:
                    self._add(AnomalyKind.DUPLICATED, f"{self._name(key)} is at offsets {first} and {offset}")
                else:
                    self.facts.permitted_duplicates += 1
                continue
            # A record that the client gave up may arrive late. A killed client could not say what it gave up.
            if producer.ordered and key not in failed and not self._may_be_of_a_killed_client(producer.name):
                before = last.get(producer.place, _NOTHING)
                if key < before:
                    self._add(
                        AnomalyKind.REORDERED, f"{self._name(key)} is at offset {offset}, behind {self._name(before)}"
                    )
                last[producer.place] = max(before, key)

    def _judge_acknowledgements(self) -> None:
        for path in sorted(self._part.glob("*.produce")):
            for words in lines(path):
                if words[0] == "A":
                    self._acknowledged(int(words[1]), words[2], words[3], int(words[4]))

    def _acknowledged(self, at_ms: int, name: str, number: str, offset: int) -> None:
        producer = self._producers.get(name)
        if producer is None:
            if not self._may_be_of_a_killed_client(name):
                what = f"record {number} of {name} was acknowledged, and {name} was never started"
                self._add(AnomalyKind.FOREIGN, what, at_ms)
            return
        self.facts.acknowledged[f"{producer.client} {producer.acks}"] += 1
        key = self._key(name, number)
        # A read that broke off may not have come to the record.
        was_read = self.log.complete or 0 <= offset < len(self.log.keys)
        missing = key not in self._first_place
        elsewhere = not missing and offset >= 0 and was_read and self.log.at(offset) != key
        if producer.acks != "all":
            self.facts.lost_acks_1 += missing and was_read
            self.facts.moved_acks_1 += elsewhere
        elif missing:
            if was_read:
                self._add(AnomalyKind.LOST, f"{self._name(key)}, acknowledged at offset {offset}", at_ms)
        elif elsewhere:
            there = self._name(self.log.at(offset))
            self._add(
                AnomalyKind.WRONG_OFFSET,
                f"{self._name(key)} was acknowledged at offset {offset}, where {there} is; "
                f"it is at {self._first_place[key]}",
                at_ms,
            )

    def _judge_reads(self) -> None:
        for path in sorted(self._part.glob("*.group")):
            for words in lines(path):
                if words[0] != "R":
                    continue
                self.facts.deliveries += 1
                offset, key = int(words[5]), self._key(words[6], words[7])
                if not self.log.complete and offset >= len(self.log.keys):
                    continue
                if key != self.log.at(offset):
                    later = self._name(self.log.at(offset))
                    what = f"offset {offset} gave {words[3]} {self._name(key)}, and {later} at the end"
                    self._add(AnomalyKind.UNSTABLE_READ, what, int(words[1]))

    def _add(self, kind: AnomalyKind, what: str, at_ms: int | None = None) -> None:
        self._findings.add(kind, self._where, what, at_ms)


def total(facts: Iterable[WriteFacts]) -> WriteFacts:
    """The sum over partitions."""
    all_of_it = WriteFacts()
    for each in facts:
        all_of_it.acknowledged.update(each.acknowledged)
        for name in ("failed", "unresolved_present", "permitted_duplicates", "lost_acks_1", "moved_acks_1", "log_end"):
            setattr(all_of_it, name, getattr(all_of_it, name) + getattr(each, name))
        all_of_it.deliveries += each.deliveries
    return all_of_it
