"""What a start found in the write-ahead log, in one line for people. Words only: it recovers nothing."""

from __future__ import annotations

from streamhouse.core.units import format_size
from streamhouse.log.wal.recovery import Recovered


def recovery_line(found: Recovered, *, replayed: int | None) -> str:
    """``replayed``: how many of the batches were not in the log yet and are now; None when that is not known."""
    if not found.file_count:
        return "a new write-ahead log"
    size = f" ({format_size(found.batch_bytes)})" if found.frame_count else ""
    parts = [f"{_count(found.frame_count, 'batch', 'batches')}{size} in {_count(found.file_count, 'file', 'files')}"]
    if replayed is not None and found.frame_count:
        parts.append(f"{replayed or 'none'} replayed")
    if found.torn_bytes:
        parts.append(f"a torn end of {format_size(found.torn_bytes)} cut off")
    if found.discarded_file_count:
        parts.append(f"{_count(found.discarded_file_count, 'file', 'files')} behind it discarded")
    return f"write-ahead log recovered: {', '.join(parts)}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number or 'no'} {one if number == 1 else many}"
