"""The declarations of the metrics, the counting of latencies, and the registry."""

from __future__ import annotations

import re

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from streamhouse.core import metrics as m
from streamhouse.core.metrics import BOUNDS_S, METRICS, Latency, MetricKind, Metrics


def test_every_metric_has_a_name_by_the_rules_and_a_help_text() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"streamhouse_[a-z_]+", name)
        assert metric.help.endswith(".")
        assert (metric.kind is MetricKind.COUNTER) == name.endswith("_total")
        assert (metric.kind is not MetricKind.HISTOGRAM) or metric.unit == "seconds"
        assert all(re.fullmatch(r"[a-z]+", label) for label in metric.labels)
        assert "le" not in metric.labels


def test_no_two_metrics_have_the_same_series() -> None:
    series = [
        name + suffix
        for name, metric in METRICS.items()
        for suffix in (("_bucket", "_count", "_sum") if metric.kind is MetricKind.HISTOGRAM else ("",))
    ]
    assert len(set(series)) == len(series)


def test_a_duration_counts_in_the_bucket_whose_bound_it_does_not_exceed() -> None:
    latency = Latency()
    for seconds in (0.0, 0.001, 0.0011, 30.0, 31.0):
        latency.observe(seconds)
    assert latency.counts[:2] == [2, 1]
    assert latency.counts[-2:] == [1, 1]
    assert latency.count == 5
    assert latency.sum_s == 61.0021


def test_sources_are_read_at_each_scrape() -> None:
    latency, refused = Latency(), {"NotLeader": 1}
    metrics = Metrics(CollectorRegistry())
    metrics.add(lambda: [(m.COMMIT, (), latency)])
    metrics.add(lambda: [(m.REFUSED, (reason,), count) for reason, count in refused.items()])
    latency.observe(0.2)
    refused["NotLeader"] += 1
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    (sample,) = families["streamhouse_refused_batches"].samples
    assert (sample.name, sample.labels, sample.value) == (m.REFUSED.name, {"reason": "NotLeader"}, 2)
    commit = families["streamhouse_commit_seconds"]
    assert (commit.type, commit.documentation) == ("histogram", m.COMMIT.help)
    buckets = {sample.labels["le"]: sample.value for sample in commit.samples if sample.name.endswith("_bucket")}
    assert list(buckets) == [*(str(bound) for bound in BOUNDS_S), "+Inf"]
    assert (buckets["0.1"], buckets["0.25"], buckets["+Inf"]) == (0, 1, 1)


def test_the_registry_is_the_process_s_own_and_not_the_global_one() -> None:
    one, other = Metrics(), Metrics()
    one.add(lambda: [(m.GROUPS, (), 3)])
    assert b"streamhouse_groups 3.0" in one.text()
    assert b"streamhouse_groups" not in other.text()
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("streamhouse")]
