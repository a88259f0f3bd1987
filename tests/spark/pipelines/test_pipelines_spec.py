"""A spec: its document reads back, shows no password, and has a fingerprint of what a checkpoint depends on."""

from __future__ import annotations

from typing import Any

import pytest
from pipeline_documents import WHOLE, changed

from streamhouse.spark.pipelines.parsing import load_pipeline, parse_pipeline


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


def test_a_checkpoint_survives_a_new_password_and_other_options_and_not_another_table() -> None:
    def postgres(**more: Any) -> str:
        chosen = {"url": "postgresql://me:secret@db/x", "table": "public.m", "key": ["minute"], **more}
        return load_pipeline(changed(target={"postgres": chosen})).fingerprint()

    assert postgres() == postgres(url="postgresql://me:other@db2/x") == postgres(create=False)
    assert len({postgres(), postgres(table="public.n"), postgres(key=["minute", "n"])}) == 3


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ({"topic": "out"}, "topic out"),
        ({"postgres": {"url": "postgresql://me:secret@db/x", "table": "t"}}, "PostgreSQL table t"),
        ({"table": {"format": "delta", "path": "/data/t"}}, "delta table /data/t"),
    ],
)
def test_a_target_is_shown_in_words_and_reads_back(target: dict[str, Any], shown: str) -> None:
    spec = load_pipeline(changed(target=target, output_mode="append"))
    assert str(spec.target) == shown
    assert load_pipeline(spec.to_document()) == spec


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"order_by": "at"}, "there is no key"),
        ({"mode": "insert", "key": ["a"]}, "an insert has no key"),
        ({"key": ["a", "a"]}, "names a column twice"),
    ],
)
def test_a_postgres_target_that_contradicts_itself_is_refused(options: dict[str, Any], said: str) -> None:
    target = {"postgres": {"url": "postgresql://db/x", "table": "t", **options}}
    _, problems = parse_pipeline(changed(target=target, output_mode="append"))
    assert any(said in problem.message for problem in problems)


def test_only_a_pipeline_that_reads_what_there_is_ends() -> None:
    assert load_pipeline(changed(trigger="available_now")).ends
    assert not load_pipeline(WHOLE).ends
    assert load_pipeline(WHOLE).to_document()["trigger"] == "10000ms"
