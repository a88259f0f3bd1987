"""How long to wait before a failed pipeline is started again. Pure."""

from __future__ import annotations

from typing import Final

from streamhouse.core.backoff import Backoff

FIRST_MS: Final = 1_000
LONGEST_MS: Final = 60_000
HEALTHY_MS: Final = 60_000
"""A pipeline that ran for so long is healthy: its next failure is a first one."""

_RESTART: Final = Backoff(first_ms=FIRST_MS, longest_ms=LONGEST_MS)


def pause_ms(failures: int) -> int:
    """After so many failures in a row."""
    return _RESTART.step_ms(failures)


def failures_after(failures: int, ran_ms: int) -> int:
    return 1 if ran_ms >= HEALTHY_MS else failures + 1
