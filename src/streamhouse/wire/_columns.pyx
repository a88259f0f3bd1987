# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True
"""The compiled twin of _columns_py: records ↔ the buffers of Arrow columns. Same names, same results, same refusals.

Bytes here come from strangers. Three rules keep the memory safe, and every change must keep them:
  * a pointer is read or advanced only after it was compared with the end of the body, or of the record, in hand;
  * a length is read once, into a local, compared with what is left, and only then used;
  * room in an output is reserved before the loop that fills it, from sizes that are true by then: a record takes at
    least 7 bytes, so a body cannot yield more than len / 7 of them, whatever its header claims.

No pyarrow here: outputs are objects with the buffer protocol, which columns.py wraps without a copy.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.limits import MAX_HEADERS_PER_RECORD as _MAX_HEADERS_PER_RECORD
from streamhouse.wire._column_buffers import BinaryBuffers, DecodedBuffers, EncodedBody, HeaderBuffers
from streamhouse.wire.batch import LOG_APPEND_TIME_BIT as _LOG_APPEND_TIME_BIT
from streamhouse.wire.batch import MIN_RECORD_BYTES as _MIN_RECORD_BYTES
from streamhouse.wire.records import corrupt_record
from streamhouse.wire.varint import RecordFault as _RecordFault

cdef int32_t MAX_HEADERS = _MAX_HEADERS_PER_RECORD
cdef Py_ssize_t MIN_RECORD = _MIN_RECORD_BYTES
cdef int LOG_APPEND_TIME = _LOG_APPEND_TIME_BIT
cdef int64_t INT32_LIMIT = 0x7FFFFFFF
cdef Py_ssize_t SLACK = 64  # copies go in steps of 16 bytes and may write this far past what they keep

cdef enum:
    FINE = 0
    VARINT = 1
    RECORD_LENGTH = 2
    RECORD_CUT = 3
    OFFSET_DELTA = 4
    TIMESTAMP = 5
    KEY_LENGTH = 6
    VALUE_LENGTH = 7
    HEADER_COUNT = 8
    HEADER_KEY_LENGTH = 9
    HEADER_VALUE_LENGTH = 10
    RECORD_TRAILING = 11
    BATCH_TRAILING = 12
    OUT_OF_MEMORY = 100
    COLUMN_FULL = 101

for _name, _number in (
    ("VARINT", VARINT), ("RECORD_LENGTH", RECORD_LENGTH), ("RECORD_CUT", RECORD_CUT), ("OFFSET_DELTA", OFFSET_DELTA),
    ("TIMESTAMP", TIMESTAMP), ("KEY_LENGTH", KEY_LENGTH), ("VALUE_LENGTH", VALUE_LENGTH),
    ("HEADER_COUNT", HEADER_COUNT), ("HEADER_KEY_LENGTH", HEADER_KEY_LENGTH),
    ("HEADER_VALUE_LENGTH", HEADER_VALUE_LENGTH), ("RECORD_TRAILING", RECORD_TRAILING),
    ("BATCH_TRAILING", BATCH_TRAILING),
):
    if _RecordFault[_name] != _number:
        raise ImportError(f"fault {_name} is numbered {_RecordFault[_name]} in varint.py and {_number} in _columns.pyx")


cdef extern from *:
    """
    #if defined(__GNUC__)
      #define sh_add_overflow(a, b, out) __builtin_add_overflow(a, b, out)
      #define sh_sub_overflow(a, b, out) __builtin_sub_overflow(a, b, out)
      #define sh_mul_overflow(a, b, out) __builtin_mul_overflow(a, b, out)
      #define sh_likely(x) __builtin_expect(!!(x), 1)
      #define sh_bit_length(x) (64 - __builtin_clzll(x))
    #else
      #error "the compiled columns need GCC or Clang; without them the pure twin serves"
    #endif
    """
    bint sh_add_overflow(int64_t a, int64_t b, int64_t* out) nogil
    bint sh_sub_overflow(int64_t a, int64_t b, int64_t* out) nogil
    bint sh_mul_overflow(int64_t a, int64_t b, int64_t* out) nogil
    bint sh_likely(bint x) nogil
    int sh_bit_length(uint64_t x) nogil


include "_columns_memory.pxi"
include "_columns_build.pxi"
include "_columns_decode.pxi"
include "_columns_encode.pxi"
include "_columns_partition.pxi"
