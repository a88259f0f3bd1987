"""Turns bytes into frames. No IO: the connection asks where the next bytes go and takes the frames that are complete.

    scratch    one for the whole process; most reads bring whole frames, which are served from it in place
    own        what a connection keeps between reads: the beginning of a frame, or frames that must wait their turn

A frame announces its size, which is not trusted: the buffer for it is at most twice what has arrived. Emptied
buffers are kept for the next large frame, since memory that was touched before costs half as much to fill.
A frame's view is valid until the next call of ``writable`` or ``park``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from streamhouse.core.errors import MalformedRequest
from streamhouse.core.limits import KIB, MIB

SCRATCH_BYTES: Final = 256 * KIB
MAX_WAITING_BYTES: Final = 64 * KIB
"""Frames behind one that is being served: read so far ahead, so that a closed connection is noticed."""
MIN_FRAME_BYTES: Final = 8
"""Key, version and correlation id."""

_MIN_OWN_BYTES: Final = 4 * KIB
_MAX_SPARE_BYTES: Final = 8 * MIB
_MAX_SPARE_BUFFER_BYTES: Final = 4 * MIB
_SIZE: Final = Struct(">i")
_SIZE_BYTES: Final = 4

_HTTP_METHODS: Final = frozenset(
    (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
)


class ReceiveBuffers:
    """The scratch, and emptied buffers for the next large frames, the most recently used first."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._spare: list[bytearray] = []
        self._spare_bytes = 0

    def take(self, at_least: int, wanted: int) -> bytearray:
        """One of ``wanted`` bytes if it lies about, else a new one of ``at_least``."""
        for index in range(len(self._spare) - 1, -1, -1):
            if len(self._spare[index]) >= wanted:
                buffer = self._spare.pop(index)
                self._spare_bytes -= len(buffer)
                return buffer
        return bytearray(at_least)

    def give(self, buffer: bytearray) -> None:
        size = len(buffer)
        if size > _MIN_OWN_BYTES and size <= _MAX_SPARE_BUFFER_BYTES and self._spare_bytes + size <= _MAX_SPARE_BYTES:
            self._spare.append(buffer)
            self._spare_bytes += size


class Inbox:
    """One connection's unread bytes: ``_view[_start:_end]``, in the scratch or in a buffer of its own."""

    __slots__ = ("_buffers", "_end", "_max_frame_bytes", "_own", "_start", "_view")

    def __init__(self, buffers: ReceiveBuffers, max_frame_bytes: int) -> None:
        self._buffers = buffers
        self._max_frame_bytes = max_frame_bytes
        self._own: bytearray | None = None
        self._view = buffers.scratch
        self._start = 0
        self._end = 0

    @property
    def capacity(self) -> int:
        """Memory that this connection keeps."""
        return 0 if self._own is None else len(self._own)

    @property
    def waiting_bytes(self) -> int:
        return self._end - self._start

    def writable(self, at_most: int) -> memoryview:
        """Where the next bytes go: never past the end of a frame whose beginning is here, so that the next one comes
        to the scratch."""
        if self._own is None:
            return self._buffers.scratch[:at_most]
        wanted = self._wanted()
        if self._end == len(self._own):
            self._move(min(2 * len(self._own), max(wanted, 2 * self.waiting_bytes)), wanted)
        return self._view[self._end : min(len(self._own), self._start + wanted)]

    def received(self, count: int) -> None:
        self._end += count

    def next_frame(self) -> memoryview | None:
        """The next complete frame without its size, or None. Raises on a size that no request can have."""
        start, end = self._start, self._end
        if end - start < _SIZE_BYTES:
            return None
        size = _SIZE.unpack_from(self._view, start)[0]
        if not MIN_FRAME_BYTES <= size <= self._max_frame_bytes:
            raise self._bad_size(size)
        start += _SIZE_BYTES
        if end - start < size:
            return None
        self._start = start + size
        return self._view[start : start + size]

    def has_frame(self) -> bool:
        """Whether ``next_frame`` has something to say."""
        waiting = self.waiting_bytes
        if waiting < _SIZE_BYTES:
            return False
        size = int(_SIZE.unpack_from(self._view, self._start)[0])
        return waiting - _SIZE_BYTES >= size or not MIN_FRAME_BYTES <= size <= self._max_frame_bytes

    def park(self) -> None:
        """Leave the scratch to others: keep what is unread in a buffer of our own, or nothing where all is read."""
        if self._start == self._end:
            self.clear()
        elif self._own is None:
            wanted = self._wanted()
            self._move(max(_MIN_OWN_BYTES, min(2 * self.waiting_bytes, wanted)), wanted)

    def clear(self) -> None:
        if self._own is not None:
            self._buffers.give(self._own)
        self._own = None
        self._view = self._buffers.scratch
        self._start = self._end = 0

    def _wanted(self) -> int:
        """Bytes from ``_start`` on: to the end of the first frame if it is not complete, else some to wait in."""
        waiting = self.waiting_bytes
        if waiting < _SIZE_BYTES:
            return _MIN_OWN_BYTES
        total = int(_SIZE.unpack_from(self._view, self._start)[0]) + _SIZE_BYTES
        return total if waiting < total <= self._max_frame_bytes + _SIZE_BYTES else max(2 * waiting, MAX_WAITING_BYTES)

    def _move(self, at_least: int, wanted: int) -> None:
        """Move the unread bytes to the front of another buffer."""
        waiting = self.waiting_bytes
        own = self._buffers.take(max(at_least, waiting + 1), max(wanted, waiting + 1))
        view = memoryview(own)
        view[:waiting] = self._view[self._start : self._end]
        if self._own is not None:
            self._buffers.give(self._own)
        self._own, self._view, self._start, self._end = own, view, 0, waiting

    def _bad_size(self, size: int) -> MalformedRequest:
        first = bytes(self._view[self._start : self._start + _SIZE_BYTES])
        if first in _HTTP_METHODS:
            return MalformedRequest("this is HTTP", hint="health and metrics are at admin.listen")
        if first[:2] == b"\x16\x03":
            return MalformedRequest("this is a TLS handshake", hint="connect with security.protocol=PLAINTEXT")
        if size > self._max_frame_bytes:
            return MalformedRequest(
                f"a request of {size} bytes is announced; at most {self._max_frame_bytes} are taken",
                hint="send smaller requests, or raise kafka.max_request_bytes",
            )
        return MalformedRequest(f"a request of {size} bytes is announced")
