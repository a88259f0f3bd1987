# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True
"""The compiled twin of _key_loops_py: key compaction's loops over records. Same names, same results, same refusals.

Keys and records come from strangers. Every length and every bound is compared with the end of its buffer before a
pointer moves, also where RecordKeys has checked it before.

The hash is SipHash-2-4 with 16 bytes of output, under a secret: whoever does not know the secret can neither construct
two keys with one hash nor many keys for one slot.

All loops run without the interpreter lock. One thread at a time may use a KeySlots.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from streamhouse.core.errors import CorruptBatch, InvalidRequest

cdef extern from *:
    """
    #if defined(__GNUC__)
      #define sh_prefetch(p) __builtin_prefetch(p)
    #else
      #define sh_prefetch(p) ((void) (p))
    #endif
    """
    void sh_prefetch(const void* p) nogil

cdef Py_ssize_t AHEAD = 12  # slots asked of memory before their turn


cdef struct Hash:
    uint64_t upper
    uint64_t lower


cdef struct Slot:
    Hash hash
    uint64_t next  # the newest offset + 1; 0: free


cdef class Bytes:
    """The bytes of another object, held for as long as this object lives."""

    cdef Py_buffer buffer
    cdef bint held
    cdef const uint8_t* data
    cdef Py_ssize_t size

    def __cinit__(self, object source, Py_ssize_t width=1):
        PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.data = <const uint8_t*> self.buffer.buf
        self.size = self.buffer.len
        if self.size and <size_t> self.data % <size_t> width:
            raise InvalidRequest(f"a buffer of {width}-byte numbers is not aligned", hint="copy it first")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


# Hashes.


cdef inline uint64_t rotated(uint64_t x, int bits) noexcept nogil:
    return (x << bits) | (x >> (64 - bits))


cdef inline void mix(uint64_t* v, int rounds) noexcept nogil:
    cdef int _
    for _ in range(rounds):
        v[0] += v[1]
        v[2] += v[3]
        v[1] = rotated(v[1], 13) ^ v[0]
        v[3] = rotated(v[3], 16) ^ v[2]
        v[0] = rotated(v[0], 32)
        v[2] += v[1]
        v[0] += v[3]
        v[1] = rotated(v[1], 17) ^ v[2]
        v[3] = rotated(v[3], 21) ^ v[0]
        v[2] = rotated(v[2], 32)


cdef inline void absorb(uint64_t* v, uint64_t word) noexcept nogil:
    v[3] ^= word
    mix(v, 2)
    v[0] ^= word


cdef inline void siphash(uint64_t key0, uint64_t key1, const uint8_t* p, Py_ssize_t length, Hash* out) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef const uint8_t* end = p + (length & ~<Py_ssize_t> 7)
    cdef int at
    v[0] = key0 ^ <uint64_t> 0x736F6D6570736575
    v[1] = key1 ^ <uint64_t> 0x646F72616E646F6D ^ 0xEE
    v[2] = key0 ^ <uint64_t> 0x6C7967656E657261
    v[3] = key1 ^ <uint64_t> 0x7465646279746573
    while p < end:
        memcpy(&word, p, 8)
        absorb(v, word)
        p += 8
    word = <uint64_t> length << 56
    for at in range(<int> (length & 7)):
        word |= <uint64_t> p[at] << (8 * at)
    absorb(v, word)
    v[2] ^= 0xEE
    mix(v, 4)
    out.upper = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    mix(v, 4)
    out.lower = v[0] ^ v[1] ^ v[2] ^ v[3]


def hash_keys(bytes secret, keys, bounds):
    """16 bytes for each key, end to end. Key n lies between bounds n and n + 1 of ``keys``."""
    cdef Bytes key_bytes = Bytes(keys)
    cdef Bytes bound_bytes = Bytes(bounds, 4)
    cdef const int32_t* ends = <const int32_t*> bound_bytes.data
    cdef Py_ssize_t count = bound_bytes.size // 4 - 1
    cdef Py_ssize_t at
    cdef int32_t begin = 0
    cdef int32_t end
    cdef bint sane = True
    cdef uint64_t key0
    cdef uint64_t key1
    cdef Hash* out
    if len(secret) != 16:
        raise InvalidRequest(f"a secret of {len(secret)} bytes", hint="give 16 bytes")
    if count < 0:
        raise InvalidRequest("keys without bounds", hint="give one bound more than there are keys")
    memcpy(&key0, PyBytes_AS_STRING(secret), 8)
    memcpy(&key1, PyBytes_AS_STRING(secret) + 8, 8)
    hashes = PyBytes_FromStringAndSize(NULL, count * sizeof(Hash))
    out = <Hash*> PyBytes_AS_STRING(hashes)
    with nogil:
        for at in range(count):
            begin, end = ends[at], ends[at + 1]
            if begin < 0 or end < begin or end > key_bytes.size:
                sane = False
                break
            siphash(key0, key1, key_bytes.data + begin, end - begin, &out[at])
    if not sane:
        raise InvalidRequest(f"the bounds of key {at} make no sense")
    return hashes


# Slots.


cdef class KeySlots:
    """The newest offset of each hash. Slots are 24 bytes each, taken once; a quarter of them stays free."""

    cdef Slot* slots
    cdef uint64_t slot_count
    cdef uint64_t max_keys
    cdef uint64_t used
    cdef uint64_t shard
    cdef uint64_t shards

    def __cinit__(self, uint64_t max_keys, uint64_t shard, uint64_t shards):
        self.slot_count = max_keys + max_keys // 3 + 1
        self.max_keys = max_keys
        self.shard = shard
        self.shards = shards
        # Zeros from the system: memory that was never written costs nothing.
        self.slots = <Slot*> calloc(self.slot_count, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.used

    @property
    def size_bytes(self):
        return self.slot_count * sizeof(Slot)

    def put(self, hashes, offsets, skipped):
        """False when the slots are full and do not hold one of the hashes; those before it were put. Records that
        ``skipped`` has a 1 for are passed over, and so are those of other shards."""
        cdef Bytes hash_bytes = Bytes(hashes, 8)
        cdef Bytes offset_bytes = Bytes(offsets, 8)
        cdef Bytes skip_bytes = Bytes(skipped)
        cdef const Hash* hash = <const Hash*> hash_bytes.data
        cdef const int64_t* offset = <const int64_t*> offset_bytes.data
        cdef Py_ssize_t count = counted(hash_bytes, offset_bytes)
        cdef Py_ssize_t at
        cdef Slot* slot
        cdef bint has_room = True
        if skip_bytes.size != count:
            raise InvalidRequest(f"{skip_bytes.size} flags for {count} records")
        with nogil:
            self.prefetch_first(hash, count)
            for at in range(count):
                if at + AHEAD < count:
                    sh_prefetch(&self.slots[hash[at + AHEAD].upper % self.slot_count])
                if skip_bytes.data[at] or (self.shards > 1 and hash[at].lower % self.shards != self.shard):
                    continue
                slot = self.find(&hash[at])
                if not slot.next:
                    if self.used == self.max_keys:
                        has_room = False
                        break
                    self.used += 1
                    slot.hash = hash[at]
                if slot.next <= <uint64_t> offset[at]:
                    slot.next = <uint64_t> offset[at] + 1
        return has_room

    def superseded(self, hashes, offsets):
        """One byte for each: 1 if the same hash was put with a higher offset."""
        cdef Bytes hash_bytes = Bytes(hashes, 8)
        cdef Bytes offset_bytes = Bytes(offsets, 8)
        cdef const Hash* hash = <const Hash*> hash_bytes.data
        cdef const int64_t* offset = <const int64_t*> offset_bytes.data
        cdef Py_ssize_t count = counted(hash_bytes, offset_bytes)
        cdef Py_ssize_t at
        flags = PyBytes_FromStringAndSize(NULL, count)
        cdef uint8_t* flag = <uint8_t*> PyBytes_AS_STRING(flags)
        with nogil:
            self.prefetch_first(hash, count)
            for at in range(count):
                if at + AHEAD < count:
                    sh_prefetch(&self.slots[hash[at + AHEAD].upper % self.slot_count])
                flag[at] = self.find(&hash[at]).next > <uint64_t> offset[at] + 1
        return flags

    def newest_offsets(self):
        """The newest offset of each hash, in no order."""
        cdef uint64_t at
        for at in range(self.slot_count):
            if self.slots[at].next:
                yield self.slots[at].next - 1

    cdef inline void prefetch_first(self, const Hash* hash, Py_ssize_t count) noexcept nogil:
        cdef Py_ssize_t at
        for at in range(min(AHEAD, count)):
            sh_prefetch(&self.slots[hash[at].upper % self.slot_count])

    cdef inline Slot* find(self, const Hash* hash) noexcept nogil:
        """The slot that holds this hash, or the free one where it belongs."""
        cdef uint64_t at = hash.upper % self.slot_count
        cdef Slot* slot = &self.slots[at]
        while slot.next and (slot.hash.upper != hash.upper or slot.hash.lower != hash.lower):
            at += 1
            if at == self.slot_count:
                at = 0
            slot = &self.slots[at]
        return slot


cdef Py_ssize_t counted(Bytes hashes, Bytes offsets) except -1:
    cdef Py_ssize_t count = offsets.size // 8
    if hashes.size != count * <Py_ssize_t> sizeof(Hash):
        raise InvalidRequest(f"{hashes.size} bytes of hashes for {count} offsets", hint="give 16 bytes for each")
    return count


# Records.


cdef inline bint read_number(
    const uint8_t** at, const uint8_t* end, int last_shift, int last_most, int64_t* value
) noexcept nogil:
    """A zigzag varint. The byte that is shifted by ``last_shift`` is the last that it may have, of ``last_most``."""
    cdef const uint8_t* p = at[0]
    cdef uint64_t folded = 0
    cdef int shift = 0
    while p < end and shift <= last_shift:
        if shift == last_shift and p[0] > last_most:
            return False
        folded |= <uint64_t> (p[0] & 0x7F) << shift
        if p[0] < 0x80:
            at[0] = p + 1
            value[0] = <int64_t> (folded >> 1) ^ -<int64_t> (folded & 1)
            return True
        p += 1
        shift += 7
    return False


cdef inline bint read_varint(const uint8_t** at, const uint8_t* end, int64_t* value) noexcept nogil:
    return read_number(at, end, 28, 0x0F, value)


cdef inline bint read_varlong(const uint8_t** at, const uint8_t* end, int64_t* value) noexcept nogil:
    return read_number(at, end, 63, 0x01, value)


cdef inline uint8_t* write_varlong(uint8_t* to, int64_t value) noexcept nogil:
    cdef uint64_t folded = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    while folded > 0x7F:
        to[0] = <uint8_t> (folded & 0x7F) | 0x80
        folded >>= 7
        to += 1
    to[0] = <uint8_t> folded
    return to + 1


cdef Py_ssize_t keep(
    const uint8_t* p, const uint8_t* end, const uint8_t* kept, Py_ssize_t count, int64_t shift_ms, uint8_t* out
) noexcept nogil:
    """How many bytes were kept; -1 when a record cannot be read. Neighbours that stay as they are go in one copy."""
    cdef uint8_t* to = out
    cdef uint8_t* shifted
    cdef const uint8_t* run = p
    cdef const uint8_t* record
    cdef const uint8_t* rest
    cdef uint8_t delta[10]
    cdef int64_t length
    cdef int64_t delta_ms
    cdef Py_ssize_t at
    for at in range(count):
        record = p
        if not read_varint(&p, end, &length) or length < 1 or length > end - p:
            return -1
        rest = p + 1
        p += length
        if kept[at] and not shift_ms:
            continue
        if record > run:
            memcpy(to, run, record - run)
            to += record - run
        run = p
        if kept[at]:
            if not read_varlong(&rest, p, &delta_ms):
                return -1
            if delta_ms > INT64_MAX - shift_ms if shift_ms > 0 else delta_ms < INT64_MIN - shift_ms:
                return -1
            delta_ms += shift_ms
            shifted = write_varlong(delta, delta_ms)
            to = write_varlong(to, 1 + (shifted - delta) + (p - rest))
            to[0] = (p - length)[0]
            memcpy(to + 1, delta, shifted - delta)
            to += 1 + (shifted - delta)
            memcpy(to, rest, p - rest)
            to += p - rest
    if p > run:
        memcpy(to, run, p - run)
        to += p - run
    return to - out


def kept_records(body, kept, int64_t shift_ms):
    """The bytes of the records that stay, those with a 1 in ``kept``. ``shift_ms`` is added to their timestamp deltas.
    Raises CorruptBatch when a record cannot be read."""
    cdef Bytes source = Bytes(body)
    cdef Bytes flags = Bytes(kept)
    cdef Py_ssize_t size
    # A delta may grow from 1 byte to 10, and with it the length by 1.
    cdef Py_ssize_t room = source.size + (10 * flags.size if shift_ms else 0)
    out = PyByteArray_FromStringAndSize(NULL, room)
    cdef uint8_t* to = <uint8_t*> PyByteArray_AS_STRING(out)
    with nogil:
        size = keep(source.data, source.data + source.size, flags.data, flags.size, shift_ms, to)
    if size < 0:
        raise CorruptBatch("a record cannot be read")
    del out[size:]
    return out
