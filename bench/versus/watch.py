"""What a server process uses, from /proc: CPU of all its threads, and the memory it holds."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    cpu_s: float
    rss_mb: float
    peak_rss_mb: float


def usage(pid: int) -> Usage:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    return Usage(
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        rss_mb=_kib(status, "VmRSS") / 1024,
        peak_rss_mb=_kib(status, "VmHWM") / 1024,
    )


def age_s(pid: int) -> float:
    """Return the time since the process was started."""
    started_ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks * _TICK_S


def _kib(status: str, name: str) -> int:
    line = next(line for line in status.splitlines() if line.startswith(name + ":"))
    return int(line.split()[1])
