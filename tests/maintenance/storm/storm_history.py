"""What writers were told, in plain files that no store of the platform has a part in, and the verdict on a log.

Before a writer sends records, their values are in its file; after it was told their offsets, these are too. Both are
synced. So a kill loses no promise: it may only leave a record that was sent and may or may not be there.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamhouse.core.ids import PartitionKey


def value_of(stream: str, number: int) -> str:
    """The value of a stream's record. It shows what it is, and its other bytes follow from that."""
    return f"{stream}/{number}/".ljust(24 + number * 37 % 200, "abcdefgh"[number % 8])


def origin_of(value: str) -> tuple[str, int] | None:
    """The stream and number of a value. None for one that ``value_of`` does not make."""
    stream, _, rest = value.partition("/")
    number = rest.partition("/")[0]
    found = (stream, int(number)) if number.isdigit() else None
    return found if found is not None and value == value_of(*found) else None


class History:
    """One life of a writer. ``stream`` is the name of that life, which no other has."""

    def __init__(self, directory: Path, stream: str, now_ms: Callable[[], int]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._now_ms = now_ms
        self._path = directory / f"{stream}.history"
        self._path.touch(exist_ok=False)
        self._stream = stream
        self._next = 0

    def send(self, count: int) -> list[str]:
        """The next values of the stream, which may be sent from now on."""
        values = [value_of(self._stream, self._next + each) for each in range(count)]
        self._next += count
        self._write({"sent": values, "at_ms": self._now_ms()})
        return values

    def acknowledged(self, key: PartitionKey, base_offset: int, values: Sequence[str]) -> None:
        self._write({"key": str(key), "base": base_offset, "values": list(values)})

    def _write(self, line: dict[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


@dataclass(slots=True)
class Promises:
    """What all writers have sent, and what they were told, so far."""

    sent: dict[str, int] = field(default_factory=dict)
    """By value: the time right before it was sent."""
    acknowledged: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """By partition: the value at each offset."""

    @classmethod
    def read(cls, directory: Path) -> Promises:
        found = cls()
        for path in sorted(directory.glob("*.history")):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # else the writer was killed while it wrote: it was told, and nobody was
                    found._take(json.loads(line))
        return found

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in self.acknowledged.values())

    def _take(self, line: dict[str, Any]) -> None:
        if "sent" in line:
            self.sent.update(dict.fromkeys(line["sent"], line["at_ms"]))
        else:
            offsets = self.acknowledged[line["key"]]
            for offset, value in enumerate(line["values"], line["base"]):
                assert offsets.setdefault(offset, value) == value, f"{line['key']}: two values promised at {offset}"


def judge(
    records: Iterable[tuple[int, str]],
    promised: Mapping[int, str],
    *,
    begins_at: int,
    sent: Container[str] | None = None,
) -> list[str]:
    """What is wrong with a log that was read from ``begins_at`` to its end; nothing when all is well.

    ``sent``: all that was ever sent, if that is known.
    """
    problems: list[str] = []
    places: dict[str, int] = {}
    newest: dict[str, int] = {}
    there: dict[int, str] = {}
    expected = begins_at
    for offset, value in records:
        if offset != expected:
            problems.append(f"offset {offset} follows {expected - 1}")
        expected = offset + 1
        there[offset] = value
        origin = origin_of(value)
        if origin is None or (sent is not None and value not in sent):
            problems.append(f"{value!r} at {offset} was never sent")
            continue
        stream, number = origin
        if value in places:
            problems.append(f"{value!r} stands at {places[value]} and at {offset}")
        elif number < newest.get(stream, -1):
            problems.append(f"{value!r} at {offset} stands behind number {newest[stream]} of its stream")
        places[value] = offset
        newest[stream] = max(newest.get(stream, -1), number)
    for offset, value in promised.items():
        if offset >= begins_at and there.get(offset) != value:
            problems.append(f"{value!r} was acknowledged at {offset}; there is {there.get(offset)!r}")
    return problems
