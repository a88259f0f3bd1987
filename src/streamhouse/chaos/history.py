"""What clients sent, were told, read and committed: append-only text files in one directory.

A client process writes files of its own, one for each partition, so that no two processes share a file and the checker
reads one partition at a time. Every line is words separated by spaces; times are wall-clock milliseconds.

    producers/PROCESS            NAME CLIENT ONCE ORDERED ACKS     began (ONCE, ORDERED: 0 or 1; ACKS: all, 1)
    groups/PROCESS               NAME CLIENT PROTOCOL
    parts/TOPIC/PARTITION/PROCESS.produce
        S ms producer first count                     ``count`` records from ``first`` on were handed to the client
        A ms producer number offset                   acknowledged; offset -1 when the client does not know it
        F ms producer number reason                   given up by the client, or refused
    parts/TOPIC/PARTITION/PROCESS.group
        T ms group member generation                  the partition was assigned to this member
        R ms group member generation offset producer number        delivered ("! 0" in place of a damaged record)
        C begun ended group member offset             a commit was acknowledged
        O begun ended group offset                    the committed offset, as a client outside the group fetched it
        E ms group end                                the end of the log at that time, fetched when the load had ended
    parts/TOPIC/PARTITION/final
        V offset producer number                      the last read of the whole partition, in the order of reading
        X offset reason                               a record that belongs to no producer here
        E end                                         the partition's end offset; there only when the read reached it

Imports nothing but the standard library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

from streamhouse.chaos.records import Damaged, decode

DAMAGED: Final = "!"
_FLUSH_EVERY_MS: Final = 1000


class History:
    """The files of one client process. Threads may share it."""

    def __init__(self, directory: Path, process: str, *, wall_ms: Callable[[], int]) -> None:
        self._directory = directory
        self._process = process
        self._wall_ms = wall_ms
        self._files: dict[Path, TextIO] = {}
        self._lock = threading.Lock()
        self._flushed_ms = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def now_ms(self) -> int:
        return self._wall_ms()

    def producer(self, name: str, client: str, *, once: bool, ordered: bool, acks: str) -> None:
        self._line(self._directory / "producers" / self._process, f"{name} {client} {once:d} {ordered:d} {acks}")

    def group(self, name: str, client: str, protocol: str) -> None:
        self._line(self._directory / "groups" / self._process, f"{name} {client} {protocol}")

    def sent(self, topic: str, partition: int, producer: str, first: int, count: int) -> None:
        self._stamped(self._part(topic, partition, "produce"), "S", f"{producer} {first} {count}")

    def acknowledged(self, topic: str, partition: int, producer: str, number: int, offset: int) -> None:
        self._stamped(self._part(topic, partition, "produce"), "A", f"{producer} {number} {offset}")

    def failed(self, topic: str, partition: int, producer: str, number: int, reason: str) -> None:
        self._stamped(self._part(topic, partition, "produce"), "F", f"{producer} {number} {word(reason)}")

    def taken(self, topic: str, partition: int, group: str, member: str, generation: int) -> None:
        self._stamped(self._part(topic, partition, "group"), "T", f"{group} {member} {generation}")

    def delivered(
        self, topic: str, partition: int, group: str, member: str, generation: int, offset: int, value: bytes | None
    ) -> None:
        who = identity(value)
        self._stamped(self._part(topic, partition, "group"), "R", f"{group} {member} {generation} {offset} {who}")

    def committed(self, topic: str, partition: int, group: str, member: str, offset: int, *, begun_ms: int) -> None:
        line = f"C {begun_ms} {self._wall_ms()} {group} {member} {offset}"
        self._line(self._part(topic, partition, "group"), line)

    def observed(self, topic: str, partition: int, group: str, offset: int, *, begun_ms: int) -> None:
        self._line(self._part(topic, partition, "group"), f"O {begun_ms} {self._wall_ms()} {group} {offset}")

    def end_seen(self, topic: str, partition: int, group: str, end: int) -> None:
        """The end of the log that the group had to reach when its committed offset was last compared with it."""
        self._stamped(self._part(topic, partition, "group"), "E", f"{group} {end}")

    def read_finally(self, run: str, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        self._line(
            self._directory / "parts" / topic / str(partition) / "final",
            final_line(run, topic, partition, offset, value),
        )

    def read_to_the_end(self, topic: str, partition: int, end: int) -> None:
        self._line(self._directory / "parts" / topic / str(partition) / "final", f"E {end}")

    def _part(self, topic: str, partition: int, kind: str) -> Path:
        return self._directory / "parts" / topic / str(partition) / f"{self._process}.{kind}"

    def _stamped(self, path: Path, kind: str, rest: str) -> None:
        with self._lock:  # the time is taken inside, so that the times of a file never go back
            self._write(path, f"{kind} {self._wall_ms()} {rest}\n")

    def _line(self, path: Path, line: str) -> None:
        with self._lock:
            self._write(path, f"{line}\n")

    def _write(self, path: Path, text: str) -> None:
        file = self._files.get(path)
        if file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = self._files[path] = path.open("a", encoding="utf-8", newline="\n")
        file.write(text)
        now_ms = self._wall_ms()
        if abs(now_ms - self._flushed_ms) > _FLUSH_EVERY_MS:
            self._flushed_ms = now_ms
            for each in self._files.values():
                each.flush()


def word(text: str) -> str:
    """The text as one word of a line."""
    return "_".join(text.split())[:80] or "unknown"


def identity(value: bytes | None) -> str:
    """``producer number`` of a record."""
    try:
        written = decode(value)
    except Damaged:
        return f"{DAMAGED} 0"
    return f"{written.producer} {written.number}"


def final_line(run: str, topic: str, partition: int, offset: int, value: bytes | None) -> str:
    try:
        found = decode(value)
    except Damaged as error:
        return f"X {offset} {word(f'damaged: {error}')}"
    if (found.run, found.topic, found.partition) != (run, topic, partition):
        return f"X {offset} {word(f'written for {found.run}/{found.topic}/{found.partition}')}"
    return f"V {offset} {found.producer} {found.number}"


def lines(path: Path) -> Iterator[list[str]]:
    """The words of every whole line. A last line that a killed client cut off is left out."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield line.split()
    except FileNotFoundError:
        return


def partitions(directory: Path) -> list[tuple[str, int]]:
    found = [(path.parent.name, int(path.name)) for path in (directory / "parts").glob("*/*") if path.name.isdigit()]
    return sorted(found)
