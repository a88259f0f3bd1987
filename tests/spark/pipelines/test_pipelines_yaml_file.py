"""A file of pipelines: read whole, or every mistake told with its line."""

from __future__ import annotations

import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.limits import MAX_CONFIG_FILE_BYTES
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.pipelines import yaml_file
from streamhouse.spark.pipelines.yaml_file import read_pipelines

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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "p.yaml:1: there is no list of pipelines"),
        ("pipelines: {}", "p.yaml:1: there is no list of pipelines"),
        ("pipelines: []\ntables: []", "p.yaml:2: there is no 'tables' here"),
        ("pipelines:\n  - just text", "p.yaml:2: is not a mapping"),
        ("pipelines: !!python/object:os.system {}", "could not determine a constructor"),
        ("a: " + "[" * 40 + "]" * 40, "nested more than 32 levels deep"),
        ("a: " + "[" * 5_000, "p.yaml"),
        ("x" * (MAX_CONFIG_FILE_BYTES + 1), "has more than"),
    ],
    ids=["empty", "no list", "more", "text", "a tag", "deep", "deep and cut", "long"],
)
def test_a_file_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        read_pipelines(text, file="p.yaml")
    assert said in str(refused.value)


def test_more_pipelines_than_a_file_may_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "MAX_PIPELINES", 1)
    with pytest.raises(InvalidSetting, match=r"p\.yaml:7: there are more than 1 pipelines in one file"):
        read_pipelines(FILE, file="p.yaml")
