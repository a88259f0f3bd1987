"""The clock of one agent is a file that libfaketime reads."""

from __future__ import annotations

from pathlib import Path

from streamhouse.chaos.fleet.clocks import OwnClock


def test_a_clock_of_its_own_is_a_file_that_libfaketime_reads(tmp_path: Path) -> None:
    clock = OwnClock(Path("/lib/libfaketime.so.1"), tmp_path / "clock")
    assert (tmp_path / "clock").read_text() == "+0\n"
    clock.set(-300)
    assert (tmp_path / "clock").read_text() == "-300\n"
    assert clock.environment()["FAKETIME_TIMESTAMP_FILE"] == str(tmp_path / "clock")
