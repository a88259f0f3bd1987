"""The metrics of `streamhouse compactor`: what agents call the same has the same name, the rest is declared here.

Requests to the stores and their cost come from ``of_stores`` in metrics.py. docs/maintenance.md lists every name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from streamhouse.core import metrics as m
from streamhouse.core.metrics import PREFIX, Metric, MetricKind, Sample
from streamhouse.maintenance.compaction.stats import CompactionStats
from streamhouse.maintenance.service import CompactionService
from streamhouse.maintenance.service.counters import Lag
from streamhouse.maintenance.service.targets import TaskKind
from streamhouse.maintenance.service.usage import PrefixUsage


def _metric(kind: MetricKind, name: str, help: str, *labels: str) -> Metric:
    return Metric(name=f"{PREFIX}compactor_{name}", kind=kind, help=help, labels=labels)


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_KIND: Final = 'kind="small_objects" or "keys".'

TARGETS: Final = _metric(_GAUGE, "targets", f"Partitions that this process looks after. {_KIND}", "kind")
DISCOVERED: Final = _metric(_COUNTER, "discovered_total", "Partitions that were found after the start.")
CANDIDATES: Final = _metric(
    _GAUGE, "candidates", f"Partitions that the last search found worth a task. {_KIND}", "kind"
)
PENDING: Final = _metric(_GAUGE, "pending_tasks", "Partitions that wait for a place in the pool.")
RUNNING: Final = _metric(_GAUGE, "running_tasks", "Partitions that are compacted at this moment.")
TASKS: Final = _metric(
    _COUNTER,
    "tasks_total",
    f'Tasks that ended. {_KIND} outcome="done", "busy" (another process has the claim), "conflict", "nothing" or'
    ' "failed".',
    *("kind", "outcome"),
)
LAG_ENTRIES: Final = _metric(
    _GAUGE, "lag_entries", f"Entries that were due for compaction at the last search. {_KIND}", "kind"
)
LAG_BYTES: Final = _metric(_GAUGE, "lag_bytes", f"Bytes of these entries. {_KIND}", "kind")
WAITING: Final = _metric(
    _GAUGE, "waiting_entries", f"Entries that were not worth compacting yet at the last search. {_KIND}", "kind"
)
PENDING_COMPACTIONS: Final = _metric(
    _GAUGE,
    "pending_compactions",
    "Compactions in the metadata that were begun and not finished, by any process, at the last search.",
)
RECOVERED: Final = _metric(
    _COUNTER,
    "recovered_total",
    'Compactions that were left pending. outcome="applied" or "aborted" by this process.',
    "outcome",
)
READ: Final = _metric(_COUNTER, "read_bytes_total", f"Bytes that compaction has read. {_KIND}", "kind")
WRITTEN: Final = _metric(_COUNTER, "written_bytes_total", f"Bytes of the objects it has written. {_KIND}", "kind")
OBJECTS: Final = _metric(_COUNTER, "objects_total", f"Objects that it has written and committed. {_KIND}", "kind")
ENTRIES: Final = _metric(_COUNTER, "replaced_entries_total", f"Entries that these objects replaced. {_KIND}", "kind")
DROPPED: Final = _metric(
    _COUNTER,
    "dropped_records_total",
    'Records that key compaction dropped. reason="superseded", "tombstone" or "keyless".',
    "reason",
)
GIVEN_UP: Final = _metric(
    _COUNTER,
    "given_up_total",
    f'Work that came to nothing. {_KIND} reason="conflict", "damaged" or "stale".',
    *("kind", "reason"),
)
STAGE: Final = _metric(
    _HISTOGRAM,
    "stage_seconds",
    'How long the parts of the work take. stage="discovery", "search", "wait" (a candidate for the pool),'
    ' "small_objects" and "keys" (one task), "retention", "vacuum" or "usage".',
    "stage",
)
STORED_BYTES: Final = _metric(
    _GAUGE, "stored_bytes", "What was stored after the last vacuum of this process, by prefix.", "prefix"
)
STORED_OBJECTS: Final = _metric(
    _GAUGE, "stored_objects", "How many objects were stored after the last vacuum of this process, by prefix.", "prefix"
)

COMPACTOR_METRICS: Final = tuple(each for each in list(vars().values()) if isinstance(each, Metric))


def of_service(service: CompactionService) -> Iterator[Sample]:
    counters = service.counters
    for kind, passes in counters.passes.items():
        yield m.MAINTENANCE_PASSES, (kind,), passes
    yield m.MAINTENANCE_FAILED, (), counters.failed_passes
    for kind, ended_at_s in counters.ended_at_s.items():
        yield m.MAINTENANCE_ENDED, (kind,), ended_at_s
    yield m.RETENTION_RECORDS, (), counters.retention_records
    yield m.RETENTION_BYTES, (), counters.retention_bytes
    yield m.VACUUM_OBJECTS, (), counters.vacuum_objects
    yield m.VACUUM_BYTES, (), counters.vacuum_bytes
    yield from _of_tasks(service)
    yield from _of_compaction(TaskKind.SMALL_OBJECTS, service.compactor.stats)
    yield from _of_compaction(TaskKind.KEYS, service.key_compactor.stats)
    both = (service.compactor.stats, service.key_compactor.stats)
    yield RECOVERED, ("applied",), sum(stats.recovered for stats in both)
    yield RECOVERED, ("aborted",), sum(stats.aborted for stats in both)
    keys = service.key_compactor.stats
    yield DROPPED, ("superseded",), keys.superseded
    yield DROPPED, ("tombstone",), keys.tombstones
    yield DROPPED, ("keyless",), keys.keyless
    for stage, latency in counters.stages.items():
        yield STAGE, (stage,), latency


def of_usage(usage: Mapping[str, PrefixUsage]) -> Iterator[Sample]:
    for prefix, stored in usage.items():
        yield STORED_BYTES, (prefix,), stored.bytes
        yield STORED_OBJECTS, (prefix,), stored.objects


def _of_tasks(service: CompactionService) -> Iterator[Sample]:
    counters, queue = service.counters, service.pool.queue
    yield DISCOVERED, (), counters.discovered
    yield PENDING, (), queue.waiting
    yield RUNNING, (), len(queue.running)
    yield PENDING_COMPACTIONS, (), counters.pending_compactions
    for kind in TaskKind:
        lag = counters.lag.get(kind, Lag())
        yield TARGETS, (kind,), service.targets.count(kind)
        yield CANDIDATES, (kind,), lag.candidates
        yield LAG_ENTRIES, (kind,), lag.entries
        yield LAG_BYTES, (kind,), lag.bytes
        yield WAITING, (kind,), lag.waiting_entries
    for (kind, outcome), count in counters.tasks.items():
        yield TASKS, (kind, outcome), count


def _of_compaction(kind: TaskKind, stats: CompactionStats) -> Iterator[Sample]:
    yield READ, (kind,), stats.bytes_in
    yield WRITTEN, (kind,), stats.bytes_out
    yield OBJECTS, (kind,), stats.runs
    yield ENTRIES, (kind,), stats.entries
    yield GIVEN_UP, (kind, "conflict"), stats.conflicts
    yield GIVEN_UP, (kind, "damaged"), stats.damaged
    yield GIVEN_UP, (kind, "stale"), stats.stale
