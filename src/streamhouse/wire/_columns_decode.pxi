"""Records → columns."""


cdef struct Loop:
    int64_t record_count
    int64_t base_offset
    int64_t from_offset
    int64_t to_offset
    int32_t last_offset_delta
    bint log_append
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t timestamp_scale
    int64_t row
    int64_t failed_at
    int64_t* offsets
    int64_t* timestamps
    bint want_key
    bint want_value
    BinarySink key
    BinarySink value


cdef int read_headers(const uint8_t** at, const uint8_t* end, int32_t count, HeaderOut out) noexcept nogil:
    """Check ``count`` headers, and append them to ``out`` unless that is None."""
    cdef const uint8_t* p = at[0]
    cdef const uint8_t* key
    cdef int32_t key_length
    cdef int32_t length
    cdef int32_t index
    cdef int outcome
    for index in range(count):
        if not read_varint(&p, end, &key_length):
            return VARINT
        if key_length < 0 or key_length > end - p:
            return HEADER_KEY_LENGTH
        key = p
        p += key_length
        if not read_varint(&p, end, &length):
            return VARINT
        if length < -1 or length > end - p:
            return HEADER_VALUE_LENGTH
        if out is not None:
            outcome = out.put(key, key_length, p, length)
            if outcome != FINE:
                return outcome
        if length > 0:
            p += length
    at[0] = p
    return FINE


cdef int decode_body(Loop* loop, const uint8_t* p, const uint8_t* end, HeaderOut headers) noexcept nogil:
    cdef const uint8_t* record_end
    cdef const uint8_t* first_header
    cdef const uint8_t* key
    cdef const uint8_t* value
    cdef int64_t timestamp
    cdef int64_t offset
    cdef int64_t index
    cdef int32_t length
    cdef int32_t offset_delta
    cdef int32_t previous_delta = -1
    cdef int32_t key_length
    cdef int32_t value_length
    cdef int32_t header_count
    cdef int outcome
    # Locals, because a store through a column's pointer could, for all the compiler knows, change the struct.
    cdef int64_t row = loop.row
    cdef BinarySink key_sink = loop.key
    cdef BinarySink value_sink = loop.value
    cdef int64_t* offsets = loop.offsets
    cdef int64_t* timestamps = loop.timestamps
    cdef int64_t base_offset = loop.base_offset
    cdef int64_t from_offset = loop.from_offset
    cdef int64_t to_offset = loop.to_offset
    cdef int64_t base_timestamp = loop.base_timestamp
    cdef int64_t timestamp_scale = loop.timestamp_scale
    cdef int32_t last_offset_delta = loop.last_offset_delta
    cdef bint log_append = loop.log_append
    cdef bint want_key = loop.want_key
    cdef bint want_value = loop.want_value

    for index in range(loop.record_count):
        loop.failed_at = index
        if not read_varint(&p, end, &length):
            return VARINT
        if length < 0 or length > end - p:
            return RECORD_LENGTH
        if length == 0:
            return RECORD_CUT
        record_end = p + length
        p += 1
        if not read_varlong(&p, record_end, &timestamp):
            return VARINT
        if not read_varint(&p, record_end, &offset_delta):
            return VARINT
        if offset_delta <= previous_delta or offset_delta > last_offset_delta:
            return OFFSET_DELTA
        previous_delta = offset_delta
        if log_append:
            timestamp = loop.max_timestamp
        elif sh_add_overflow(base_timestamp, timestamp, &timestamp):
            return TIMESTAMP
        if not read_varint(&p, record_end, &key_length):
            return VARINT
        if key_length < -1 or key_length > record_end - p:
            return KEY_LENGTH
        key = p
        if key_length > 0:
            p += key_length
        if not read_varint(&p, record_end, &value_length):
            return VARINT
        if value_length < -1 or value_length > record_end - p:
            return VALUE_LENGTH
        value = p
        if value_length > 0:
            p += value_length
        if not read_varint(&p, record_end, &header_count):
            return VARINT
        if header_count < 0 or header_count > MAX_HEADERS or header_count > (record_end - p) // 2:
            return HEADER_COUNT
        first_header = p
        if header_count:
            outcome = read_headers(&p, record_end, header_count, None)
            if outcome != FINE:
                return outcome
        if p != record_end:
            return RECORD_TRAILING
        offset = base_offset + offset_delta
        if offset < from_offset or offset >= to_offset:
            continue
        if sh_mul_overflow(timestamp, timestamp_scale, &timestamp):
            return TIMESTAMP
        if offsets != NULL:
            offsets[row] = offset
        if timestamps != NULL:
            timestamps[row] = timestamp
        if want_key:
            put_binary(&key_sink, row, key, key_length, end - key)
        if want_value:
            put_binary(&value_sink, row, value, value_length, end - value)
        if headers is not None:
            outcome = read_headers(&first_header, record_end, header_count, headers)
            if outcome != FINE:
                return outcome
            headers.end_row(row, header_count)
        row += 1
    loop.failed_at = loop.record_count
    if p != end:
        return BATCH_TRAILING
    loop.row = row
    loop.key = key_sink
    loop.value = value_sink
    return FINE


cdef class Decoder:
    """Builds the wanted columns, one batch after another. After a refusal it must not be used again."""

    cdef int64_t rows
    cdef int64_t timestamp_scale
    cdef int64_t max_column_bytes
    cdef Chunk partitions
    cdef Chunk offsets
    cdef Chunk timestamps
    cdef Chunk timestamp_types
    cdef BinaryOut key
    cdef BinaryOut value
    cdef HeaderOut headers

    def __init__(
        self, wanted, *, allocate, int64_t timestamp_scale=1, int64_t max_column_bytes=INT32_LIMIT,
        int64_t row_hint=0, int64_t value_bytes_hint=0,
    ):
        if not 0 <= max_column_bytes <= INT32_LIMIT:
            raise ValueError("Arrow's binary columns hold at most 2**31 - 1 bytes")
        self.rows = 0
        self.timestamp_scale = timestamp_scale
        self.max_column_bytes = max_column_bytes
        self.partitions = Chunk(allocate) if "partition" in wanted else None
        self.offsets = Chunk(allocate) if "offset" in wanted else None
        self.timestamps = Chunk(allocate) if "timestamp" in wanted else None
        self.timestamp_types = Chunk(allocate) if "timestamp_type" in wanted else None
        self.key = BinaryOut(allocate) if "key" in wanted else None
        self.value = BinaryOut(allocate) if "value" in wanted else None
        self.headers = HeaderOut(allocate, max_column_bytes) if "headers" in wanted else None
        self.make_room(row_hint, value_bytes_hint)

    cdef int make_room(self, int64_t rows, int64_t value_bytes) except -1:
        """Reserve for ``rows`` more, so that the loop over a body need not ask."""
        cdef bint fits = True
        if self.partitions is not None:
            fits = fits and self.partitions.room(rows * 4)
        if self.offsets is not None:
            fits = fits and self.offsets.room(rows * 8)
        if self.timestamps is not None:
            fits = fits and self.timestamps.room(rows * 8)
        if self.timestamp_types is not None:
            fits = fits and self.timestamp_types.room(rows * 4)
        if self.key is not None:
            fits = fits and self.key.room(self.rows, rows, 0)
        if self.value is not None:
            fits = fits and self.value.room(self.rows, rows, value_bytes)
        if self.headers is not None:
            fits = fits and self.headers.begin(self.rows, rows)
        if not fits:
            raise MemoryError
        return 0

    @property
    def row_count(self):
        return self.rows

    @property
    def data_bytes(self):
        """Bytes of keys, values and headers so far."""
        cdef int64_t total = 0
        if self.key is not None:
            total += self.key.data.size
        if self.value is not None:
            total += self.value.data.size
        if self.headers is not None:
            total += self.headers.keys.data.size + self.headers.values.data.size
        return total

    def add(
        self, body, header, *, Py_ssize_t pos, int32_t partition, int64_t base_offset, int64_t from_offset,
        int64_t to_offset,
    ):
        """Append the records of an inflated batch that lie in [from_offset, to_offset). Raises CorruptBatch."""
        cdef View view = View(body)
        cdef Loop loop
        cdef int64_t last_offset
        cdef int outcome
        memset(&loop, 0, sizeof(Loop))
        loop.record_count = header.record_count
        loop.base_offset = base_offset
        loop.from_offset = from_offset
        loop.to_offset = to_offset
        loop.last_offset_delta = header.last_offset_delta
        loop.log_append = (header.attributes & LOG_APPEND_TIME) != 0
        loop.base_timestamp = header.base_timestamp
        loop.max_timestamp = header.max_timestamp
        loop.timestamp_scale = self.timestamp_scale
        loop.row = self.rows
        if sh_add_overflow(base_offset, loop.last_offset_delta, &last_offset):
            raise InvalidRequest(f"base offset {base_offset} leaves no room for the batch")
        self.reserve(&loop, view.size)
        with nogil:
            outcome = decode_body(&loop, view.data, view.data + view.size, self.headers)
        if outcome == OUT_OF_MEMORY:
            raise MemoryError
        if outcome == COLUMN_FULL:
            raise self.column_full()
        if outcome != FINE:
            raise corrupt_record(pos, loop.failed_at, _RecordFault(outcome))
        self.settle(&loop, partition, loop.log_append)

    cdef object column_full(self):
        return LimitExceeded(
            f"a column would pass {self.max_column_bytes} bytes", hint="decode fewer batches at a time"
        )

    cdef int reserve(self, Loop* loop, Py_ssize_t body_bytes) except -1:
        cdef int64_t more_rows = body_bytes // MIN_RECORD + 1
        cdef int64_t fullest = 0
        if loop.record_count < more_rows:
            more_rows = loop.record_count
        if self.key is not None:
            fullest = max(fullest, self.key.data.size)
        if self.value is not None:
            fullest = max(fullest, self.value.data.size)
        if self.headers is not None:
            fullest = max(fullest, self.headers.keys.data.size, self.headers.values.data.size, self.headers.entries)
        if fullest + body_bytes > self.max_column_bytes:
            raise self.column_full()
        self.make_room(more_rows, body_bytes)
        if self.key is not None and not self.key.data.room(body_bytes):
            raise MemoryError
        loop.want_key = self.key is not None
        if loop.want_key:
            self.key.lend(&loop.key)
        loop.want_value = self.value is not None
        if loop.want_value:
            self.value.lend(&loop.value)
        loop.offsets = NULL if self.offsets is None else <int64_t*> self.offsets.data
        loop.timestamps = NULL if self.timestamps is None else <int64_t*> self.timestamps.data
        return 0

    cdef int settle(self, Loop* loop, int32_t partition, int32_t timestamp_type) except -1:
        cdef int64_t row
        if self.partitions is not None:
            for row in range(self.rows, loop.row):
                (<int32_t*> self.partitions.data)[row] = partition
            self.partitions.size = loop.row * 4
        if self.timestamp_types is not None:
            for row in range(self.rows, loop.row):
                (<int32_t*> self.timestamp_types.data)[row] = timestamp_type
            self.timestamp_types.size = loop.row * 4
        if self.offsets is not None:
            self.offsets.size = loop.row * 8
        if self.timestamps is not None:
            self.timestamps.size = loop.row * 8
        if self.key is not None:
            self.key.settle(&loop.key, loop.row)
        if self.value is not None:
            self.value.settle(&loop.value, loop.row)
        if self.headers is not None:
            self.headers.settle(loop.row)
        self.rows = loop.row
        return 0

    def finish(self):
        """Hand the columns over and leave the decoder empty of them."""
        buffers = DecodedBuffers(
            self.rows,
            None if self.partitions is None else self.partitions.seal(),
            None if self.offsets is None else self.offsets.seal(),
            None if self.timestamps is None else self.timestamps.seal(),
            None if self.timestamp_types is None else self.timestamp_types.seal(),
            None if self.key is None else self.key.finish(),
            None if self.value is None else self.value.finish(),
            None if self.headers is None else self.headers.finish(),
        )
        self.partitions = self.offsets = self.timestamps = self.timestamp_types = None
        self.key = self.value = None
        self.headers = None
        return buffers
