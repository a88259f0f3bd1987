"""Metrics: every name with its unit and its help, and the one registry of a process that shows them.

Nothing is measured here, and nothing is pushed. The parts of a process count in plain integers of their own, as they
always did (``LeasedStats``, ``ReaderStats``, …), and in ``Latency`` where times matter. A *source* is a function that
reads such counters; the registry calls all sources when someone asks for the metrics. So a metric costs nothing on a
hot path beyond the integer, and a part does not know that there are metrics.

    part counts ──► source (app/metrics.py) reads, at each scrape ──► Metrics ──► text for Prometheus

To add a metric: one declaration below, one line in a source, then ``make docs``. Names are streamhouse_<thing>_<unit>,
as Prometheus has them: seconds and bytes, ``_total`` for what only grows. A metric without a unit counts what its name
says. A label has few values; the ones with a value for each partition or group are cut off at a limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

PREFIX: Final = "streamhouse_"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_UNITS: Final = frozenset({"seconds", "bytes", "usd", "offset", "records", "batches"})

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""The upper bounds of the buckets of every latency: from a sync of a fast disk to the time-out of a client."""


class Latency:
    """Counts durations by bucket. Belongs to one event loop; ``observe`` takes less than a microsecond."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


class MetricKind(StrEnum):
    COUNTER = "counter"
    """A figure that only grows, and begins at 0 with the process."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """A ``Latency``, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The last word of the name if that is a unit, else "count"."""
        word = self.name.removesuffix("_total").rpartition("_")[2]
        return word if word in _UNITS else "count"


METRICS: Final[dict[str, Metric]] = {}
"""Every metric by its name, in the order of declaration."""


def _declare(kind: MetricKind, name: str, help: str, *labels: str) -> Metric:
    metric = Metric(name=PREFIX + name, kind=kind, help=help, labels=labels)
    assert metric.name not in METRICS, f"{metric.name} is declared twice"
    METRICS[metric.name] = metric
    return metric


def _counter(name: str, help: str, *labels: str) -> Metric:
    return _declare(MetricKind.COUNTER, f"{name}_total", help, *labels)


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return _declare(MetricKind.GAUGE, name, help, *labels)


def _latency(name: str, help: str, *labels: str) -> Metric:
    return _declare(MetricKind.HISTOGRAM, f"{name}_seconds", help, *labels)


# Health.
READY = _gauge(
    "ready", "1 if nothing is known that makes /readyz answer 503, else 0. A scrape asks no store; /readyz does."
)
PROBLEMS = _gauge("problems", "Problems that /readyz lists at this time, whether or not they make it answer 503.")
BUILD = _gauge("build_info", "Always 1. The label has the version of this process.", "version")
LEFT_OUT = _gauge("metrics_left_out_series", "Partitions and groups left out of this page, because there are too many.")

# Records in.
PRODUCE = _latency(
    "produce",
    'From the arrival of a write until its answer, all its partitions together. acks="1" or "all".',
    "acks",
)
PRODUCES_UNDER_WAY = _gauge("produces_under_way", "Writes that have arrived and are not answered yet.")
REFUSED = _counter("refused_batches", "Batches that were answered with an error, by the name of the error.", "reason")
IN_RECORDS = _counter("produced_records", "Records taken, replayed ones after a start included.")
IN_BATCHES = _counter("produced_batches", "Batches taken, replayed ones after a start included.")
IN_BYTES = _counter("produced_bytes", "Bytes of the batches taken, as clients have compressed them.")

# Records out.
FETCH = _latency(
    "fetch",
    'From the arrival of a read until its answer. answer="now": from memory, at once. answer="later": it needed a'
    " store, or waited for new records, for as long as the client allowed.",
    "answer",
)
OUT_RECORDS = _counter("fetched_records", "Records given to readers, counted by offsets.")
OUT_BYTES = _counter(
    "fetched_bytes",
    'Bytes of the batches given to readers. source="tail": from the tail cache. "buffer": from the batches that are not'
    ' committed yet. "objects": from the object store, or the cache of blocks.',
    "source",
)

# What waits, and flushes.
BUFFER_BYTES = _gauge("write_buffer_bytes", "Memory of batches that are taken and not committed yet.")
BUFFER_LIMIT = _gauge("write_buffer_limit_bytes", "The setting memory.write_buffer_bytes. At the limit, writes wait.")
HELD = _gauge("held_batches", "Batches that only the WAL has, for partitions that this agent does not lead now.")
FLUSH = _latency("flush", "One flush: packing, uploading and committing, with every retry.")
FLUSHES = _counter("flushes", "Flushes that have begun.")
FLUSHES_UNDER_WAY = _gauge("flushes_under_way", "Flushes that have begun and not ended.")
FLUSH_PUTS = _counter("flush_puts", "Objects that flushes have put. Repeats after an error are not counted.")
FLUSHES_HELD_BACK = _counter("flushes_held_back", "Flushes that were due and waited for flush.max_puts_per_second.")
PUT_BUDGET = _gauge("put_budget", "flush.max_puts_per_second; 0 where durability is wal, which has no budget.")
PUT_BUDGET_LEFT = _gauge(
    "put_budget_left",
    "Small objects that flushes may put at this moment. Less than 0 after urgent flushes, which do not wait.",
)
FLUSH_ROUND_S = _gauge(
    "flush_round_seconds", "How long a flush takes, as the last ones tell. Batches wait about as long."
)
COMMIT = _latency("commit", "One commit of a flush in the metadata store, with every retry.")
COMMITTED = _counter("committed_batches", "Batches committed in the metadata store.")
UPLOAD_RETRIES = _counter("flush_upload_retries", "Uploads of a flush that failed after all tries, and began again.")
COMMIT_RETRIES = _counter("flush_commit_retries", "Metadata calls of a flush that failed, and were repeated.")
STALE = _counter(
    "stale_objects",
    "Partitions whose batches were uploaded again, because their object was too old when its commit came (R6).",
)
REFUSED_COMMITS = _counter("refused_commits", "Commits that the metadata store refused: another agent leads.")
RETURNED = _counter(
    "returned_batches",
    'Batches of the WAL at the start of a leadership. outcome="replayed": at their offsets. "resubmitted": written'
    ' again behind what another leader wrote. "dropped": of no use any more.',
    "outcome",
)
GIVEN_UP = _counter("given_up_batches", "Batches acknowledged with acks=1 and dropped for want of room. They are lost.")
STRANDED = _counter(
    "stranded_batches", "Batches whose place in the log is gone: the metadata store lost commits (R23)."
)
ADOPTED_RECORDS = _counter("adopted_records", "Records of Spark batches that this agent has put into the log.")
ADOPTED = _counter(
    "adopted_shares", 'Shares of Spark batches. outcome="adopted" or "refused" by this agent.', "outcome"
)

# WAL.
WAL_FRAMES = _counter("wal_frames", "Frames written to the write-ahead log.")
WAL_BYTES = _counter("wal_written_bytes", "Bytes written to the write-ahead log.")
WAL_SYNCS = _counter("wal_syncs", "Calls of fdatasync.")
WAL_SYNC_S = _counter("wal_sync_seconds", "Time spent in fdatasync. Divided by the syncs: the mean.")
WAL_SYNC_MAX = _gauge("wal_sync_longest_seconds", "The longest fdatasync since the start.")
WAL_FILES = _gauge("wal_files", 'Files of the write-ahead log. state="log": in use. "spare": prepared.', "state")
WAL_FILES_MADE = _counter(
    "wal_file_events",
    'What was done with files. event="created", "recycled", "removed", or "not_made": the disk had no room.',
    "event",
)
WAL_DISK = _gauge("wal_disk_bytes", "Disk that the write-ahead log takes.")
WAL_LIMIT = _gauge("wal_limit_bytes", "The setting wal.max_bytes. When it is full, writes are refused.")
WAL_UNSETTLED = _gauge("wal_unsettled_bytes", "Bytes in the write-ahead log that are not committed yet.")

# Cluster.
LEASES = _gauge("leases", 'Leases that this agent holds. kind="partition" or "slot": a coordinator slot.', "kind")
LEASES_WANTED = _gauge("wanted_leases", "Partitions and slots that the ring gives to this agent.")
LEASE_EVENTS = _counter(
    "lease_events",
    'What happened to leases. event="acquired", "released" or "lost". "adopted": another agent handed it over to this'
    ' one. "not_opened": the partition or slot could not be opened.',
    "event",
)
RENEWALS = _counter("lease_renewals", "Answered calls that renew leases. One call renews up to 10,000.")
TRANSFERS = _counter("lease_transfers", 'Hand-overs to another agent. outcome="completed" or "refused".', "outcome")
LIVE_AGENTS = _gauge("live_agents", "Live agents as this agent last saw them, itself included.")
END_OFFSET = _gauge(
    "partition_end_offset", "Where the log of a partition led here ends for readers.", "topic", "partition"
)

# Groups.
GROUPS = _gauge("groups", "Consumer groups that this agent coordinates.")
GROUP_OFFSET = _gauge(
    "group_committed_offset",
    "The last offset that a group committed with this coordinator. Groups that have not committed since it took over"
    " are missing.",
    *("group", "topic", "partition"),
)
GROUP_LAG = _gauge(
    "group_lag_records",
    "partition_end_offset less group_committed_offset, where this agent knows both. In a fleet, compute it from the"
    " two metrics of all agents.",
    *("group", "topic", "partition"),
)

# Caches and reading.
TAIL_BYTES = _gauge("tail_cache_bytes", "Memory of the tail cache.")
TAIL_LIMIT = _gauge("tail_cache_limit_bytes", "The setting memory.tail_cache_bytes.")
TAIL_READS = _counter("tail_cache_reads", 'Reads of the tail cache. result="hit" or "miss".', "result")
BLOCK_READS = _counter("block_cache_reads", 'Reads of the cache of blocks. result="hit" or "miss".', "result")
DOWNLOADS = _counter("downloads", "Downloads of parts of objects.")
DOWNLOADED = _counter("downloaded_bytes", "Bytes of these downloads.")
AHEAD = _counter("read_ahead_bytes", "Bytes of them that were downloaded before a reader asked.")
LONG_POLLS = _counter("long_polls", "Reads that waited for new records.")
RESOLVED = _counter("reads_resolved_again", "Reads that met an object which compaction had replaced (R7).")
CORRUPT = _counter("corrupt_downloads", "Downloads that failed their check, and were repeated.")
DAMAGED = _gauge("damaged_ranges", "Ranges of objects known to be missing or damaged at this time.")
DAMAGED_FOUND = _counter("damaged_ranges_found", "Such ranges found since the start.")
DAMAGED_READS = _counter("damaged_reads", "Reads that ended with an error because of such a range.")

# Stores.
STORE_CALL = _latency(
    "object_store_request",
    'One request to the object store; each try counts. operation="put", "get", "range_get", "head", "list", "delete" or'
    ' "multipart"; it is the same for all metrics of requests.',
    "operation",
)
STORE_REQUESTS = _counter("object_store_requests", "Requests, failed ones and retries included.", "operation")
STORE_ERRORS = _counter(
    "object_store_errors", "Requests that failed or were cancelled, but not a HEAD that finds nothing.", "operation"
)
STORE_BYTES = _counter("object_store_bytes", "Bytes of bodies sent or received whole.", "operation")
STORE_USD = _counter("object_store_requests_usd", "An estimate of what these requests cost on S3 Standard, us-east-1.")
TOPIC_REQUESTS = _counter(
    "topic_object_store_requests",
    "These requests by topic; of a request for an object that several topics share, each has a part by its bytes."
    ' topic="(shared)": requests of no topic, such as listings. "(other)": topics beyond admin.metric_topics.',
    *("topic", "operation"),
)
TOPIC_USD = _counter(
    "topic_object_store_requests_usd",
    'An estimate of what the requests of a topic cost. topic="(shared)" and "(other)" as for the requests.',
    "topic",
)
METADATA_CALL = _latency("metadata_call", "One call to the metadata store, with its retries.", "call")
METADATA_ERRORS = _counter("metadata_call_errors", "Calls that failed, timed out or were cancelled.", "call")
EXPIRED = _counter(
    "expired_rows",
    'Rows past their time that this agent deleted from the metadata store. kind="producers", "commits", "epochs", '
    '"agents" or "flush_requests".',
    "kind",
)
EXPIRY_FAILED = _counter("expiry_failures", "Attempts to delete such rows that failed.")

# Maintenance.
MAINTENANCE_PASSES = _counter(
    "maintenance_passes",
    'Passes that ended. kind="retention", "compaction", "key_compaction" or "vacuum".',
    "kind",
)
MAINTENANCE_FAILED = _counter("maintenance_failed_passes", "Passes of maintenance that failed, whole or in part.")
MAINTENANCE_ENDED = _gauge(
    "maintenance_last_pass_timestamp_seconds",
    "When the last pass of each kind ended, as Unix time; 0: none has.",
    "kind",
)
RETENTION_RECORDS = _counter("retention_deleted_records", "Records that retention deleted.")
RETENTION_BYTES = _counter("retention_deleted_bytes", "Stored bytes of the entries that retention deleted.")
RETENTION_WRITE_HOLDS = _counter(
    "retention_write_holds",
    "How often writes had to wait for retention, so that size limits bound the disk of a single node.",
)
COMPACTION_RUNS = _counter("compaction_runs", "Runs of small entries that became one object.")
COMPACTION_ENTRIES = _counter("compaction_replaced_entries", "Entries that were replaced by these runs.")
COMPACTION_READ = _counter("compaction_read_bytes", "Bytes that compaction has read.")
COMPACTION_WRITTEN = _counter("compaction_written_bytes", "Bytes of the objects that compaction has written.")
COMPACTION_GIVEN_UP = _counter(
    "compaction_given_up_runs",
    'Runs that came to nothing. reason="conflict": the entries had changed; "damaged": a source fails its checks; '
    '"stale": the object was older than the GC horizon and was written again.',
    "reason",
)
COMPACTION_RECOVERED = _counter("compaction_recovered", "Compactions left pending by another process, and finished.")
COMPACTION_PAUSED = _counter("compaction_paused_seconds", "Time that compaction has waited for writes.")
KEY_COMPACTION_READ = _counter("key_compaction_read_bytes", "Bytes that key compaction has read.")
KEY_COMPACTION_WRITTEN = _counter(
    "key_compaction_written_bytes", "Bytes of the objects that key compaction has written."
)
KEY_COMPACTION_DROPPED = _counter(
    "key_compaction_dropped_records",
    'Records that key compaction dropped. reason="superseded": a newer one of the key; "tombstone"; "keyless".',
    "reason",
)
VACUUM_OBJECTS = _counter("vacuum_deleted_objects", "Objects that vacuum deleted.")
VACUUM_BYTES = _counter("vacuum_deleted_bytes", "Bytes of the objects that vacuum deleted.")

# The Kafka port.
CONNECTIONS = _gauge("kafka_connections", "Connections of Kafka clients.")
ACCEPTED = _counter("kafka_accepted_connections", "Connections that came, refused ones included.")
CLOSED = _counter(
    "kafka_closed_connections", 'Connections that ended, by reason; "client": the client closed.', "reason"
)
REQUESTS = _counter("kafka_requests", "Requests of Kafka clients.")
REQUESTS_UNDER_WAY = _gauge("kafka_requests_under_way", "Requests that have arrived and are not answered yet.")
RECEIVED = _counter("kafka_received_bytes", "Bytes received from Kafka clients.")
SENT = _counter("kafka_sent_bytes", "Bytes sent to Kafka clients.")

Value: TypeAlias = int | float | Latency
Sample: TypeAlias = tuple[Metric, Sequence[str], Value]
"""One figure: its metric, the values of its labels, and its value."""
Source: TypeAlias = Callable[[], Iterable[Sample]]


class Metrics:
    """The metrics of one process. Not global: a test, or a second platform in the process, has its own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._sources: list[Source] = []
        self.registry.register(self)
        ProcessCollector(registry=self.registry)  # process_cpu_seconds_total, process_resident_memory_bytes, …

    def add(self, source: Source) -> None:
        self._sources.append(source)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Family]:
        """Called by the registry at registration, instead of ``collect``. The sources come later."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Called by the registry for each scrape."""
        families: dict[Metric, Family] = {}
        for source in list(self._sources):
            for metric, labels, value in source():
                if metric not in families:
                    families[metric] = _family(metric)
                _add(families[metric], labels, value)
        yield from families.values()


def _family(metric: Metric) -> Family:
    if metric.kind is MetricKind.COUNTER:
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    if metric.kind is MetricKind.GAUGE:
        return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: Family, labels: Sequence[str], value: Value) -> None:
    if isinstance(value, Latency):
        assert isinstance(family, HistogramMetricFamily)
        bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.sum_s)
    else:
        assert isinstance(family, (CounterMetricFamily, GaugeMetricFamily))
        family.add_metric(labels, value)
