"""Clocks: the manual one moves as told, the system one as the machine does."""

from __future__ import annotations

import time

import pytest

from streamhouse.core.clock import Clock, ManualClock, SystemClock


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(wall_ms=1000, boot_ms=10)
    assert (clock.wall_ms(), clock.boot_ms()) == (1000, 10)
    clock.advance(5)
    assert (clock.wall_ms(), clock.boot_ms()) == (1005, 15)


def test_r20_a_wall_clock_set_back_leaves_deadlines_alone() -> None:
    clock = ManualClock()
    before = clock.boot_ms()
    clock.jump_wall(-3_600_000)
    assert clock.boot_ms() == before
    assert clock.wall_ms() == ManualClock().wall_ms() - 3_600_000


def test_time_cannot_be_advanced_backwards() -> None:
    with pytest.raises(ValueError, match="jump_wall"):
        ManualClock().advance(-1)


def test_r20_the_system_clock_counts_time_asleep() -> None:
    clock: Clock = SystemClock()
    low = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    middle = clock.boot_ms()
    assert low <= middle <= time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def test_the_wall_clock_is_milliseconds_since_the_epoch() -> None:
    low = time.time_ns() // 1_000_000
    middle = SystemClock().wall_ms()
    assert low <= middle <= time.time_ns() // 1_000_000
