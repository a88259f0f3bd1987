"""When writes wait for retention, so that a size limit bounds a disk (S3.2)."""

from __future__ import annotations

from streamhouse.maintenance.upkeep.brake import Brake

MB = 1024 * 1024
LIMIT = 200 * MB


def look(brake: Brake, committed_mb: int, *, now_ms: int = 0, limits_bytes: int | None = LIMIT) -> bool:
    return brake.look(now_ms=now_ms, committed_bytes=committed_mb * MB, limits_bytes=limits_bytes)


def test_s3_2_writes_wait_once_an_eighth_of_the_limits_was_committed_since_the_last_pass() -> None:
    brake = Brake()
    assert not look(brake, 25)
    assert look(brake, 26)
    assert brake.holds
    brake.caught_up(10 * MB)
    assert not look(brake, 26)
    assert look(brake, 36)


def test_a_pass_that_began_before_most_was_written_does_not_let_writes_go_on() -> None:
    brake = Brake()
    assert look(brake, 100)
    brake.caught_up(50 * MB)
    assert look(brake, 100)
    brake.caught_up(100 * MB)
    assert not look(brake, 100)


def test_without_a_size_limit_nothing_waits() -> None:
    brake = Brake()
    assert not look(brake, 10_000, limits_bytes=None)
    assert look(brake, 10_000)
    assert not look(brake, 10_000, limits_bytes=None), "the topic with the limit is gone"


def test_a_tiny_limit_does_not_shake_the_brake() -> None:
    brake = Brake()
    assert not look(brake, 16, limits_bytes=1)
    assert look(brake, 17, limits_bytes=1)


def test_writes_wait_for_two_seconds_at_most_and_not_again_before_a_pass_has_ended_well() -> None:
    brake = Brake()
    assert look(brake, 100, now_ms=1_000)
    assert look(brake, 100, now_ms=2_999)
    assert not look(brake, 100, now_ms=3_000)
    assert not look(brake, 900, now_ms=9_000), "retention does not come to an end; the log stays open for writes"
    brake.caught_up(100 * MB)
    assert look(brake, 900, now_ms=9_100)
