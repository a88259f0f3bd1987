"""Judges what one partition's consumer groups were given and what they committed.

A member commits only what it has been given. So everything below a group's committed offset was delivered to one of
its members, and a committed offset never goes back: neither as another client fetches it, nor as a new owner begins to
read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from streamhouse.chaos.checker.anomalies import AnomalyKind, Findings
from streamhouse.chaos.history import lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The committed offset was ``offset`` at some time between the two instants."""

    begun_ms: int
    ended_ms: int
    offset: int
    how: str


@dataclass(slots=True, kw_only=True)
class _GroupPart:
    """What the checker knows of one group on one partition."""

    delivered: bytearray
    sights: list[Sight] = field(default_factory=list)
    skips: list[tuple[int, str]] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    goal: int | None = None
    """The end of the log when the group was last compared with it. Records may be added after the group has ended: a
    request whose client did not wait for the answer can be written later."""

    def mark(self, offset: int) -> None:
        if offset >= len(self.delivered):
            self.delivered.extend(bytes(offset + 1 - len(self.delivered)))
        self.delivered[offset] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    group: str
    deliveries: int
    members: int
    committed: int
    behind: int
    """Records between the last committed offset and the end that the log had when the group ended."""


def judge_groups(part: Path, where: str, log_end: int, findings: Findings) -> list[GroupFacts]:
    groups = _read(part, log_end)
    facts = []
    for name, group in sorted(groups.items()):
        place = f"{where}, group {name}"
        for at_ms, what in group.skips:
            findings.add(AnomalyKind.SKIPPED, place, what, at_ms)
        for what, at_ms in _steps_back(group.sights):
            findings.add(AnomalyKind.COMMIT_WENT_BACK, place, what, at_ms)
        committed = max((sight.offset for sight in group.sights if sight.how != "began to read"), default=0)
        for first, last in _missing(group.delivered, committed):
            what = f"offset {first}" if first == last else f"offsets {first} to {last}"
            findings.add(AnomalyKind.SKIPPED, place, f"{what} reached no member; {committed} is committed")
        facts.append(
            GroupFacts(
                group=name,
                deliveries=sum(group.delivered),
                members=len(group.members),
                committed=committed,
                behind=max(0, (log_end if group.goal is None else group.goal) - committed),
            )
        )
    return facts


def _read(part: Path, log_end: int) -> dict[str, _GroupPart]:
    groups: defaultdict[str, _GroupPart] = defaultdict(lambda: _GroupPart(delivered=bytearray(log_end)))
    for path in sorted(part.glob("*.group")):
        following: dict[str, int | None] = {}
        taken_ms: dict[str, int] = {}
        for words in lines(path):
            match words:
                case ["T", ms, _, member, _]:
                    following[member], taken_ms[member] = None, int(ms)
                case ["R", ms, name, member, _, at, _, _]:
                    group, offset = groups[name], int(at)
                    group.mark(offset)
                    group.members.add(member)
                    expected = following.get(member)
                    if expected is None and member in taken_ms:
                        group.sights.append(
                            Sight(begun_ms=taken_ms[member], ended_ms=int(ms), offset=offset, how="began to read")
                        )
                    elif expected is not None and offset > expected:
                        group.skips.append((int(ms), f"{member} was given {offset} where {expected} follows"))
                    following[member] = offset + 1
                case ["C", begun, ended, name, _, at]:
                    groups[name].sights.append(
                        Sight(begun_ms=int(begun), ended_ms=int(ended), offset=int(at), how="was committed")
                    )
                case ["E", _, name, at]:
                    groups[name].goal = int(at)
                case ["O", begun, ended, name, at]:
                    groups[name].sights.append(
                        Sight(begun_ms=int(begun), ended_ms=int(ended), offset=int(at), how="was fetched")
                    )
    return groups


def _steps_back(sights: list[Sight]) -> Iterator[tuple[str, int]]:
    """Sights that begin after a higher one had ended. A first read proves nothing to those after it."""
    ended = sorted((sight for sight in sights if sight.how != "began to read"), key=lambda sight: sight.ended_ms)
    floor, position = 0, 0
    for sight in sorted(sights, key=lambda sight: sight.begun_ms):
        while position < len(ended) and ended[position].ended_ms < sight.begun_ms:
            floor = max(floor, ended[position].offset)
            position += 1
        if sight.offset < floor:
            yield f"{sight.offset} {sight.how} after {floor} had been committed", sight.ended_ms


def _missing(delivered: bytearray, committed: int) -> Iterator[tuple[int, int]]:
    """Runs of offsets below ``committed`` that were never delivered."""
    offset = 0
    while True:
        first = delivered.find(0, offset, committed)
        if first < 0:
            break
        offset = delivered.find(1, first, committed)
        if offset < 0:
            yield first, min(committed, len(delivered)) - 1
            break
        yield first, offset - 1
    if committed > len(delivered):
        yield len(delivered), committed - 1
