"""A document becomes a spec, or every mistake is named with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pipeline_documents import WHOLE, changed

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.pipelines.parsing import (
    MAX_SOURCES,
    PIPELINES,
    check_pipeline_name,
    load_pipeline,
    parse_pipeline,
)
from streamhouse.spark.pipelines.spec import BadRecords, Format, OutputMode, PostgresTarget, TargetMode


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


@pytest.mark.parametrize("name", ["a", "9", "a-b_c", "a" * 63])
def test_a_good_name(name: str) -> None:
    assert check_pipeline_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a b", "a\n", "ä", "a" * 64])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match="is not a valid name for a pipeline"):
        check_pipeline_name(name)


def test_the_number_of_sources_is_bounded() -> None:
    at_most: dict[str, Any] = {f"v{number}": {} for number in range(MAX_SOURCES)}
    assert parse_pipeline(changed(sources=at_most))[1] == []
    for sources in ({}, {**at_most, "more": {}}):
        _, problems = parse_pipeline(changed(sources=sources))
        assert [problem.path for problem in problems] == [("sources",)]
        assert f"not 1 to {MAX_SOURCES}" in problems[0].message


def test_a_stored_pipeline_reads_back_with_its_generation() -> None:
    spec = load_pipeline(WHOLE)
    assert PIPELINES.read(spec.name, json.loads(json.dumps(PIPELINES.write(spec, 7)))) == (spec, 7)


def test_the_first_problem_is_raised_with_its_path_and_hint() -> None:
    with pytest.raises(InvalidSetting, match=r"^sources\.o\.starting: 'now' is none of") as refused:
        load_pipeline(changed(sources={"o": {"starting": "now"}}))
    assert refused.value.hint
