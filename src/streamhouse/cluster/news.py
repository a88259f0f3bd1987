"""What becomes of leases and of agents, in lines for an operator: one for thousands of leases that go the same way.

Leases change by the thousand when an agent comes or goes. What happens within a moment is counted by kind and told in
one line, with the first few names. Waits on the event loop; decides nothing.
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
class _Heap:
    level: int
    first_reason: str
    partitions: int = 0
    slots: int = 0
    names: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Partitions by name; of slots, which say nothing to anybody, how many."""
        counts = []
        if self.partitions:
            named = f"partition {self.names[0]}" if self.partitions == 1 else f"{self.partitions} partitions"
            counts.append(named if self.partitions == 1 else f"{named} ({_few(self.names, self.partitions)})")
        if self.slots:
            counts.append("one coordinator slot" if self.slots == 1 else f"{self.slots} coordinator slots")
        return " and ".join(counts)


class LeaseNews:
    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._heaps: dict[str, _Heap] = {}  # by kind, of which there are a dozen
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

    def tell(self) -> None:
        """Now; by itself it does so a moment after the first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        heaps, self._heaps = self._heaps, {}
        for kind, heap in heaps.items():
            _log.log(
                heap.level,
                "%s: %s %s%s",
                self._agent_id,
                heap,
                kind,
                f": {heap.first_reason}" if heap.first_reason else "",
                extra={
                    "agent": self._agent_id,
                    "event": kind,
                    "partitions": heap.partitions,
                    "slots": heap.slots,
                    "first": heap.names,
                },
            )

    def _add(self, kind: str, lease: Lease, level: int, reason: str = "") -> None:
        heap = self._heaps.get(kind)
        if heap is None:
            heap = self._heaps[kind] = _Heap(level=level, first_reason=reason)
        if isinstance(lease.key, PartitionKey):
            heap.partitions += 1
            if len(heap.names) < _NAMES:
                heap.names.append(f"{lease.topic}/{lease.key.partition}" if lease.topic else str(lease.key))
        else:
            heap.slots += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self.tell)


def tell_of_agents(agent_id: str, *, before: Iterable[str], now: Iterable[str], leaving: Iterable[str]) -> None:
    """What has changed among the others, as ``agent_id`` sees it. ``leaving``: those that began to since."""
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
