"""Columns under construction: where decoded fields go."""


cdef struct BinarySink:
    int32_t* offsets
    uint8_t* data
    uint8_t* bits
    int64_t used
    int64_t nulls


cdef inline void put_bit(uint8_t* bits, int64_t row, bint value) noexcept nogil:
    """Rows are written in order, so the first bit of a byte also clears the other seven."""
    if (row & 7) == 0:
        bits[row >> 3] = value
    else:
        bits[row >> 3] |= <uint8_t> (value << (row & 7))


cdef inline void put_binary(
    BinarySink* sink, int64_t row, const uint8_t* source, int32_t length, Py_ssize_t readable
) noexcept nogil:
    if length >= 0:
        copy_small(sink.data + sink.used, source, length, readable)
        sink.used += length
    else:
        sink.nulls += 1
    put_bit(sink.bits, row, length >= 0)
    sink.offsets[row + 1] = <int32_t> sink.used


cdef class BinaryOut:
    """A binary column under construction."""

    cdef Chunk offsets
    cdef Chunk data
    cdef Chunk bits
    cdef int64_t nulls

    def __cinit__(self, allocate):
        self.offsets = Chunk(allocate)
        self.data = Chunk(allocate)
        self.bits = Chunk(allocate)
        self.nulls = 0
        if not self.offsets.room(4):
            raise MemoryError
        (<int32_t*> self.offsets.data)[0] = 0
        self.offsets.size = 4

    cdef bint room(self, int64_t rows, int64_t more_rows, Py_ssize_t more_bytes) noexcept nogil:
        self.bits.size = (rows + 7) >> 3
        return self.offsets.room(more_rows * 4) and self.data.room(more_bytes) and self.bits.room((more_rows >> 3) + 1)

    cdef void lend(self, BinarySink* sink) noexcept nogil:
        sink.offsets = <int32_t*> self.offsets.data
        sink.data = self.data.data
        sink.bits = self.bits.data
        sink.used = self.data.size
        sink.nulls = self.nulls

    cdef void settle(self, BinarySink* sink, int64_t rows) noexcept nogil:
        self.data.size = sink.used
        self.nulls = sink.nulls
        self.offsets.size = (rows + 1) * 4
        self.bits.size = (rows + 7) >> 3

    cdef object finish(self):
        return BinaryBuffers(
            self.bits.seal() if self.nulls else None, self.offsets.seal(), self.data.seal(), self.nulls
        )


cdef class HeaderOut:
    """The headers column under construction. Headers are rare, so here room is made record by record."""

    cdef Chunk list_offsets
    cdef Chunk list_bits
    cdef int64_t list_nulls
    cdef int64_t entries
    cdef int64_t max_column_bytes
    cdef BinaryOut keys
    cdef BinaryOut values

    def __cinit__(self, allocate, int64_t max_column_bytes):
        self.list_offsets = Chunk(allocate)
        self.list_bits = Chunk(allocate)
        self.list_nulls = 0
        self.entries = 0
        self.max_column_bytes = max_column_bytes
        self.keys = BinaryOut(allocate)
        self.values = BinaryOut(allocate)
        if not self.list_offsets.room(4):
            raise MemoryError
        (<int32_t*> self.list_offsets.data)[0] = 0
        self.list_offsets.size = 4

    cdef bint begin(self, int64_t rows, int64_t more_rows) noexcept nogil:
        self.list_bits.size = (rows + 7) >> 3
        return self.list_offsets.room(more_rows * 4) and self.list_bits.room((more_rows >> 3) + 1)

    cdef void end_row(self, int64_t row, int32_t count) noexcept nogil:
        (<int32_t*> self.list_offsets.data)[row + 1] = <int32_t> self.entries
        put_bit(self.list_bits.data, row, count > 0)
        self.list_nulls += count == 0

    cdef void settle(self, int64_t rows) noexcept nogil:
        self.list_offsets.size = (rows + 1) * 4
        self.list_bits.size = (rows + 7) >> 3

    cdef int put(
        self, const uint8_t* key, int32_t key_length, const uint8_t* value, int32_t value_length
    ) noexcept nogil:
        cdef BinarySink sink
        if not is_utf8(key, key_length):
            return self.put_replaced(key, key_length, value, value_length)
        if self.keys.data.size + key_length > self.max_column_bytes:
            return COLUMN_FULL
        if not self.keys.room(self.entries, 1, key_length):
            return OUT_OF_MEMORY
        self.keys.lend(&sink)
        put_binary(&sink, self.entries, key, key_length, 0)
        self.keys.settle(&sink, self.entries + 1)
        return self.put_value(value, value_length)

    cdef int put_replaced(
        self, const uint8_t* key, int32_t key_length, const uint8_t* value, int32_t value_length
    ) noexcept with gil:
        """A key that is not UTF-8, with U+FFFD for what is not: up to three times as long."""
        cdef bytes text
        cdef BinarySink sink
        try:
            text = PyUnicode_DecodeUTF8(<char*> key, key_length, b"replace").encode("utf-8")
        except MemoryError:
            return OUT_OF_MEMORY
        if self.keys.data.size + len(text) > self.max_column_bytes:
            return COLUMN_FULL
        if not self.keys.room(self.entries, 1, len(text)):
            return OUT_OF_MEMORY
        self.keys.lend(&sink)
        put_binary(&sink, self.entries, <const uint8_t*> <char*> text, <int32_t> len(text), 0)
        self.keys.settle(&sink, self.entries + 1)
        return self.put_value(value, value_length)

    cdef int put_value(self, const uint8_t* value, int32_t value_length) noexcept nogil:
        cdef BinarySink sink
        if not self.values.room(self.entries, 1, value_length if value_length > 0 else 0):
            return OUT_OF_MEMORY
        self.values.lend(&sink)
        put_binary(&sink, self.entries, value, value_length, 0)
        self.values.settle(&sink, self.entries + 1)
        self.entries += 1
        return FINE

    cdef object finish(self):
        return HeaderBuffers(
            self.list_bits.seal() if self.list_nulls else None,
            self.list_offsets.seal(),
            self.list_nulls,
            self.entries,
            self.keys.finish(),
            self.values.finish(),
        )
