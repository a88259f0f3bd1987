"""Reads and writes large files past the page cache. The reader has caches of its own for what is wanted soon. To keep
it in the kernel's as well costs a copy, fresh memory for it, and a longer wait for the disk when all of that is synced.

Buffers, positions and lengths must be aligned: bytes are staged, and what fills up the last block is cut off again.
File systems that cannot do it say so at the first try, and are written the usual way from then on.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from typing import Final

from streamhouse.core.limits import MIB

MIN_DIRECT_BYTES: Final = MIB // 4
"""Below this size, staging and aligning cost more than they save."""

_STAGE_BYTES: Final = MIB // 2
_BLOCK_BYTES: Final = 4096
_O_DIRECT: Final = getattr(os, "O_DIRECT", 0)  # Linux has it
_REFUSALS: Final = (errno.EINVAL, errno.EOPNOTSUPP)

# bytearray(n) fills with zeros what the disk is about to fill, at a fifteenth of a read's CPU.
_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)


class DirectFiles:
    """Reads and writes files past the page cache. Several threads use it at once: each has a stage of its own."""

    def __init__(self, *, wanted: bool) -> None:
        self._works = wanted and bool(_O_DIRECT)
        self._mine = threading.local()

    def write(self, fd: int, views: Sequence[memoryview]) -> bool:
        """Write a new file whole. False when this file system does not do it: nothing was written then.

        ``fd`` is open for writing; afterwards it writes the usual way again.
        """
        if not self._works or sum(map(len, views)) < MIN_DIRECT_BYTES or not self._switch(fd, on=True):
            return False
        try:
            self._write(fd, views)
        except OSError as error:
            if error.errno not in _REFUSALS or os.fstat(fd).st_size:
                raise
            self._works = False
        finally:
            self._switch(fd, on=False)
        return self._works

    def read(self, fd: int, offset: int, length: int) -> memoryview | None:
        """Bytes of a file, fewer only at its end. None when this file system does not do it, or it is not worth it."""
        if not self._works or length < MIN_DIRECT_BYTES or not self._switch(fd, on=True):
            return None
        start = offset - offset % _BLOCK_BYTES
        end = -(-(offset + length) // _BLOCK_BYTES) * _BLOCK_BYTES
        memory = _new_bytearray(None, end - start + _BLOCK_BYTES)
        at = -_address(memory) % _BLOCK_BYTES
        blocks = memoryview(memory)[at : at + end - start]
        got = 0
        try:
            while got < len(blocks) and (count := os.preadv(fd, [blocks[got:]], start + got)):
                got += count
                if got % _BLOCK_BYTES:
                    break  # the end of the file
        except OSError as error:
            if error.errno not in _REFUSALS or got:
                raise
            self._works = False
            return None
        finally:
            self._switch(fd, on=False)
        return blocks[offset - start : min(got, offset - start + length)].toreadonly()

    def _switch(self, fd: int, *, on: bool) -> bool:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | _O_DIRECT if on else flags & ~_O_DIRECT)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            self._works = False
        return self._works

    def _write(self, fd: int, views: Sequence[memoryview]) -> None:
        stage = self._stage()
        position = filled = 0
        for view in views:
            while len(view):
                taken = view[: _STAGE_BYTES - filled]
                stage[filled : filled + len(taken)] = taken
                filled += len(taken)
                view = view[len(taken) :]
                if filled == _STAGE_BYTES:
                    _pwrite_all(fd, stage, position)
                    position += filled
                    filled = 0
        if filled:
            _pwrite_all(fd, stage[: -(-filled // _BLOCK_BYTES) * _BLOCK_BYTES], position)
            os.ftruncate(fd, position + filled)

    def _stage(self) -> memoryview:
        stage: memoryview | None = getattr(self._mine, "stage", None)
        if stage is None:
            stage = self._mine.stage = memoryview(mmap.mmap(-1, _STAGE_BYTES))  # page-aligned
        return stage


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _pwrite_all(fd: int, data: memoryview, position: int) -> None:
    """A short write ends at a block's end, or the next one is refused: then the disk is full, or going to be."""
    while len(data):
        written = os.pwrite(fd, data, position)
        if written % _BLOCK_BYTES:
            raise OSError(errno.EIO, "the disk took part of a block")
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data = data[written:]
        position += written
