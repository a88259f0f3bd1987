"""What a seed decides about maintenance: who runs it, how often, with which limits, and how topics are configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simulator.dice import Dice
from simulator.history import TopicRules
from streamhouse.maintenance.compaction.compactor import CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.key_compaction.compactor import KeyCompactorOptions
from streamhouse.maintenance.key_compaction.key_map import BYTES_PER_KEY
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.maintenance.upkeep import UpkeepOptions
from streamhouse.maintenance.vacuum.options import (
    SHORTEST_READER_GRACE_MS,
    SHORTEST_WRITER_GRACE_MS,
    VacuumOptions,
)

MINUTE_MS: Final = 60_000
_CLAIM_TTL_MS: Final = 1_000
_VACUUM: Final = VacuumOptions(
    writer_grace_ms=SHORTEST_WRITER_GRACE_MS, reader_grace_ms=SHORTEST_READER_GRACE_MS, pause_ms=1
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    curators: int
    """Processes that do nothing but maintenance, beside the agents."""
    killed: float
    """How likely a curator is killed at each step."""
    claims_hold: bool
    """Whether a claim keeps others away. Claims only schedule work: without them more processes compact a partition at
    once, and nothing else may change."""
    pause_ms: float
    """The longest pause of a curator between two passes."""
    hours_every_ms: float
    """How often hours pass for the metadata's clock, about."""
    pinned_readers: int
    record_keys: int
    """How many keys the records of the run have."""
    tombstones: float
    old_records: float
    """How often a record is dated back."""
    rules: TopicRules
    dirty_ratio: float
    compaction_lag_ms: int
    upkeep: UpkeepOptions

    def topic_configs(self) -> Mapping[str, str]:
        rules = self.rules
        policy = [name for name, is_on in (("compact", rules.compacts), ("delete", rules.deletes)) if is_on]
        return {
            "cleanup.policy": ",".join(policy),
            "retention.ms": str(rules.retention_ms),
            "retention.bytes": str(rules.retention_bytes),
            "delete.retention.ms": str(rules.tombstones_stay_ms),
            "min.cleanable.dirty.ratio": str(self.dirty_ratio),
            "min.compaction.lag.ms": str(self.compaction_lag_ms),
        }


def draw_plan(dice: Dice, *, single: bool) -> MaintenancePlan:
    compacts = dice.chance(0.45)
    deletes = not compacts or dice.chance(0.35)
    rules = TopicRules(
        compacts=compacts,
        deletes=deletes,
        retention_ms=dice.pick((-1, 10 * MINUTE_MS, 90 * MINUTE_MS)) if deletes else -1,
        retention_bytes=dice.pick((-1, -1, 1000, 6000)) if deletes else -1,
        tombstones_stay_ms=dice.pick((0, 20 * MINUTE_MS, 60 * MINUTE_MS)),
    )
    return MaintenancePlan(
        curators=dice.between(1, 3),
        killed=dice.pick((0.0, 0.01, 0.04)),
        claims_hold=dice.child("claims").chance(0.6),
        pause_ms=dice.pick((50.0, 100.0, 300.0)),
        hours_every_ms=dice.pick((400.0, 800.0, 2000.0)),
        pinned_readers=dice.below(3),
        record_keys=dice.pick((3, 8, 40)),
        tombstones=dice.pick((0.0, 0.2)) if compacts else 0.0,
        old_records=dice.pick((0.0, 0.0, 0.1)),
        rules=rules,
        dirty_ratio=dice.pick((0.0, 0.0, 0.5)),
        compaction_lag_ms=dice.pick((0, 0, 10 * MINUTE_MS)),
        upkeep=_draw_upkeep(dice, single=single),
    )


def _draw_upkeep(dice: Dice, *, single: bool) -> UpkeepOptions:
    target_bytes = dice.pick((600, 2000, 100_000))
    return UpkeepOptions(
        retention_interval_ms=dice.pick((300, 1000)),
        compaction_interval_ms=dice.pick((100, 500)),
        vacuum_interval_ms=dice.pick((500, 1500)),
        compactor=CompactorOptions(
            rules=CompactionRules(
                target_object_bytes=target_bytes,
                max_object_bytes=2 * target_bytes,
                large_entry_bytes=min(target_bytes, dice.pick((400, 1500))),
                min_entries=dice.between(2, 4),
                max_age_ms=dice.pick((0, 20 * MINUTE_MS)),
                max_sources=dice.pick((4, 20)),
                max_items=dice.pick((1, 4)),
            ),
            max_parallel_items=dice.pick((1, 2)),
            claim_ttl_ms=_CLAIM_TTL_MS,
        ),
        key_compactor=KeyCompactorOptions(
            rules=KeyRules(
                map_bytes=BYTES_PER_KEY * dice.pick((2, 5, 1000)),
                target_object_bytes=dice.pick((600, 3000, 100_000)),
                max_sources=dice.pick((2, 10, 100)),
                max_dirty_entries=dice.pick((2, 1000)),
            ),
            claim_ttl_ms=_CLAIM_TTL_MS,
        ),
        vacuum=_VACUUM,
        dereferenced_keep_bytes=dice.pick((0, 2000)) if single else None,
    )
