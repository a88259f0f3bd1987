"""The members of librdkafka's groups in a chaos run: one that is stuck in a call does not stop its seat."""

from __future__ import annotations

import threading

import pytest

from streamhouse.chaos.load.librdkafka_groups import outlive


def test_a_member_that_is_stuck_in_a_call_is_abandoned_and_the_log_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    never = threading.Event()
    abandoned = threading.Event()
    try:
        outlive("seat-0", lambda: _wait(never), lambda: 31.0, abandoned, limit_s=0.01)
        assert abandoned.is_set()
        assert "seat-0 is abandoned" in capsys.readouterr().err
    finally:
        never.set()


def test_a_member_that_shows_signs_of_life_is_waited_for() -> None:
    looks = 0
    end = threading.Event()
    abandoned = threading.Event()

    def silent_s() -> float:
        nonlocal looks
        looks += 1
        if looks == 3:
            end.set()
        return 0.0

    outlive("seat-0", lambda: _wait(end), silent_s, abandoned, limit_s=0.01)
    assert looks >= 3
    assert not abandoned.is_set()


def test_what_breaks_a_member_breaks_its_seat() -> None:
    def live() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        outlive("seat-0", live, lambda: 0.0, threading.Event(), limit_s=0.01)


def _wait(event: threading.Event) -> None:
    event.wait(60)
