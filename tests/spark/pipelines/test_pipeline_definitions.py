"""What people write down: read whole, every mistake named with its place, the same file twice the same pipelines."""

from __future__ import annotations

from typing import Any

import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.pipelines.parsing import load_pipeline, parse_pipeline
from streamhouse.spark.pipelines.spec import BadRecords, Format, OutputMode, PostgresTarget, TargetMode
from streamhouse.spark.pipelines.yaml_file import read_pipelines

WHOLE: dict[str, Any] = {
    "name": "per-minute",
    "sources": {
        "orders": {
            "topic": "shop.orders",
            "schema": "id BIGINT, at TIMESTAMP",
            "watermark": {"column": "at", "delay": "10 minutes"},
            "bad_records": "drop",
            "starting": "latest",
            "options": {"maxOffsetsPerTrigger": 1000},
        }
    },
    "sql": "SELECT window.start AS minute, count(*) AS n FROM orders GROUP BY window(at, '1 minute');",
    "target": {"postgres": {"url": "postgresql://me:secret@db/x", "table": "public.m", "key": ["minute"]}},
    "output_mode": "update",
    "trigger": "10s",
    "isolated": True,
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**WHOLE, **changes}


def test_everything_that_can_be_said_is_kept() -> None:
    spec = load_pipeline(WHOLE)
    (source,) = spec.sources
    assert (source.view, source.topic, source.format) == ("orders", "shop.orders", Format.JSON)
    assert (source.bad_records, source.starting) == (BadRecords.DROP, "latest")
    assert source.options == {"maxOffsetsPerTrigger": "1000"}
    assert isinstance(spec.target, PostgresTarget)
    assert (spec.target.mode, spec.target.key) == (TargetMode.UPSERT, ("minute",))
    assert (spec.output_mode, spec.trigger_ms, spec.isolated) == (OutputMode.UPDATE, 10_000, True)
    assert load_pipeline(spec.to_document()) == spec


def test_short_forms() -> None:
    spec = load_pipeline({"name": "p", "sources": "a.b, c", "sql": "SELECT 1", "target": {"topic": "out"}})
    assert [(source.view, source.topic) for source in spec.sources] == [("a_b", "a.b"), ("c", "c")]
    assert str(spec.target) == "topic out"
    assert load_pipeline(spec.to_document()) == spec
    assert load_pipeline(changed(trigger="available-now")).available_now
    marked = load_pipeline(changed(sources={"orders": {"schema": "at TIMESTAMP", "watermark": "at, 1 hour"}}))
    assert marked.sources[0].watermark is not None
    assert marked.sources[0].watermark.delay == "1 hour"


WRONG: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    (changed(name="Per Minute"), ("name",), "is not a valid name for a pipeline"),
    (changed(sql=None), (), "sql is missing"),
    (changed(sources=None), (), "sources is missing"),
    (changed(sources={"1x": {}}), ("sources", "1x"), "not a name that SQL can use"),
    (changed(sources={"o": {"format": "json"}}), ("sources", "o", "format"), "json needs a schema"),
    (changed(sources={"o": {"topik": "x"}}), ("sources", "o", "topik"), "there is no 'topik' here"),
    (
        changed(sources={"o": {"watermark": "at"}}),
        ("sources", "o", "watermark", "delay"),
        "expected str of length >= 1",
    ),
    (changed(sources={"o": {"starting": "now"}}), ("sources", "o", "starting"), "none of earliest, latest"),
    (
        changed(sources={"o": {"options": {"subscribe": "x"}}}),
        ("sources", "o", "options", "subscribe"),
        "is set by the pipeline",
    ),
    (
        changed(sources={"o": {"options": {"storeSecretAccessKey": "x"}}}),
        ("sources", "o", "options", "storeSecretAccessKey"),
        "is the runner's own setting",
    ),
    (
        changed(sources={"o": {"options": {"startingTimestamp": 1}}}),
        ("sources", "o", "options", "startingTimestamp"),
        "is set by the pipeline itself",
    ),
    (changed(target={}), ("target",), "names none of topic, postgres, table"),
    (changed(target={"topic": "a", "table": {}}), ("target",), "names topic and table"),
    (changed(target={"topic": "a b"}), ("target", "topic", "name"), "a b"),
    (
        changed(target={"postgres": {"url": "mysql://x", "table": "t"}}, output_mode="append"),
        ("target", "postgres", "url"),
        "is not a postgresql:// address",
    ),
    (
        changed(target={"postgres": {"url": "postgresql://x", "table": "t; DROP", "key": "a"}}),
        ("target", "postgres", "table"),
        "is not a name of a table",
    ),
    (
        changed(target={"postgres": {"url": "postgresql://x", "table": "t", "mode": "upsert"}}, output_mode="append"),
        ("target", "postgres", "mode"),
        "an upsert needs a key",
    ),
    (changed(target={"postgres": {"url": "postgresql://x", "table": "t"}}), ("output_mode",), "would double them"),
    (changed(target={"table": {"format": "delta", "path": "/t"}}), ("output_mode",), "a table only grows"),
    (
        changed(target={"table": {"format": "orc", "path": "/t"}}, output_mode="append"),
        ("target", "table", "format"),
        "is none of parquet, iceberg, delta",
    ),
    (
        changed(target={"table": {"format": "delta", "path": "lake/t"}}, output_mode="append"),
        ("target", "table", "path"),
        "is not absolute",
    ),
    (changed(trigger="soon"), ("trigger",), "soon"),
    (changed(output_mode="upsert"), ("output_mode",), "none of append, update, complete"),
    (changed(isolated="yes"), ("isolated",), "expected bool, got str"),
    (changed(sgl="SELECT"), ("sgl",), "there is no 'sgl' here"),
]


@pytest.mark.parametrize(("document", "path", "said"), WRONG, ids=[said for _, _, said in WRONG])
def test_what_is_wrong_is_named_with_its_place(document: dict[str, Any], path: tuple[str, ...], said: str) -> None:
    spec, problems = parse_pipeline(document)
    assert spec is None
    assert [(problem.path, said in problem.message) for problem in problems] == [(path, True)], problems


def test_a_password_is_not_shown() -> None:
    spec = load_pipeline(WHOLE)
    assert "secret" not in str(spec.masked_document())
    assert "secret" not in repr(spec)


def test_a_checkpoint_belongs_to_the_sql_and_not_to_how_often_it_runs() -> None:
    mark = load_pipeline(WHOLE).fingerprint()
    assert load_pipeline(changed(trigger="1s", isolated=False)).fingerprint() == mark
    assert load_pipeline(changed(sql=WHOLE["sql"].replace(" FROM", "\n  FROM"))).fingerprint() == mark
    assert load_pipeline(changed(sql="SELECT 1 AS minute FROM orders")).fingerprint() != mark
    assert load_pipeline(changed(output_mode="complete")).fingerprint() != mark


FILE = """\
# what the shop needs
pipelines:
  - name: copy
    sources: [orders]
    sql: SELECT key, value FROM orders
    target: {topic: out}
  - name: kept
    state: stopped
    sources: [orders]
    sql: |
      SELECT key, value
      FROM orders
    target:
      topic: out
"""


def test_a_file_of_pipelines() -> None:
    copy, kept = read_pipelines(FILE, file="p.yaml")
    assert (copy.spec.name, copy.wanted, copy.line) == ("copy", None, 3)
    assert (kept.spec.name, kept.wanted, kept.line) == ("kept", WantedState.STOPPED, 7)
    assert kept.spec.sql == "SELECT key, value\nFROM orders"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "target: {topic: out}",
            "target: {topic: out}\n    triger: 1s",
            "p.yaml:7: pipeline copy: triger: there is no",
        ),
        ("      topic: out\n", "      topik: out\n", "p.yaml:13: pipeline kept: target: names none of"),
        ("state: stopped", "state: paused", "p.yaml:8: state: 'paused' is neither running nor stopped"),
        ("- name: kept", "- name: copy", "p.yaml:7: the pipeline copy is defined twice, first in line 3"),
        ("    sql: |", "   sql: |", "p.yaml:10: "),
        ("pipelines:", "pipeline:", "p.yaml:1: there is no list of pipelines"),
        ("sources: [orders]", "sources: &a [orders]", "p.yaml:4: anchors and aliases"),
        ("  - name: copy", "  - name: copy\n    name: other", "p.yaml:4: 'name' is there twice"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(before: str, after: str, said: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        read_pipelines(FILE.replace(before, after, 1), file="p.yaml")
    assert said in str(refused.value)


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    with pytest.raises(InvalidSetting) as refused:
        read_pipelines(FILE.replace("sql:", "sgl:").replace("topic:", "topik:"), file="p.yaml")
    assert len(str(refused.value).splitlines()) == 6
