"""The report as text: the verdict first, then who took part, what was done and what was found."""

from __future__ import annotations

from pathlib import Path

from chaos_histories import Tale
from report_ground import bare_report, full_report

from streamhouse.chaos.report.page import as_page
from streamhouse.chaos.report.text import as_text, facts, headline, utc, utc_time


def test_the_text_says_who_took_part_what_was_done_and_what_was_found(tmp_path: Path) -> None:
    tale = Tale(tmp_path / "history")
    tale.sent(1)
    tale.acknowledged(0, 0)
    tale.log()
    document = full_report(tale, tmp_path)
    text = as_text(document)
    assert text.startswith("chaos: 1 anomaly (lost 1)\n")
    assert "java: there is no java on PATH" in text
    assert "kill 1, pause 0, stop 0, s3 1, database 0" in text
    assert "libfaketime is not installed" in text
    assert "lost: t/0: record 0 of p, acknowledged at offset 0 (at 00:00:02 UTC)" in text
    assert "faults left out (floor, or target busy)  pause 2\n" in text
    assert "0 records: reported as failed to the application (0 of them are in the log)\n" in text
    assert "  1970-01-01 00:00:01 UTC\n" in text
    assert "longest silence while an agent ran and both stores answered; limit 60 s" in text
    assert document["passed"] is False


def anomaly(tmp_path: Path) -> Tale:
    tale = Tale(tmp_path / "history-with-a-loss")
    tale.sent(1)
    tale.acknowledged(0, 0)
    tale.log()
    return tale


def test_a_read_that_was_cut_short_is_no_verdict(tmp_path: Path) -> None:
    document = bare_report(tmp_path, interrupted=True, judged=False, killed=["java-producers"])
    assert as_text(document).startswith("chaos: interrupted before the last read; not judged\n")
    assert "interrupted before the last read; not judged" in as_page(document)
    assert document["passed"] is False


def test_a_verdict_with_a_killed_client_says_first_that_it_is_not_reliable(tmp_path: Path) -> None:
    doubt = "chaos: the verdict is not reliable: java-producers killed, history incomplete; "
    document = bare_report(tmp_path, killed=["java-producers"], problems=["java-producers was killed"])
    assert as_text(document).startswith(f"{doubt}no anomaly\n")
    assert document["passed"] is False
    document = bare_report(tmp_path, killed=["java-producers"], tale=anomaly(tmp_path))
    assert as_text(document).startswith(f"{doubt}1 anomaly (lost 1)\n")


def test_an_anomaly_stays_one_after_an_interruption(tmp_path: Path) -> None:
    document = bare_report(tmp_path, interrupted=True, judged=False, tale=anomaly(tmp_path))
    assert as_text(document).startswith("chaos: 1 anomaly (lost 1)\n")


def test_a_run_that_had_trouble_says_so_in_its_verdict(tmp_path: Path) -> None:
    text = as_text(bare_report(tmp_path, problems=[f"problem {number}" for number in range(20)]))
    assert text.startswith("chaos: no anomaly, but the run itself had problems; its verdict may be incomplete\n")
    assert text.count("problem with the run itself: ") == 10


def test_a_good_run_says_no_anomaly_and_gives_no_examples(tmp_path: Path) -> None:
    report = bare_report(tmp_path)
    assert headline(report) == "no anomaly"
    assert "examples" not in as_text(report)
    assert "agents' data" not in dict(facts(report)), "a fact without a value is left out"


def test_of_many_anomalies_a_few_are_shown_and_the_rest_are_counted(tmp_path: Path) -> None:
    tale = Tale(tmp_path / "history")
    tale.sent(60)
    for number in range(60):
        tale.acknowledged(number, number)
    tale.log()
    text = as_text(bare_report(tmp_path, tale=tale))
    assert text.startswith("chaos: 60 anomalies (lost 60)\n")
    assert text.count("lost: t/0: record ") == 10
    assert "and 50 more; report.json has up to 50 of each kind" in text


def test_times_are_told_in_utc() -> None:
    assert (utc(86_399_999), utc_time(86_399_999)) == ("1970-01-01 23:59:59 UTC", "23:59:59 UTC")
