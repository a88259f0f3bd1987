"""What the wire modules take as bytes."""

from __future__ import annotations

BytesLike = bytes | bytearray | memoryview


def byte_view(buf: BytesLike) -> memoryview:
    """The same bytes as unsigned octets, without a copy; also for arrays and Arrow buffers, whose items differ."""
    view = memoryview(buf)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
