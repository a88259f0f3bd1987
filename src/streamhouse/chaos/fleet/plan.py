"""Which fault comes next, on what, and for how long: drawn from a seed, without IO.

The same seed gives the same list of faults. When one of them is due and the floor on availability forbids it, the
nemesis takes another agent or leaves it out, so two runs of one seed agree in their plans and not in every instant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.chaos.fleet.proxy import ProxyMode
from streamhouse.chaos.options import AGENT_FAULTS, FaultKind
from streamhouse.core.randomness import Randomness

_WEIGHTS: Final[Mapping[FaultKind, float]] = {
    FaultKind.KILL: 34,
    FaultKind.PAUSE: 26,
    FaultKind.STOP: 14,
    FaultKind.S3: 10,
    FaultKind.DATABASE: 8,
    FaultKind.DISK: 4,
    FaultKind.CLOCK: 4,
}
_MODES: Final = (ProxyMode.CUT, ProxyMode.REFUSE, ProxyMode.REFUSE, ProxyMode.HOLD, ProxyMode.HOLD)
_CLOCK_STEPS_S: Final = (-300, -30, -5, 5, 30, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    kind: FaultKind
    agent: int | None
    """Its place among the agents; none for a store."""
    lasts_s: float
    mode: ProxyMode | None = None
    step_s: int = 0

    @property
    def hits_agent(self) -> bool:
        return self.kind in AGENT_FAULTS


class FaultSchedule:
    def __init__(
        self, randomness: Randomness, *, kinds: Sequence[FaultKind], agents: int, every_s: float, lease_s: float
    ) -> None:
        self._randomness = randomness
        self._kinds = kinds
        self._agents = agents
        self._every_s = every_s
        self._lease_s = lease_s

    def pause_s(self) -> float:
        """Return the time until the next fault."""
        return self._randomness.uniform(0.4, 1.6) * self._every_s

    def next(self) -> PlannedFault:
        kind = self._kind()
        agent = min(int(self._randomness.uniform(0, self._agents)), self._agents - 1)
        lasts_s = self._duration_s(kind)
        mode = _MODES[min(int(self._randomness.uniform(0, len(_MODES))), len(_MODES) - 1)]
        step = _CLOCK_STEPS_S[min(int(self._randomness.uniform(0, len(_CLOCK_STEPS_S))), len(_CLOCK_STEPS_S) - 1)]
        hits_agent = kind in AGENT_FAULTS
        return PlannedFault(
            kind=kind,
            agent=agent if hits_agent else None,
            lasts_s=0.2 if not hits_agent and mode is ProxyMode.CUT else lasts_s,
            mode=None if hits_agent else mode,
            step_s=step if kind is FaultKind.CLOCK else 0,
        )

    def _kind(self) -> FaultKind:
        at = self._randomness.uniform(0, sum(_WEIGHTS[kind] for kind in self._kinds))
        for kind in self._kinds:
            at -= _WEIGHTS[kind]
            if at <= 0:
                return kind
        return self._kinds[-1]

    def _duration_s(self, kind: FaultKind) -> float:
        beyond_the_lease = self._randomness.uniform(0, 1) < 0.5
        short = self._randomness.uniform(0.1, self._lease_s * 0.7)
        long = self._randomness.uniform(self._lease_s * 1.1, self._lease_s * 2.0)
        match kind:
            case FaultKind.KILL | FaultKind.STOP:
                return long if self._randomness.uniform(0, 1) < 0.2 else self._randomness.uniform(0, 3)
            case FaultKind.PAUSE:
                return long if beyond_the_lease else short
            case FaultKind.S3 | FaultKind.DATABASE:
                return long if self._randomness.uniform(0, 1) < 0.3 else max(short, 0.5)
            case FaultKind.DISK | FaultKind.CLOCK:
                return self._randomness.uniform(2, 8)
