"""What a run is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from streamhouse.core.errors import InvalidRequest


class FaultKind(StrEnum):
    KILL = "kill"
    PAUSE = "pause"
    STOP = "stop"
    S3 = "s3"
    DATABASE = "database"
    DISK = "disk"
    CLOCK = "clock"


MEANINGS: Final = {
    FaultKind.KILL: "SIGKILL of an agent; it starts again after a while, on the same data",
    FaultKind.PAUSE: "SIGSTOP of an agent, sometimes for longer than a lease lasts, then SIGCONT",
    FaultKind.STOP: "SIGTERM of an agent; it hands over, ends, and starts again after a while",
    FaultKind.S3: "the object store's connections are cut, refused, or held silent",
    FaultKind.DATABASE: "PostgreSQL's connections are cut, refused, or held silent",
    FaultKind.DISK: "the disk of an agent is full for a while",
    FaultKind.CLOCK: "the wall clock of an agent is set forwards or back",
}

AGENT_FAULTS: Final = (FaultKind.KILL, FaultKind.PAUSE, FaultKind.STOP, FaultKind.DISK, FaultKind.CLOCK)
DEFAULT_TOPICS: Final = {"small": 4, "wide": 5}
MAX_AGENTS: Final = 16  # all on one machine, each of them a process of 100 MB
MAX_MINUTES: Final = 24 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    minutes: float
    agents: int
    seed: int
    results: Path
    fault_every_s: float
    faults: Sequence[FaultKind]
    floor: float
    """The share of the time in which an agent must run and both stores must answer."""
    rate: float
    unavailable_limit_s: float
    settle_s: float
    keep: bool
    bootstrap: str | None = None
    pids: Sequence[int] = ()
    clients: Sequence[str] | None = None
    kafka_jars: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the agents, on top of the run's own."""

    def check(self) -> None:
        """Raises InvalidRequest."""
        for wrong, what in (
            (not 0 < self.minutes <= MAX_MINUTES, f"--minutes must be above 0 and at most {MAX_MINUTES:.0f}"),
            (not 1 <= self.agents <= MAX_AGENTS, f"--agents must be 1 to {MAX_AGENTS}"),
            (self.fault_every_s <= 0, "--fault-every must be above 0"),
            (not 0 <= self.floor < 1, "--floor must be at least 0 and below 1"),
            (self.rate <= 0, "--rate must be above 0"),
            (self.settle_s <= 0, "--settle must be above 0"),
            (self.unavailable_limit_s <= 0, "--unavailable-limit must be above 0"),
            (bool(self.pids) and self.bootstrap is None, "--pids goes with --bootstrap: a fleet of its own is known"),
            (bool(self.settings) and self.bootstrap is not None, "--set goes to agents that the run starts itself"),
        ):
            if wrong:
                raise InvalidRequest(what, hint="`streamhouse chaos --help` explains the options")


def parse_faults(text: str) -> tuple[FaultKind, ...]:
    """``kill,pause``, ``all`` or ``none``."""
    if text.strip() == "all":
        return tuple(FaultKind)
    if text.strip() == "none":
        return ()
    chosen = []
    for word in (part.strip() for part in text.split(",")):
        if word not in list(FaultKind):
            raise InvalidRequest(f"no fault is named {word!r}", hint=f"choose from {', '.join(FaultKind)}, all, none")
        chosen.append(FaultKind(word))
    return tuple(dict.fromkeys(chosen))


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """``lease.ttl=2s`` and its like."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"--set takes KEY=VALUE, not {pair!r}", hint="for example --set lease.ttl=2s")
        found[key.strip()] = value.strip()
    return found


def parse_pids(text: str | None) -> tuple[int, ...]:
    """``4711,4712``."""
    try:
        return tuple(int(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise InvalidRequest(f"--pids takes process ids with commas, not {text!r}", hint="--pids 4711,4712") from None
