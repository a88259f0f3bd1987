"""Log lines about leases and agents, for an operator. Thousands of leases with the same fate share one line.

Leases change by the thousand when an agent joins or leaves. Everything that happens within half a second is counted by
kind and written as one line with the first few names. This module waits on the event loop and decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from streamhouse.cluster.contract import Loss
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import Lease

_GATHER_S: Final = 0.5
_NAMES: Final = 5
_EXPECTED: Final = frozenset({Loss.GONE, Loss.STOPPED})

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Line:
    """One log line, while the events that it reports are collected."""

    level: int
    first_reason: str
    partitions: int = 0
    slots: int = 0
    names: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Partitions are named. Slots are only counted, because their numbers mean nothing to an operator."""
        counts = []
        if self.partitions:
            named = f"partition {self.names[0]}" if self.partitions == 1 else f"{self.partitions} partitions"
            counts.append(named if self.partitions == 1 else f"{named} ({_few(self.names, self.partitions)})")
        if self.slots:
            counts.append("one coordinator slot" if self.slots == 1 else f"{self.slots} coordinator slots")
        return " and ".join(counts)


class LeaseLog:
    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._lines: dict[str, _Line] = {}  # by kind; there are a dozen kinds
        self._timer: asyncio.TimerHandle | None = None

    def gained(self, lease: Lease) -> None:
        self._add("gained", lease, logging.INFO)

    def lost(self, lease: Lease, reason: Loss) -> None:
        self._add(f"lost ({reason.value})", lease, logging.INFO if reason in _EXPECTED else logging.WARNING)

    def given_up(self, lease: Lease, reason: str) -> None:
        self._add("given up", lease, logging.WARNING, reason)

    def released(self, lease: Lease) -> None:
        self._add("released", lease, logging.INFO)

    def handed_over(self, lease: Lease, target: str) -> None:
        self._add(f"handed over to {target}", lease, logging.INFO)

    def write(self) -> None:
        """Write the gathered lines now. A timer calls it half a second after the first event."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, {}
        for kind, line in lines.items():
            _log.log(
                line.level,
                "%s: %s %s%s",
                self._agent_id,
                line,
                kind,
                f": {line.first_reason}" if line.first_reason else "",
                extra={
                    "agent": self._agent_id,
                    "event": kind,
                    "partitions": line.partitions,
                    "slots": line.slots,
                    "first": line.names,
                },
            )

    def _add(self, kind: str, lease: Lease, level: int, reason: str = "") -> None:
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = _Line(level=level, first_reason=reason)
        if isinstance(lease.key, PartitionKey):
            line.partitions += 1
            if len(line.names) < _NAMES:
                line.names.append(f"{lease.topic}/{lease.key.partition}" if lease.topic else str(lease.key))
        else:
            line.slots += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self.write)


def log_agents(agent_id: str, *, before: Iterable[str], now: Iterable[str], leaving: Iterable[str]) -> None:
    """Log which other agents joined, began to leave, or are gone, as ``agent_id`` sees them."""
    then, here = set(before) - {agent_id}, set(now) - {agent_id}
    for event, changed in (
        ("joined", here - then),
        ("leaving", set(leaving) - {agent_id}),
        ("gone", then - here),
    ):
        if changed:
            names = sorted(changed)
            _log.info(
                "%s: agents %s: %s; %d alive",
                agent_id,
                event,
                _few(names[:_NAMES], len(names)),
                len(here) + 1,
                extra={"agent": agent_id, "event": event, "first": names[:_NAMES], "alive": len(here) + 1},
            )


def _few(names: list[str], count: int) -> str:
    more = count - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
