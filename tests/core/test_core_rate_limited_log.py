"""A log that clients can write to has a bound on its lines, and says how many were left out."""

from __future__ import annotations

import logging

import pytest

from streamhouse.core.rate_limited_log import LINES, WINDOW_S, RateLimitedLog


def test_each_level_has_its_own_bound_and_what_is_left_out_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = RateLimitedLog(logging.getLogger("streamhouse.test"), lambda: now[0])
    for number in range(LINES + 5):
        log.log(logging.WARNING, f"line {number}")
    assert caplog.messages == [f"line {number}" for number in range(LINES)]
    caplog.clear()
    log.log(logging.ERROR, "a bug")
    assert caplog.messages == ["a bug"]
    caplog.clear()
    now[0] = WINDOW_S
    log.log(logging.WARNING, "again")
    assert caplog.messages == ["5 more lines like these were left out", "again"]
