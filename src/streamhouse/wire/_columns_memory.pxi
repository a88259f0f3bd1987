"""Memory and numbers: buffers that grow, buffers that are borrowed, varints in both directions, UTF-8."""


cdef class Chunk:
    """Bytes that grow while a column is built and are read-only, through the buffer protocol, afterwards.

    The memory comes from the caller's allocator: Arrow's pool keeps pages warm, where malloc above 32 MiB maps fresh
    ones each time and spends more on page faults than the decoding takes.
    """

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef object allocate
    cdef Py_buffer buffer
    cdef bint held
    cdef bint sealed

    def __cinit__(self, allocate):
        self.data = NULL
        self.size = 0
        self.capacity = 0
        self.allocate = allocate
        self.held = False
        self.sealed = False
        if not self.grow(SLACK):
            raise MemoryError

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)

    cdef inline bint room(self, Py_ssize_t extra) noexcept nogil:
        """Make sure that ``extra`` bytes and the slack fit after ``size``; False when there is no memory."""
        return self.size + extra + SLACK <= self.capacity or self.grow(self.size + extra + SLACK)

    cdef bint grow(self, Py_ssize_t needed) noexcept with gil:
        cdef Py_buffer bigger
        if self.sealed:
            return False
        if needed < self.capacity * 2:
            needed = self.capacity * 2
        try:
            PyObject_GetBuffer(self.allocate(needed), &bigger, PyBUF_WRITABLE)
        except MemoryError:
            return False
        if self.held:
            memcpy(bigger.buf, self.data, self.size)
            PyBuffer_Release(&self.buffer)
        self.buffer = bigger
        self.held = True
        self.data = <uint8_t*> bigger.buf
        self.capacity = bigger.len
        return self.capacity >= needed

    cdef Chunk seal(self):
        """Forbid further growth, and move to less memory if most of what was reserved stayed empty."""
        cdef Chunk smaller
        if self.capacity > 65536 and self.size < self.capacity // 2:
            smaller = Chunk(self.allocate)
            if not smaller.room(self.size):
                raise MemoryError
            memcpy(smaller.data, self.data, self.size)
            smaller.size = self.size
            smaller.sealed = True
            return smaller
        self.sealed = True
        return self

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        if not self.sealed:
            raise BufferError("a column under construction cannot be read")
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef class View:
    """The bytes of another object, held for as long as this object lives."""

    cdef Py_buffer buffer
    cdef bint held
    cdef const uint8_t* data
    cdef Py_ssize_t size

    def __cinit__(self, object source):
        self.held = False
        PyObject_GetBuffer(source, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.data = <const uint8_t*> self.buffer.buf
        self.size = self.buffer.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)

    cdef const int32_t* int32(self) except? NULL:
        self.check_alignment(4)
        return <const int32_t*> self.data

    cdef const int64_t* int64(self) except? NULL:
        self.check_alignment(8)
        return <const int64_t*> self.data

    cdef int check_alignment(self, size_t width) except -1:
        """The compiler may use instructions that fault on numbers at odd addresses."""
        if <size_t> self.data % width:
            raise InvalidRequest(f"a buffer of {width}-byte numbers is not aligned", hint="copy the array first")
        return 0


cdef inline void copy_small(uint8_t* to, const uint8_t* source, Py_ssize_t length, Py_ssize_t readable) noexcept nogil:
    """memcpy that spends no call on short fields. ``to`` has SLACK bytes to spare; ``source`` has ``readable``."""
    cdef Py_ssize_t at
    if length <= 64 and readable >= 64:
        memcpy(to, source, 16)
        at = 16
        while at < length:
            memcpy(to + at, source + at, 16)
            at += 16
    else:
        memcpy(to, source, length)


cdef inline bint read_varint(const uint8_t** at, const uint8_t* end, int32_t* value) noexcept nogil:
    cdef const uint8_t* p = at[0]
    cdef uint32_t folded
    cdef uint32_t byte
    cdef int shift
    if sh_likely(p < end and p[0] < 0x80):
        folded = p[0]
        at[0] = p + 1
        value[0] = <int32_t> (folded >> 1) ^ -<int32_t> (folded & 1)
        return True
    folded = 0
    shift = 0
    while p < end and shift < 35:
        byte = p[0]
        p += 1
        if shift == 28 and byte > 0x0F:
            return False
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:
            at[0] = p
            value[0] = <int32_t> (folded >> 1) ^ -<int32_t> (folded & 1)
            return True
        shift += 7
    return False


cdef inline bint read_varlong(const uint8_t** at, const uint8_t* end, int64_t* value) noexcept nogil:
    cdef const uint8_t* p = at[0]
    cdef uint64_t folded
    cdef uint64_t byte
    cdef int shift
    if sh_likely(p < end and p[0] < 0x80):
        folded = p[0]
        at[0] = p + 1
        value[0] = <int64_t> (folded >> 1) ^ -<int64_t> (folded & 1)
        return True
    folded = 0
    shift = 0
    while p < end and shift < 70:
        byte = p[0]
        p += 1
        if shift == 63 and byte > 0x01:
            return False
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:
            at[0] = p
            value[0] = <int64_t> (folded >> 1) ^ -<int64_t> (folded & 1)
            return True
        shift += 7
    return False


cdef inline uint64_t fold(int64_t value) noexcept nogil:
    return (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)


cdef inline int varint_size(int64_t value) noexcept nogil:
    return (sh_bit_length(fold(value) | 1) + 6) // 7


cdef inline uint8_t* write_varint(uint8_t* to, int64_t value) noexcept nogil:
    cdef uint64_t folded = fold(value)
    while folded > 0x7F:
        to[0] = <uint8_t> (folded & 0x7F) | 0x80
        folded >>= 7
        to += 1
    to[0] = <uint8_t> folded
    return to + 1


cdef bint is_utf8(const uint8_t* p, Py_ssize_t length) noexcept nogil:
    """Strict UTF-8 as Python and Arrow mean it: no overlong forms, no surrogates, nothing above U+10FFFF."""
    cdef const uint8_t* end = p + length
    cdef uint8_t lead
    cdef uint8_t low
    cdef uint8_t high
    cdef int more
    while p < end:
        lead = p[0]
        p += 1
        if lead < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - p < more:
            return False
        while more:
            if p[0] < low or p[0] > high:
                return False
            low, high = 0x80, 0xBF
            p += 1
            more -= 1
    return True
