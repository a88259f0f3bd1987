"""The options of a chaos run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Final

from streamhouse.core.errors import ConfigError, InvalidRequest, InvalidSetting
from streamhouse.core.settings import SCHEMA, Settings, resolve
from streamhouse.testing.services.process import process_exists


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
DEFAULT_AGENTS: Final = 3
AGENT_SETTINGS: Final = {
    "profile": "fast",
    "durability": "object",
    "memory.write_buffer_bytes": "1MiB",  # so that an outage of a few seconds leaves batches refused for want of room
    "segment.max_bytes": "256KiB",
    "wal.file_bytes": "1MiB",
    "wal.max_bytes": "256MiB",
    "store.request_timeout": "3s",
    "store.retry_deadline": "20s",
    "agent.stop_timeout": "10s",
    "log.level": "info",
}
"""What the run sets for its own agents; ``--set`` replaces values."""
_STORES: Final = {"metadata.url": "postgresql://127.0.0.1/chaos", "store.url": "s3://chaos/chaos"}
"""They stand for the addresses that are known only when the stores have started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    minutes: float
    agents: int | None
    """The number of agents; None for the default, or for the number of the running fleet."""
    seed: int
    results: Path
    fault_every_s: float
    faults: Sequence[FaultKind]
    floor: float
    """A store is made to fail only while the share of good time is above this."""
    rate: float
    unavailable_limit_s: float
    settle_s: float
    keep: bool
    bootstrap: str | None = None
    pids: Sequence[int] = ()
    clients: Sequence[str] | None = None
    kafka_jars: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the agents that replace AGENT_SETTINGS."""

    @property
    def agent_count(self) -> int:
        return DEFAULT_AGENTS if self.agents is None else self.agents

    def check(self) -> None:
        """Raises InvalidRequest."""
        own = self.bootstrap is None
        for wrong, what in (
            (not 0 < self.minutes <= MAX_MINUTES, f"--minutes must be above 0 and at most {MAX_MINUTES:.0f}"),
            (not 1 <= self.agent_count <= MAX_AGENTS, f"--agents must be 1 to {MAX_AGENTS}"),
            (not 0 < self.fault_every_s < inf, "--fault-every must be a number above 0"),
            (not 0 <= self.floor < 1, "--floor must be at least 0 and below 1"),
            (not 0 < self.rate < inf, "--rate must be a number above 0"),
            (not 0 < self.settle_s < inf, "--settle must be a number above 0"),
            (not 0 < self.unavailable_limit_s < inf, "--unavailable-limit must be a number above 0"),
            (bool(self.pids) and own, "--pids needs --bootstrap: the run knows the processes that it starts itself"),
            (
                bool(self.settings) and not own,
                "--set has no effect with --bootstrap: it configures agents that the run starts",
            ),
            (self.agents is not None and not own, "--agents has no effect with --bootstrap: the run starts no agent"),
        ):
            if wrong:
                raise InvalidRequest(what, hint="`streamhouse chaos --help` explains the options")
        self._check_bootstrap()
        for pid in self.pids:
            if not process_exists(pid):
                raise InvalidRequest(f"--pids: there is no process {pid}", hint="name processes of this machine")
        self.agent_settings()

    def _check_bootstrap(self) -> None:
        for address in () if self.bootstrap is None else self.bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                raise InvalidRequest(
                    f"--bootstrap takes HOST:PORT, not {self.bootstrap!r}",
                    hint="for example --bootstrap 127.0.0.1:9092",
                )

    def agent_settings(self) -> Settings:
        """The settings of the run's own agents. Raises InvalidRequest when ``--set`` names a wrong key or value."""
        known = {setting.key: setting for setting in SCHEMA}
        for key, value in self.settings.items():
            if key not in known:
                raise InvalidRequest(
                    f"--set {key}: there is no such setting", hint="`streamhouse config show` lists every setting"
                )
            try:
                known[key].kind.parse(value)
            except InvalidSetting as error:
                raise InvalidRequest(f"--set {key}: {error.message}", hint=error.hint) from None
        flags = {**_STORES, **AGENT_SETTINGS, **self.settings}
        try:
            return resolve(flags=flags).require().settings
        except ConfigError as error:
            message = error.message
            for key in flags:
                source = f"--set {key}" if key in self.settings else "the run's own value"
                message = message.replace(f"(flag --{key.replace('.', '-').replace('_', '-')})", f"({source})")
            raise InvalidRequest(f"--set: {message}", hint=error.hint) from None


def parse_faults(text: str) -> tuple[FaultKind, ...]:
    """``kill,pause``, ``all`` or ``none``. Empty parts are ignored."""
    words = [part.strip() for part in text.split(",") if part.strip()]
    if words == ["all"]:
        return tuple(FaultKind)
    if words == ["none"]:
        return ()
    choices = f"choose from {', '.join(FaultKind)}, all, none"
    if not words:
        raise InvalidRequest("--faults names no fault", hint=choices)
    if "all" in words or "none" in words:
        raise InvalidRequest(f"--faults {text}: all and none stand alone", hint=choices)
    chosen = []
    for word in words:
        if word not in list(FaultKind):
            raise InvalidRequest(f"no fault is named {word!r}", hint=choices)
        chosen.append(FaultKind(word))
    return tuple(dict.fromkeys(chosen))


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Pairs such as ``lease.ttl=10s``."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"--set takes KEY=VALUE, not {pair!r}", hint="for example --set lease.ttl=10s")
        found[key.strip()] = value.strip()
    return found


def parse_pids(text: str | None) -> tuple[int, ...]:
    """``4711,4712``."""
    try:
        return tuple(int(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise InvalidRequest(f"--pids takes process ids with commas, not {text!r}", hint="--pids 4711,4712") from None
