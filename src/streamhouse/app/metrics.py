"""Which counter of which part feeds which metric. Each function is a source for core/metrics.py; it runs at a scrape.

Reads only, and awaits nothing: a scrape sees one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from streamhouse import __version__
from streamhouse.app.agent import Agent
from streamhouse.app.stores import Stores
from streamhouse.broker.broker import Broker
from streamhouse.core import metrics as m
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_METRIC_SERIES
from streamhouse.core.metrics import Sample
from streamhouse.gateway.admin.health import HealthReport
from streamhouse.gateway.front_end import FrontEnd
from streamhouse.gateway.kafka.server import KafkaServer
from streamhouse.maintenance.upkeep import Upkeep
from streamhouse.objectstore.metering import request_cost_usd
from streamhouse.objectstore.topic_requests import PARTS_PER_REQUEST


def of_process(health: Callable[[], HealthReport]) -> Iterator[Sample]:
    report = health()
    yield m.READY, (), int(report.ready)
    yield m.PROBLEMS, (), len(report.problems)
    yield m.BUILD, (__version__,), 1


def of_stores(stores: Stores, *, max_topics: int) -> Iterator[Sample]:
    """``max_topics``: how many topics have metrics of their own."""
    reading = stores.meter.read()
    for operation, totals in reading.totals.items():
        yield m.STORE_CALL, (operation,), stores.meter.latency[operation]
        yield m.STORE_REQUESTS, (operation,), totals.requests
        yield m.STORE_ERRORS, (operation,), totals.errors
        yield m.STORE_BYTES, (operation,), totals.bytes
    yield m.STORE_USD, (), reading.request_cost_usd
    for topic, parts in stores.meter.topics.read(max_topics=max_topics).items():
        requests = {operation: count / PARTS_PER_REQUEST for operation, count in parts.items()}
        for operation, count in requests.items():
            yield m.TOPIC_REQUESTS, (topic, operation), count
        yield m.TOPIC_USD, (topic,), request_cost_usd(requests)
    for call, latency in stores.metadata_meter.latency.items():
        yield m.METADATA_CALL, (call,), latency
        yield m.METADATA_ERRORS, (call,), stores.metadata_meter.errors.get(call, 0)


def of_broker(broker: Broker, kafka: FrontEnd | None) -> Iterator[Sample]:
    produce = broker.produce
    for acks, name in ((-1, "all"), (1, "1")):
        yield m.PRODUCE, (name,), produce.stats.acknowledged[acks]
    yield m.PRODUCES_UNDER_WAY, (), len(produce.deadlines)
    yield from _each(m.REFUSED, produce.stats.refused.items())
    yield m.FETCH, ("now",), broker.fetch.answered_now
    yield m.FETCH, ("later",), broker.fetch.answered_later
    yield m.GROUPS, (), broker.groups.registry.group_count
    if isinstance(kafka, KafkaServer):
        stats = kafka.stats
        yield m.CONNECTIONS, (), stats.connections
        yield m.ACCEPTED, (), stats.accepted
        yield from _each(m.CLOSED, stats.closed.items())
        yield m.REQUESTS, (), stats.requests
        yield m.REQUESTS_UNDER_WAY, (), stats.in_flight
        yield m.RECEIVED, (), stats.bytes_in
        yield m.SENT, (), stats.bytes_out


def of_agent(agent: Agent) -> Iterator[Sample]:
    yield from _of_log(agent)
    yield from _of_wal(agent)
    yield from _of_leases(agent)
    yield from _of_reading(agent)
    yield from _of_partitions(agent)
    if agent.upkeep is not None:
        yield from _of_upkeep(agent.upkeep)


def _of_log(agent: Agent) -> Iterator[Sample]:
    log, stats, health = agent.log, agent.log.stats, agent.log.health
    yield m.IN_RECORDS, (), stats.appended_records
    yield m.IN_BATCHES, (), stats.appended_batches
    yield m.IN_BYTES, (), stats.appended_bytes
    yield m.BUFFER_BYTES, (), log.buffer_bytes
    yield m.BUFFER_LIMIT, (), log.buffer_limit_bytes
    yield m.HELD, (), log.held_batches
    yield m.FLUSH, (), health.flush
    yield m.FLUSHES, (), log.flushes
    yield m.FLUSHES_UNDER_WAY, (), log.flushes_under_way
    pace = log.flush_pace
    yield m.FLUSH_PUTS, (), pace.puts
    yield m.FLUSHES_HELD_BACK, (), pace.held_back
    yield m.PUT_BUDGET, (), pace.puts_per_second
    yield m.PUT_BUDGET_LEFT, (), pace.budget_left
    yield m.FLUSH_ROUND_S, (), pace.round_ms / 1000
    yield m.COMMIT, (), health.commit
    yield m.COMMITTED, (), stats.committed_batches
    yield m.UPLOAD_RETRIES, (), health.uploads_retried
    yield m.COMMIT_RETRIES, (), health.commits_retried
    yield m.STALE, (), health.objects_stale
    yield m.REFUSED_COMMITS, (), stats.refused_commits
    yield m.RETURNED, ("replayed",), stats.replayed_batches
    yield m.RETURNED, ("resubmitted",), stats.resubmitted_batches
    yield m.RETURNED, ("dropped",), stats.dropped_batches
    yield m.GIVEN_UP, (), stats.given_up_batches
    yield m.STRANDED, (), stats.stranded_batches
    adoption, expiry = agent.adoption.stats, agent.expiry.stats
    yield m.ADOPTED_RECORDS, (), adoption.adopted_records
    yield m.ADOPTED, ("adopted",), adoption.adopted_shares
    yield m.ADOPTED, ("refused",), adoption.refused_shares
    yield m.EXPIRED, ("producers",), expiry.producers
    yield m.EXPIRED, ("commits",), expiry.commits
    yield m.EXPIRED, ("epochs",), expiry.epochs
    yield m.EXPIRED, ("agents",), expiry.agents
    yield m.EXPIRED, ("flush_requests",), expiry.flush_requests
    yield m.EXPIRY_FAILED, (), expiry.failures


def _of_upkeep(upkeep: Upkeep) -> Iterator[Sample]:
    stats, compaction, keys, early = upkeep.stats, upkeep.compactor.stats, upkeep.key_compactor.stats, upkeep.disk_space
    passes = {
        "retention": stats.retention_passes,
        "compaction": stats.compaction_passes,
        "key_compaction": stats.key_compaction_passes,
        "vacuum": stats.vacuum_passes,
    }
    yield from _each(m.MAINTENANCE_PASSES, passes.items())
    yield m.MAINTENANCE_FAILED, (), stats.failed_passes
    yield m.RETENTION_WRITE_HOLDS, (), stats.write_holds
    for kind, ended_at_s in stats.ended_at_s.items():
        yield m.MAINTENANCE_ENDED, (kind,), ended_at_s
    yield m.RETENTION_RECORDS, (), stats.retention_records
    yield m.RETENTION_BYTES, (), stats.retention_bytes
    yield m.COMPACTION_RUNS, (), compaction.runs
    yield m.COMPACTION_ENTRIES, (), compaction.entries
    yield m.COMPACTION_READ, (), compaction.bytes_in
    yield m.COMPACTION_WRITTEN, (), compaction.bytes_out
    given_up = {"conflict": compaction.conflicts, "damaged": compaction.damaged, "stale": compaction.stale}
    yield from _each(m.COMPACTION_GIVEN_UP, given_up.items())
    yield m.COMPACTION_RECOVERED, (), compaction.recovered
    yield m.COMPACTION_PAUSED, (), upkeep.pace.paused_s
    yield m.KEY_COMPACTION_READ, (), keys.bytes_in
    yield m.KEY_COMPACTION_WRITTEN, (), keys.bytes_out
    dropped = {"superseded": keys.superseded, "tombstone": keys.tombstones, "keyless": keys.keyless}
    yield from _each(m.KEY_COMPACTION_DROPPED, dropped.items())
    yield m.VACUUM_OBJECTS, (), stats.vacuum_objects + (early.deleted_objects if early else 0)
    yield m.VACUUM_BYTES, (), stats.vacuum_bytes + (early.deleted_bytes if early else 0)


def _of_wal(agent: Agent) -> Iterator[Sample]:
    wal = agent.wal.metrics
    yield m.WAL_FRAMES, (), wal.frames
    yield m.WAL_BYTES, (), wal.bytes
    yield m.WAL_SYNCS, (), wal.syncs
    yield m.WAL_SYNC_S, (), wal.sync_seconds_total
    yield m.WAL_SYNC_MAX, (), wal.sync_seconds_max
    yield m.WAL_FILES, ("log",), wal.log_files
    yield m.WAL_FILES, ("spare",), wal.spare_files
    events = {
        "created": wal.files_created,
        "recycled": wal.files_recycled,
        "removed": wal.files_removed,
        "not_made": wal.files_not_made,
    }
    yield from _each(m.WAL_FILES_MADE, events.items())
    yield m.WAL_DISK, (), wal.disk_bytes
    yield m.WAL_LIMIT, (), agent.broker.settings.wal.max_bytes
    yield m.WAL_UNSETTLED, (), wal.unsettled_bytes


def _of_leases(agent: Agent) -> Iterator[Sample]:
    view, stats = agent.member.describe(), agent.member.stats
    partitions = sum(isinstance(lease.key, PartitionKey) for lease in view.leases)
    yield m.LEASES, ("partition",), partitions
    yield m.LEASES, ("slot",), len(view.leases) - partitions
    yield m.LEASES_WANTED, (), view.wanted
    events = {
        "acquired": stats.acquired,
        "adopted": stats.adopted,
        "released": stats.released,
        "lost": stats.lost,
        "not_opened": stats.open_failures,
    }
    yield from _each(m.LEASE_EVENTS, events.items())
    yield m.RENEWALS, (), stats.renewals
    yield m.TRANSFERS, ("completed",), stats.transfers_completed
    yield m.TRANSFERS, ("refused",), stats.transfers_refused
    yield m.LIVE_AGENTS, (), len(view.live_agents)


def _of_reading(agent: Agent) -> Iterator[Sample]:
    stats, tail = agent.reader.stats, agent.tail
    yield m.OUT_RECORDS, (), stats.records
    yield m.OUT_BYTES, ("tail",), stats.tail_bytes
    yield m.OUT_BYTES, ("buffer",), stats.buffer_bytes
    yield m.OUT_BYTES, ("objects",), stats.object_bytes
    yield m.TAIL_BYTES, (), tail.size_bytes
    yield m.TAIL_LIMIT, (), tail.max_bytes
    yield m.TAIL_READS, ("hit",), tail.hits
    yield m.TAIL_READS, ("miss",), tail.misses
    yield m.BLOCK_READS, ("hit",), stats.block_hits
    yield m.BLOCK_READS, ("miss",), stats.block_misses
    yield m.DOWNLOADS, (), stats.downloads
    yield m.DOWNLOADED, (), stats.downloaded_bytes
    yield m.AHEAD, (), stats.ahead_bytes
    yield m.LONG_POLLS, (), stats.long_polls
    yield m.RESOLVED, (), stats.resolved_again
    yield m.CORRUPT, (), stats.corrupt_downloads
    yield m.DAMAGED, (), agent.reader.damaged_ranges
    yield m.DAMAGED_FOUND, (), stats.damaged_ranges
    yield m.DAMAGED_READS, (), stats.damaged_reads


def _of_partitions(agent: Agent) -> Iterator[Sample]:
    """The metrics with a value for each partition. Whatever is above the limit is counted in LEFT_OUT."""
    keys = agent.log.led_keys()
    for key in islice(keys, MAX_METRIC_SERIES):
        if (end := _end_offset(agent, key)) is not None:
            yield m.END_OFFSET, _names(agent, key), end
    commits = list(agent.broker.groups.offsets.latest())
    for group, key, offset in commits[-MAX_METRIC_SERIES:]:
        names = (group, *_names(agent, key))
        yield m.GROUP_OFFSET, names, offset
        if (end := _end_offset(agent, key)) is not None and offset >= 0:
            yield m.GROUP_LAG, names, max(0, end - offset)
    left_out = max(0, len(keys) - MAX_METRIC_SERIES) + max(0, len(commits) - MAX_METRIC_SERIES)
    yield m.LEFT_OUT, (), left_out


def _end_offset(agent: Agent, key: PartitionKey) -> int | None:
    """Return None if this agent does not lead the partition."""
    led = agent.log.partition(key)
    return None if led is None else led.visible_end


def _names(agent: Agent, key: PartitionKey) -> tuple[str, str]:
    topic = agent.broker.view.topic_by_id(key.topic_id)
    return (str(key.topic_id) if topic is None else topic.name, str(key.partition))


def _each(metric: m.Metric, values: Iterable[tuple[str, int]]) -> Iterator[Sample]:
    for label, value in values:
        yield metric, (label,), value
