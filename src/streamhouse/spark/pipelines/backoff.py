"""How long to wait before a failed pipeline is started again. Pure."""

from __future__ import annotations

from typing import Final

FIRST_MS: Final = 1_000
LONGEST_MS: Final = 60_000
HEALTHY_MS: Final = 60_000
"""A pipeline that ran for so long is healthy: its next failure is a first one."""


def pause_ms(failures: int) -> int:
    """After so many failures in a row."""
    return min(LONGEST_MS, FIRST_MS << min(failures - 1, 10)) if failures > 0 else 0


def failures_after(failures: int, ran_ms: int) -> int:
    return 1 if ran_ms >= HEALTHY_MS else failures + 1
