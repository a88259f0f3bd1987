"""What clients note down is what the checker reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamhouse.chaos.history import History, final_line, lines, partitions, word
from streamhouse.chaos.records import Written, encode

WRITTEN = Written(run="r", producer="p-1", number=7, topic="t", partition=3)


def test_what_is_written_is_what_the_checker_reads(tmp_path: Path) -> None:
    times = iter(range(100, 200))
    with History(tmp_path, "one", wall_ms=lambda: next(times)) as history:
        history.producer("p-1", "librdkafka", once=True, ordered=True, acks="all")
        history.sent("t", 3, "p-1", 7, 1)
        history.acknowledged("t", 3, "p-1", 7, 0)
        history.failed("t", 3, "p-1", 8, "timed out twice")
        history.taken("t", 3, "g", "m", 1)
        history.delivered("t", 3, "g", "m", 1, 0, encode(WRITTEN, 5))
        history.delivered("t", 3, "g", "m", 1, 1, b"noise")
        history.read_finally("r", "t", 3, 0, encode(WRITTEN, 5))
        history.read_finally("r", "t", 4, 0, encode(WRITTEN, 5))
        history.read_finally("r", "t", 3, 1, b"noise")
        history.read_to_the_end("t", 3, 2)
    part = tmp_path / "parts" / "t" / "3"
    assert partitions(tmp_path) == [("t", 3), ("t", 4)]
    assert [words[0] for words in lines(part / "one.produce")] == ["S", "A", "F"]
    assert [words[3:] for words in lines(part / "one.produce")] == [
        ["7", "1"],
        ["7", "0"],
        ["8", "timed_out_twice"],
    ]
    assert [words[5:] for words in lines(part / "one.group") if words[0] == "R"] == [
        ["0", "p-1", "7"],
        ["1", "!", "0"],
    ]
    assert [words[0] for words in lines(part / "final")] == ["V", "X", "E"]
    assert [words[:2] for words in lines(part.with_name("4") / "final")] == [["X", "0"]]


def test_a_last_line_that_was_cut_off_is_left_out_and_a_file_that_is_missing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("S 1 p 0 1\nA 2 p")
    assert list(lines(tmp_path / "one")) == [["S", "1", "p", "0", "1"]]
    assert list(lines(tmp_path / "none")) == []


def test_a_reason_is_one_short_word() -> None:
    assert word("timed  out\nafter 5 s") == "timed_out_after_5_s"
    assert word(" ") == "unknown"
    assert len(word("x" * 1000)) == 80


@pytest.mark.parametrize("place", [("s", "t", 3), ("r", "u", 3), ("r", "t", 4)])
def test_a_record_of_another_run_topic_or_partition_belongs_to_no_producer_here(place: tuple[str, str, int]) -> None:
    run, topic, partition = place
    assert final_line(run, topic, partition, 9, encode(WRITTEN, 0)) == "X 9 written_for_r/t/3"


def test_a_commit_has_the_time_it_began_and_the_time_it_was_answered(tmp_path: Path) -> None:
    with History(tmp_path, "one", wall_ms=lambda: 500) as history:
        history.committed("t", 0, "g", "m", 7, begun_ms=400)
        history.observed("t", 0, "g", 7, begun_ms=450)
        history.end_seen("t", 0, "g", 9)
    assert (tmp_path / "parts/t/0/one.group").read_text() == "C 400 500 g m 7\nO 450 500 g 7\nE 500 g 9\n"


def test_what_was_written_a_second_ago_is_on_the_disk_though_the_client_is_killed_now(tmp_path: Path) -> None:
    now = 5_000
    with History(tmp_path, "one", wall_ms=lambda: now) as history:
        history.sent("t", 0, "p", 0, 1)
        history.sent("t", 0, "p", 1, 1)
        now += 1_001
        history.sent("u", 0, "p", 2, 1)
        assert len(list(lines(tmp_path / "parts/t/0/one.produce"))) == 2


def test_folders_that_are_no_partition_are_passed_over(tmp_path: Path) -> None:
    for name in ("t/10", "t/9", "t/notes"):
        (tmp_path / "parts" / name).mkdir(parents=True)
    assert partitions(tmp_path) == [("t", 9), ("t", 10)]
