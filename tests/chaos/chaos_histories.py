"""Hand-made histories, as client processes would have written them, and the options of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streamhouse.chaos.checker import AnomalyKind, RunVerdict, Span, judge
from streamhouse.chaos.options import FaultKind, Options


class Tale:
    """One topic, ``t``, with one partition unless another is named."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.producer("p")

    def producer(self, name: str, *, once: bool = True, ordered: bool = True, acks: str = "all") -> None:
        self._add("producers/made", f"{name} librdkafka {once:d} {ordered:d} {acks}")

    def sent(self, count: int, *, at: int = 1000, by: str = "p", first: int = 0, partition: int = 0) -> None:
        self._add(f"parts/t/{partition}/made.produce", f"S {at} {by} {first} {count}")

    def acknowledged(self, number: int, offset: int, *, at: int = 2000, by: str = "p", partition: int = 0) -> None:
        self._add(f"parts/t/{partition}/made.produce", f"A {at} {by} {number} {offset}")

    def failed(self, number: int, *, at: int = 2000, by: str = "p", partition: int = 0) -> None:
        self._add(f"parts/t/{partition}/made.produce", f"F {at} {by} {number} TIMED_OUT")

    def log(self, *records: str | int, end: int | None = None, partition: int = 0, complete: bool = True) -> None:
        """What the last read found: numbers of ``p``, or "producer number", or "" where an offset is jumped over."""
        for offset, record in enumerate(records):
            if record != "":
                name = record if isinstance(record, str) else f"p {record}"
                self._add(f"parts/t/{partition}/final", f"V {offset} {name}")
        if complete:
            self._add(f"parts/t/{partition}/final", f"E {len(records) if end is None else end}")

    def foreign(self, offset: int) -> None:
        self._add("parts/t/0/final", f"X {offset} damaged:_wrong_checksum")

    def taken(self, *, at: int, member: str = "m", process: str = "made") -> None:
        self._add(f"parts/t/0/{process}.group", f"T {at} g {member} 1")

    def read(self, offset: int, number: int, *, at: int = 3000, member: str = "m", process: str = "made") -> None:
        self._add(f"parts/t/0/{process}.group", f"R {at} g {member} 1 {offset} p {number}")

    def committed(self, offset: int, *, begun: int, ended: int, member: str = "m", process: str = "made") -> None:
        self._add(f"parts/t/0/{process}.group", f"C {begun} {ended} g {member} {offset}")

    def observed(self, offset: int, *, begun: int, ended: int) -> None:
        self._add("parts/t/0/watch.group", f"O {begun} {ended} g {offset}")

    def end_seen(self, end: int, *, at: int) -> None:
        self._add("parts/t/0/watch.group", f"E {at} g {end}")

    def raw(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def _add(self, name: str, line: str) -> None:
        self.raw(name, f"{line}\n")

    def written(self, count: int, *, group: bool = False) -> None:
        """``count`` records, sent, acknowledged and in the log; with ``group``, read and committed too."""
        self.sent(count)
        for number in range(count):
            self.acknowledged(number, number, at=2000 + number)
        self.log(*range(count))
        if group:
            self.taken(at=2500)
            for number in range(count):
                self.read(number, number)
            self.committed(count, begun=3500, ended=3600)

    def verdict(
        self,
        *,
        without_agents: Iterable[Span] = (),
        outages: Iterable[Span] = (),
        limit_ms: int = 60_000,
        drained: bool = True,
        killed: Iterable[str] = (),
        cut_short: bool = False,
    ) -> RunVerdict:
        return judge(
            self.directory,
            without_agents=list(without_agents),
            outages=list(outages),
            unavailable_limit_ms=limit_ms,
            drained=drained,
            killed=list(killed),
            cut_short=cut_short,
        )

    def found(self, **more: object) -> dict[AnomalyKind, int]:
        return dict(self.verdict(**more).findings.counts)  # type: ignore[arg-type]


def chaos_options(results: Path = Path("results"), **more: Any) -> Options:
    common: dict[str, Any] = {
        "minutes": 1,
        "agents": None,
        "seed": 4,
        "results": results,
        "fault_every_s": 5,
        "faults": (FaultKind.PAUSE,),
        "floor": 0.5,
        "rate": 10,
        "unavailable_limit_s": 60,
        "settle_s": 5,
        "keep": False,
    }
    return Options(**{**common, **more})
