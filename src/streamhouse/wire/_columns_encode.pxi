"""Columns → records."""


cdef class BinaryIn:
    """A binary or string array. Its offsets are checked as they are read: they come from outside as well."""

    cdef View validity_view
    cdef View offsets_view
    cdef View data_view
    cdef const uint8_t* validity
    cdef const int32_t* offsets
    cdef const uint8_t* data
    cdef Py_ssize_t data_size
    cdef int64_t start
    cdef int64_t length

    def __init__(self, column):
        self.start = column.start
        self.length = column.length
        self.offsets_view = View(column.offsets)
        self.data_view = View(column.data)
        self.offsets = self.offsets_view.int32()
        self.data = self.data_view.data
        self.data_size = self.data_view.size
        self.validity = NULL
        check_extent(self.start, self.length, self.offsets_view.size // 4 - 1)
        if column.validity is not None:
            self.validity_view = View(column.validity)
            self.validity = self.validity_view.data
            check_extent(self.start, self.length, self.validity_view.size * 8)

    cdef inline bint get(self, int64_t row, const uint8_t** data, int64_t* length) noexcept nogil:
        """Length -1 is null. False when the offsets make no sense."""
        cdef int64_t at = self.start + row
        cdef int64_t begin
        cdef int64_t end
        if self.validity != NULL and not (self.validity[at >> 3] >> (at & 7)) & 1:
            length[0] = -1
            return True
        begin = self.offsets[at]
        end = self.offsets[at + 1]
        if begin < 0 or end < begin or end > self.data_size:
            return False
        data[0] = self.data + begin
        length[0] = end - begin
        return True


cdef class HeadersIn:
    """An array of lists of headers."""

    cdef View validity_view
    cdef View offsets_view
    cdef const uint8_t* validity
    cdef const int32_t* offsets
    cdef int64_t start
    cdef int64_t length
    cdef BinaryIn keys
    cdef BinaryIn values

    def __init__(self, column):
        self.start = column.start
        self.length = column.length
        self.offsets_view = View(column.offsets)
        self.offsets = self.offsets_view.int32()
        self.keys = BinaryIn(column.keys)
        self.values = BinaryIn(column.values)
        self.validity = NULL
        check_extent(self.start, self.length, self.offsets_view.size // 4 - 1)
        if column.validity is not None:
            self.validity_view = View(column.validity)
            self.validity = self.validity_view.data
            check_extent(self.start, self.length, self.validity_view.size * 8)

    cdef bint get(self, int64_t row, int64_t* begin, int64_t* end) noexcept nogil:
        cdef int64_t at = self.start + row
        if self.validity != NULL and not (self.validity[at >> 3] >> (at & 7)) & 1:
            begin[0] = end[0] = 0
            return True
        begin[0] = self.offsets[at]
        end[0] = self.offsets[at + 1]
        return 0 <= begin[0] <= end[0] <= self.keys.length and end[0] <= self.values.length


cdef int check_extent(int64_t start, int64_t length, int64_t available) except -1:
    if start < 0 or length < 0 or length > available - start:
        raise InvalidRequest(f"an array of {length} rows from {start} does not fit its buffers")
    return 0


cdef enum:
    BAD_OFFSETS = 1
    BAD_HEADERS = 2
    TOO_MANY_HEADERS = 3
    RECORD_TOO_LARGE = 4
    BAD_ROW = 5


cdef class Encoder:
    """Turns rows into the bodies of batches, as many rows to a body as the limits of ``encode`` allow."""

    cdef object allocate
    cdef BinaryIn key
    cdef BinaryIn value
    cdef HeadersIn headers
    cdef View timestamps_view
    cdef View rows_view
    cdef const int64_t* timestamps
    cdef const int32_t* rows
    cdef int64_t source_rows
    cdef int64_t row_count
    cdef int64_t next
    cdef Py_ssize_t max_body_bytes

    def __init__(self, key, value, timestamps, headers=None, *, allocate, rows=None, Py_ssize_t max_body_bytes):
        self.allocate = allocate
        self.key = None if key is None else BinaryIn(key)
        self.value = None if value is None else BinaryIn(value)
        self.headers = None if headers is None else HeadersIn(headers)
        self.timestamps_view = View(timestamps)
        self.timestamps = self.timestamps_view.int64()
        self.source_rows = self.timestamps_view.size // 8
        for column in (self.key, self.value):
            if column is not None and (<BinaryIn> column).length != self.source_rows:
                raise InvalidRequest("columns of different lengths")
        if self.headers is not None and self.headers.length != self.source_rows:
            raise InvalidRequest("columns of different lengths")
        self.rows = NULL
        self.row_count = self.source_rows
        if rows is not None:
            self.rows_view = View(rows)
            self.rows = self.rows_view.int32()
            self.row_count = self.rows_view.size // 4
        self.next = 0
        self.max_body_bytes = max_body_bytes

    def encode(self, *, int64_t max_records, Py_ssize_t target_bytes):
        """The next body, or None when all rows are done. One record larger than the target makes a body alone."""
        cdef Chunk out
        cdef int64_t first = self.next
        cdef int64_t base_timestamp = 0
        cdef int64_t max_timestamp = 0
        cdef int outcome
        if self.next >= self.row_count:
            return None
        out = Chunk(self.allocate)
        with nogil:
            outcome = self.fill(out, max_records, target_bytes, &base_timestamp, &max_timestamp)
        if outcome == OUT_OF_MEMORY:
            raise MemoryError
        if outcome == RECORD_TOO_LARGE:
            raise LimitExceeded(f"row {self.next}: a record is over the limit of {self.max_body_bytes} bytes")
        if outcome == TOO_MANY_HEADERS:
            raise LimitExceeded(f"row {self.next}: over the limit of {MAX_HEADERS} headers a record")
        if outcome == BAD_HEADERS:
            raise InvalidRequest(f"row {self.next}: a header key is null")
        if outcome == BAD_ROW:
            raise InvalidRequest(f"row {self.next}: selects a row that is not there")
        if outcome != FINE:
            raise InvalidRequest(f"row {self.next}: the offsets of an array make no sense")
        return EncodedBody(out.seal(), self.next - first, base_timestamp, max_timestamp)

    cdef int fill(
        self, Chunk out, int64_t max_records, Py_ssize_t target_bytes, int64_t* base_timestamp, int64_t* max_timestamp
    ) noexcept nogil:
        cdef const uint8_t* key = NULL
        cdef const uint8_t* value = NULL
        cdef int64_t key_length = -1
        cdef int64_t value_length = -1
        cdef int64_t header_begin = 0
        cdef int64_t header_end = 0
        cdef int64_t headers_size
        cdef int64_t timestamp_delta
        cdef int64_t size
        cdef int64_t row
        cdef int64_t count = 0
        cdef int outcome
        cdef uint8_t* to
        while self.next < self.row_count and count < max_records:
            row = self.next if self.rows == NULL else self.rows[self.next]
            if row < 0 or row >= self.source_rows:
                return BAD_ROW
            if count == 0:
                base_timestamp[0] = max_timestamp[0] = self.timestamps[row]
            if sh_sub_overflow(self.timestamps[row], base_timestamp[0], &timestamp_delta):
                break  # too far apart for one batch: the row starts the next
            if self.key is not None and not self.key.get(row, &key, &key_length):
                return BAD_OFFSETS
            if self.value is not None and not self.value.get(row, &value, &value_length):
                return BAD_OFFSETS
            size = 1 + varint_size(timestamp_delta) + varint_size(count)
            size += varint_size(key_length) + (key_length if key_length > 0 else 0)
            size += varint_size(value_length) + (value_length if value_length > 0 else 0)
            if self.headers is not None:
                outcome = self.measure_headers(row, &header_begin, &header_end, &headers_size)
                if outcome != FINE:
                    return outcome
                size += headers_size
            size += varint_size(header_end - header_begin)
            if count and out.size + size + varint_size(size) > target_bytes:
                break
            if out.size + size + varint_size(size) > self.max_body_bytes:
                return RECORD_TOO_LARGE
            if not out.room(size + 10):
                return OUT_OF_MEMORY
            to = write_varint(out.data + out.size, size)
            to[0] = 0
            to = write_varint(to + 1, timestamp_delta)
            to = write_varint(to, count)
            to = write_field(to, key, key_length, 0 if self.key is None else self.key.data + self.key.data_size - key)
            to = write_field(
                to, value, value_length, 0 if self.value is None else self.value.data + self.value.data_size - value
            )
            to = write_varint(to, header_end - header_begin)
            if header_end > header_begin:
                to = self.write_headers(to, header_begin, header_end)
            out.size = to - out.data
            if self.timestamps[row] > max_timestamp[0]:
                max_timestamp[0] = self.timestamps[row]
            count += 1
            self.next += 1
        return FINE

    cdef int measure_headers(self, int64_t row, int64_t* begin, int64_t* end, int64_t* size) noexcept nogil:
        cdef const uint8_t* data
        cdef int64_t length
        cdef int64_t entry
        size[0] = 0
        if not self.headers.get(row, begin, end):
            return BAD_OFFSETS
        if end[0] - begin[0] > MAX_HEADERS:
            return TOO_MANY_HEADERS
        for entry in range(begin[0], end[0]):
            if not self.headers.keys.get(entry, &data, &length):
                return BAD_OFFSETS
            if length < 0:
                return BAD_HEADERS
            size[0] += varint_size(length) + length
            if not self.headers.values.get(entry, &data, &length):
                return BAD_OFFSETS
            size[0] += varint_size(length) + (length if length > 0 else 0)
        return FINE

    cdef uint8_t* write_headers(self, uint8_t* to, int64_t begin, int64_t end) noexcept nogil:
        cdef const uint8_t* data = NULL
        cdef int64_t length = -1
        cdef int64_t entry
        for entry in range(begin, end):
            self.headers.keys.get(entry, &data, &length)
            to = write_field(to, data, length, 0)
            self.headers.values.get(entry, &data, &length)
            to = write_field(to, data, length, 0)
        return to


cdef inline uint8_t* write_field(
    uint8_t* to, const uint8_t* data, int64_t length, Py_ssize_t readable
) noexcept nogil:
    to = write_varint(to, length)
    if length > 0:
        copy_small(to, data, length, readable)
        to += length
    return to
