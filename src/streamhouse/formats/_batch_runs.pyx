# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True
"""The compiled loop of batch_runs.py over the headers of batches that lie end to end.

Bytes here come from strangers: a field is read only after the whole header was found to lie within the bytes at hand,
and a length is used only after it was compared with what is left. The loop never says what is wrong. It ends before the
first batch that is not plain in every respect, and batch.py judges that one.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from crc32c import crc32c

from streamhouse.core.limits import MAX_BATCH_BYTES as _MAX_BATCH_BYTES
from streamhouse.core.limits import MAX_RECORDS_PER_BATCH as _MAX_RECORDS_PER_BATCH
from streamhouse.formats.declared_times import NO_FIRST_TIME as _NO_FIRST_TIME
from streamhouse.formats.shared_blob_v1 import UNPLACED_EPOCH as _UNPLACED_EPOCH
from streamhouse.formats.shared_blob_v1 import UNPLACED_OFFSET as _UNPLACED_OFFSET
from streamhouse.wire.batch import CODEC_MASK as _CODEC_MASK
from streamhouse.wire.batch import HEADER_BYTES as _HEADER_BYTES
from streamhouse.wire.batch import MAGIC as _MAGIC
from streamhouse.wire.batch import MIN_RECORD_BYTES as _MIN_RECORD_BYTES
from streamhouse.wire.codecs import Codec as _Codec

cdef int64_t MAX_BATCH = _MAX_BATCH_BYTES
cdef int64_t MAX_RECORDS = _MAX_RECORDS_PER_BATCH
cdef int NO_FIRST_TIME = _NO_FIRST_TIME
cdef int64_t UNPLACED_OFFSET = _UNPLACED_OFFSET
cdef int64_t UNPLACED_EPOCH = _UNPLACED_EPOCH
cdef int CODEC = _CODEC_MASK
cdef int LAST_CODEC = int(_Codec.ZSTD)
cdef int64_t HEADER = _HEADER_BYTES
cdef int MAGIC = _MAGIC
cdef int64_t MIN_RECORD = _MIN_RECORD_BYTES
cdef int64_t LENGTH_END = 12


cdef inline uint64_t big_endian(const uint8_t* p, int size) noexcept nogil:
    cdef uint64_t number = 0
    cdef int at
    for at in range(size):
        number = number << 8 | p[at]
    return number


cdef inline void put_big_endian(uint8_t* p, uint64_t number, int size) noexcept nogil:
    cdef int at
    for at in range(size - 1, -1, -1):
        p[at] = <uint8_t> number
        number >>= 8


def walk(view, Py_ssize_t start, int64_t room, int64_t next_offset, int64_t last_offset, bint place, int64_t epoch):
    """The arguments and the result are those of ``take_run``, as numbers. ``view`` is a memoryview of octets, writable
    when the batches are to be placed."""
    cdef Py_buffer buffer
    cdef uint8_t* p
    cdef int64_t position = start, base_offset = next_offset
    cdef int64_t size, delta, count, first_ms, largest_ms, min_ms = 0, max_ms = 0, records = 0
    cdef int attributes
    cdef bint has_plain = False
    if start < 0 or next_offset < 0 or last_offset == INT64_MAX:
        return None
    PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE if place else PyBUF_SIMPLE)
    try:
        while buffer.len - position >= HEADER:
            p = <uint8_t*> buffer.buf + position
            size = LENGTH_END + <int32_t> big_endian(p + 8, 4)
            if size < HEADER or size > MAX_BATCH or size > buffer.len - position or size > room:
                break
            if place:
                if <int64_t> big_endian(p, 8) != UNPLACED_OFFSET or <int32_t> big_endian(p + 12, 4) != UNPLACED_EPOCH:
                    break
            elif <int64_t> big_endian(p, 8) != next_offset:
                break
            if p[16] != MAGIC:
                break
            attributes = <int16_t> big_endian(p + 21, 2)
            delta = <int32_t> big_endian(p + 23, 4)
            count = <int32_t> big_endian(p + 57, 4)
            if attributes & CODEC > LAST_CODEC or delta < 0 or delta > last_offset - next_offset:
                break
            if count != delta + 1 or count > MAX_RECORDS:
                break
            if not attributes & CODEC and count * MIN_RECORD > size - HEADER:
                break
            if <uint32_t> big_endian(p + 17, 4) != <uint32_t> crc32c(view[position + 21:position + size]):
                break
            if place:
                put_big_endian(p, <uint64_t> next_offset, 8)
                put_big_endian(p + 12, <uint64_t> epoch, 4)
            first_ms = <int64_t> big_endian(p + 27, 8)
            largest_ms = <int64_t> big_endian(p + 35, 8)
            if first_ms > largest_ms or attributes & NO_FIRST_TIME:
                first_ms = largest_ms
            if position == start or first_ms < min_ms:
                min_ms = first_ms
            if position == start or largest_ms > max_ms:
                max_ms = largest_ms
            if not attributes & CODEC:
                has_plain = True
            records += count
            next_offset += count
            room -= size
            position += size
    finally:
        PyBuffer_Release(&buffer)
    if position == start:
        return None
    return position - start, base_offset, next_offset - 1, records, min_ms, max_ms, has_plain
