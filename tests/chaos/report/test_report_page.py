"""The report as a page: whole in itself, with faults, silences and anomalies on its time line."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_histories import Tale
from report_ground import bare_report, full_report

from streamhouse.chaos.fleet.nemesis import Happened
from streamhouse.chaos.report.page import as_page, time_line


def test_the_page_is_whole_in_itself_and_marks_faults_silences_and_anomalies(tmp_path: Path) -> None:
    tale = Tale(tmp_path / "history")
    tale.sent(2)
    tale.acknowledged(0, 0, at=9000)
    tale.acknowledged(1, 1, at=9500)
    tale.log(0)
    page = as_page(full_report(tale, tmp_path))
    assert "<title>agent-1 killed at 00:00:05 UTC, started again after 2.0 s</title>" in page
    assert "<title>s3: connections held silent at 00:00:09 UTC, for 3.0 s; &lt;late&gt;</title>" in page
    assert "<title>nothing acknowledged for 8.0 s, until 00:00:09 UTC</title>" in page
    assert "<title>lost: t/0: record 1 of p, acknowledged at offset 1, at 00:00:09 UTC</title>" in page
    assert "kill: SIGKILL of an agent" in page, "the key says what each fault is"
    assert "<th>longest silence while an agent ran and both stores answered; limit 60 s</th>" in page
    assert "src=" not in page
    assert "href=" not in page


def test_a_run_without_any_record_has_a_page_too(tmp_path: Path) -> None:
    assert "no anomaly" in as_page(full_report(Tale(tmp_path / "history"), tmp_path))


def fault(kind: str, detail: str) -> Happened:
    return Happened(kind=kind, target="agent-1", begin_ms=5000, end_ms=7000, detail=detail)


@pytest.mark.parametrize(
    ("kind", "detail", "title"),
    [
        ("pause", "for 2.0 s", "agent-1 paused at 00:00:05 UTC, continued after 2.0 s"),
        ("stop", "for 2.0 s; did not end, and was killed", "started again after 2.0 s; did not end, and was killed"),
        ("disk", "for 2.0 s", "agent-1: disk full at 00:00:05 UTC, free again after 2.0 s"),
        ("clock", "-300 s", "agent-1: clock set by -300 s at 00:00:05 UTC, set right after 2.0 s"),
        ("database", "refuse for 2.0 s", "agent-1: connections refused at 00:00:05 UTC, for 2.0 s"),
        ("exit", "ended by itself with 1: <b>", "agent-1 at 00:00:05 UTC: ended by itself with 1: &lt;b&gt;"),
    ],
)
def test_each_fault_is_told_in_words(tmp_path: Path, kind: str, detail: str, title: str) -> None:
    assert f"{title}</title>" in as_page(bare_report(tmp_path, happened=[fault(kind, detail)]))


def test_what_a_client_or_a_log_said_cannot_become_markup(tmp_path: Path) -> None:
    page = as_page(bare_report(tmp_path, run="<script>", problems=["<img>"], target="<i>"))
    assert not any(tag in page for tag in ("<script>", "<img>", "<i>"))


def test_a_long_run_is_drawn_within_a_bound(tmp_path: Path) -> None:
    day_ms = 24 * 3600 * 1000
    line = time_line(bare_report(tmp_path, begin_ms=0, end_ms=day_ms, happened=[fault("kill", "for 2.0 s")]))
    assert 'width="6000"' in line
    assert line.count("<line") <= 31


def test_a_fault_outside_the_run_is_drawn_at_its_edge(tmp_path: Path) -> None:
    late = Happened(kind="kill", target="agent-1", begin_ms=-5000, end_ms=10_000_000, detail="for 2.0 s")
    line = time_line(bare_report(tmp_path, begin_ms=0, end_ms=10_000, happened=[late]))
    assert '<rect x="180.0" y="167" width="700.0"' in line
