"""How long a partition acknowledged nothing while a client waited for it to.

A stopwatch for each partition: it runs while at least one record is with a client and not answered, it stands still
during the spans that the caller excludes (no agent ran; a store was out), and it returns to zero at every
acknowledgement.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streamhouse.chaos.history import lines

_TOLD_FROM_MS: Final = 2000  # shorter silences are not worth a line on the time line
_MAX_TOLD: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    begin_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentPeriod:
    begin_ms: int
    end_ms: int
    waited_ms: int
    """The length, without the excluded spans and without time in which nothing was asked for."""


@dataclass(slots=True, kw_only=True)
class Availability:
    longest_ms: int = 0
    longest: SilentPeriod | None = None
    silences: list[SilentPeriod] = field(default_factory=list)
    acknowledged_by_second: Counter[int] = field(default_factory=Counter)


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Sorted and without overlap."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: span.begin_ms):
        if span.end_ms <= span.begin_ms:
            continue
        if merged and span.begin_ms <= merged[-1].end_ms:
            merged[-1] = Span(begin_ms=merged[-1].begin_ms, end_ms=max(merged[-1].end_ms, span.end_ms))
        else:
            merged.append(span)
    return merged


class _Excluded:
    """How much of a stretch lies outside the excluded spans. Stretches come in order of time."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._position = 0

    def rest_ms(self, begin_ms: int, end_ms: int) -> int:
        rest = end_ms - begin_ms
        while self._position < len(self._spans) and self._spans[self._position].end_ms <= begin_ms:
            self._position += 1
        for span in self._spans[self._position :]:
            if span.begin_ms >= end_ms:
                break
            rest -= min(end_ms, span.end_ms) - max(begin_ms, span.begin_ms)
        return max(rest, 0)


def measure(part: Path, excluded: Sequence[Span]) -> Availability:
    """``excluded``: sorted and without overlap."""
    found = Availability()
    outside = _Excluded(excluded)
    outstanding, waited_ms, last_ms, silent_since_ms = 0, 0, 0, 0
    for at_ms, kind, count in _events(part):
        if outstanding > 0:
            waited_ms += outside.rest_ms(last_ms, at_ms)
        elif waited_ms == 0:
            silent_since_ms = at_ms
        last_ms = max(last_ms, at_ms)
        if kind == "S":
            outstanding += count
            continue
        outstanding = max(0, outstanding - 1)
        if kind == "A":
            found.acknowledged_by_second[at_ms // 1000] += 1
            _end(found, silent_since_ms, at_ms, waited_ms)
            waited_ms, silent_since_ms = 0, at_ms
    _end(found, silent_since_ms, last_ms, waited_ms)
    return found


def _end(found: Availability, begin_ms: int, end_ms: int, waited_ms: int) -> None:
    silence = SilentPeriod(begin_ms=begin_ms, end_ms=end_ms, waited_ms=waited_ms)
    if waited_ms > found.longest_ms:
        found.longest_ms, found.longest = waited_ms, silence
    if waited_ms >= _TOLD_FROM_MS and len(found.silences) < _MAX_TOLD:
        found.silences.append(silence)


def _events(part: Path) -> Iterator[tuple[int, str, int]]:
    """Time, kind, count: the events of all processes in the order of time."""
    return heapq.merge(*(_events_of(path) for path in sorted(part.glob("*.produce"))), key=lambda event: event[0])


def _events_of(path: Path) -> Iterator[tuple[int, str, int]]:
    for words in lines(path):
        yield int(words[1]), words[0], int(words[4]) if words[0] == "S" else 1
