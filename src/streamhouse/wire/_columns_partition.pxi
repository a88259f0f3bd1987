"""Rows → partitions."""


cdef inline uint32_t murmur2(const uint8_t* p, int64_t length) noexcept nogil:
    cdef uint32_t state = 0x9747B28Cu ^ <uint32_t> length
    cdef uint32_t word
    cdef const uint8_t* end = p + (length & ~3)
    cdef int left = length & 3
    while p < end:
        word = p[0] | <uint32_t> p[1] << 8 | <uint32_t> p[2] << 16 | <uint32_t> p[3] << 24
        word *= 0x5BD1E995u
        word ^= word >> 24
        state = (state * 0x5BD1E995u) ^ (word * 0x5BD1E995u)
        p += 4
    if left:
        if left == 3:
            state ^= <uint32_t> p[2] << 16
        if left >= 2:
            state ^= <uint32_t> p[1] << 8
        state = (state ^ p[0]) * 0x5BD1E995u
    state ^= state >> 13
    state *= 0x5BD1E995u
    return state ^ (state >> 15)


def murmur2_partitions(keys, int32_t partition_count, *, allocate):
    """The partition of each key, as int32; a null key gets -1."""
    cdef BinaryIn column = BinaryIn(keys)
    cdef Chunk out = Chunk(allocate)
    cdef const uint8_t* data = NULL
    cdef int64_t length = 0
    cdef int64_t row
    cdef bint sane = True
    if partition_count < 1:
        raise InvalidRequest(f"a topic has at least 1 partition, not {partition_count}")
    if not out.room(column.length * 4):
        raise MemoryError
    with nogil:
        for row in range(column.length):
            if not column.get(row, &data, &length):
                sane = False
                break
            (<int32_t*> out.data)[row] = (
                -1 if length < 0 else <int32_t> ((murmur2(data, length) & 0x7FFFFFFF) % <uint32_t> partition_count)
            )
    if not sane:
        raise InvalidRequest(f"row {row}: the offsets of an array make no sense")
    out.size = column.length * 4
    return out.seal()


def group_rows(partitions, int32_t partition_count, *, allocate):
    """Row numbers (int32) ordered by partition, in their old order within each, and where each partition begins.

    ``partitions`` holds int32 numbers below ``partition_count``; the list has ``partition_count + 1`` entries.
    """
    cdef View view = View(partitions)
    cdef const int32_t* numbers = view.int32()
    cdef int64_t rows = view.size // 4
    cdef Chunk starts = Chunk(allocate)
    cdef Chunk out = Chunk(allocate)
    cdef int64_t* start
    cdef int64_t row
    cdef int64_t bad = -1
    if rows > INT32_LIMIT:
        raise LimitExceeded(f"{rows} rows are too many to group at once")
    if partition_count < 1:
        raise InvalidRequest(f"a topic has at least 1 partition, not {partition_count}")
    if not starts.room((<int64_t> partition_count + 1) * 8) or not out.room(rows * 4):
        raise MemoryError
    start = <int64_t*> starts.data
    with nogil:
        for row in range(<int64_t> partition_count + 1):
            start[row] = 0
        for row in range(rows):
            if numbers[row] < 0 or numbers[row] >= partition_count:
                bad = row
                break
            start[numbers[row] + 1] += 1
    if bad >= 0:
        raise InvalidRequest(f"row {bad}: there is no partition {numbers[bad]} of {partition_count}")
    for row in range(partition_count):
        start[row + 1] += start[row]
    begins = [start[row] for row in range(<int64_t> partition_count + 1)]
    with nogil:
        for row in range(rows):
            (<int32_t*> out.data)[start[numbers[row]]] = <int32_t> row
            start[numbers[row]] += 1
    out.size = rows * 4
    return out.seal(), begins
