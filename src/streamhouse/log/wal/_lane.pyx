# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""Frames on their way into one file, written and synced by a thread that needs no interpreter lock for it.

The event loop adds frames and collects what was synced; a thread is inside ``run`` all the while. In Python that thread
would wait for the interpreter after every system call, behind whatever the loop and the flushes are doing just then.

Who may touch what:
  * ``queued`` and the counters only under the lock;
  * ``taken`` only inside ``run``; the two arrays change places under the lock;
  * ``pins``, which keep the buffers alive and where they are, only with the interpreter lock: ``add`` and ``collect``.
A failed write or sync ends ``run`` for good (R11): nothing is tried again.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, nanosleep, timespec

from streamhouse.core.limits import MAX_WAL_IOVECS as _MAX_WAL_IOVECS

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_destroy(pthread_mutex_t *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    int pthread_cond_init(pthread_cond_t *, void *)
    int pthread_cond_destroy(pthread_cond_t *)
    int pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *)
    int pthread_cond_signal(pthread_cond_t *)

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t pwritev(int fd, const iovec *iov, int iovcnt, int64_t offset)

cdef extern from "unistd.h" nogil:
    int fdatasync(int fd)
    ssize_t write(int fd, const void *buf, size_t count)

cdef int MAX_IOVECS = _MAX_WAL_IOVECS
cdef size_t FIRST_ROOM = 256


cdef class Lane:
    cdef pthread_mutex_t lock
    cdef pthread_cond_t changed
    cdef iovec *queued
    cdef iovec *taken
    cdef size_t queued_count
    cdef size_t queued_room
    cdef size_t taken_room
    cdef bint waits
    cdef bint due  # some queued frame must be written now
    cdef bint leaving
    cdef bint dropped
    cdef int64_t position  # of the next byte to be written
    cdef int64_t queued_lsn
    cdef int64_t synced_lsn
    cdef uint64_t synced_buffers
    cdef uint64_t syncs
    cdef double sync_seconds
    cdef double longest_seconds
    cdef Py_buffer *pins
    cdef size_t pin_count
    cdef size_t pin_room
    cdef uint64_t released  # buffers so far

    def __cinit__(self):
        pthread_mutex_init(&self.lock, NULL)
        pthread_cond_init(&self.changed, NULL)
        self.position = -1
        self.queued = <iovec *> malloc(FIRST_ROOM * sizeof(iovec))
        self.taken = <iovec *> malloc(FIRST_ROOM * sizeof(iovec))
        self.pins = <Py_buffer *> malloc(FIRST_ROOM * sizeof(Py_buffer))
        if self.queued == NULL or self.taken == NULL or self.pins == NULL:
            raise MemoryError
        self.queued_room = self.taken_room = self.pin_room = FIRST_ROOM

    def __dealloc__(self):
        cdef size_t index
        for index in range(self.pin_count):
            PyBuffer_Release(&self.pins[index])
        free(self.pins)
        free(self.queued)
        free(self.taken)
        pthread_cond_destroy(&self.changed)
        pthread_mutex_destroy(&self.lock)

    # The event loop's side.

    def add(self, parts, int64_t position, int64_t lsn, bint lazy=False):
        """Queue the buffers of one frame. The first one's position is where the lane begins; the rest follow on.

        A ``lazy`` frame does not wake the thread: it is written with the next one that does, or by ``hurry``.
        """
        cdef size_t first = self.pin_count
        try:
            for part in parts:
                if self.pin_count == self.pin_room:
                    self._grow_pins()
                PyObject_GetBuffer(part, &self.pins[self.pin_count], PyBUF_SIMPLE)
                self.pin_count += 1
            if self._queue(first, position, lsn, lazy):
                raise MemoryError
        except BaseException:
            while self.pin_count > first:
                self.pin_count -= 1
                PyBuffer_Release(&self.pins[self.pin_count])
            raise

    def hurry(self):
        """Write what is queued now, lazy or not."""
        pthread_mutex_lock(&self.lock)
        if self.queued_count:
            self._make_due()
        pthread_mutex_unlock(&self.lock)

    def leave(self, *, bint drop=False):
        """No more frames: ``run`` ends once the queued ones are synced. With ``drop`` it ends without them."""
        pthread_mutex_lock(&self.lock)
        self.leaving = True
        if drop:
            self.dropped = True
        pthread_cond_signal(&self.changed)
        pthread_mutex_unlock(&self.lock)

    def collect(self):
        """What was synced since the last call: the newest LSN, how many syncs, their seconds, the longest one's."""
        cdef uint64_t buffers, syncs
        cdef int64_t lsn
        cdef double seconds, longest
        cdef size_t index, count
        pthread_mutex_lock(&self.lock)
        buffers, syncs, lsn = self.synced_buffers, self.syncs, self.synced_lsn
        seconds, longest = self.sync_seconds, self.longest_seconds
        self.syncs = 0
        self.sync_seconds = self.longest_seconds = 0.0
        pthread_mutex_unlock(&self.lock)
        count = <size_t> (buffers - self.released)
        if count:
            for index in range(count):
                PyBuffer_Release(&self.pins[index])
            self.pin_count -= count
            memmove(self.pins, &self.pins[count], self.pin_count * sizeof(Py_buffer))
            self.released = buffers
        return lsn, syncs, seconds, longest

    cdef int _grow_pins(self) except -1:
        cdef Py_buffer *more = <Py_buffer *> realloc(self.pins, 2 * self.pin_room * sizeof(Py_buffer))
        if more == NULL:
            raise MemoryError
        self.pins = more
        self.pin_room *= 2
        return 0

    cdef void _make_due(self) noexcept:
        """Called under the lock."""
        self.due = True
        if self.waits:
            self.waits = False
            pthread_cond_signal(&self.changed)

    cdef int _queue(self, size_t first, int64_t position, int64_t lsn, bint lazy) noexcept:
        """The pins from ``first`` on, as one: the thread never sees half a frame."""
        cdef size_t index, room
        cdef iovec *more
        pthread_mutex_lock(&self.lock)
        room = self.queued_room
        while room < self.queued_count + self.pin_count - first:
            room *= 2
        if room > self.queued_room:
            more = <iovec *> realloc(self.queued, room * sizeof(iovec))
            if more == NULL:
                pthread_mutex_unlock(&self.lock)
                return -1
            self.queued, self.queued_room = more, room
        if self.position < 0:
            self.position = position
        for index in range(first, self.pin_count):
            self.queued[self.queued_count].iov_base = self.pins[index].buf
            self.queued[self.queued_count].iov_len = self.pins[index].len
            self.queued_count += 1
        self.queued_lsn = lsn
        if not lazy:
            self._make_due()
        pthread_mutex_unlock(&self.lock)
        return 0

    # The thread's side.

    def run(self, int file, int told, double max_batch_age_seconds):
        """Write and sync until ``leave``; a byte into ``told`` after each sync. Returns 0, or the error's number."""
        cdef int problem
        with nogil:
            problem = self._run(file, told, max_batch_age_seconds)
        return problem

    cdef int _run(self, int file, int told, double max_batch_age_seconds) noexcept nogil:
        cdef size_t count, room
        cdef iovec *other
        cdef int64_t lsn
        cdef int problem
        cdef double began, seconds
        cdef uint64_t one = 1
        while True:
            pthread_mutex_lock(&self.lock)
            while not self.due and not self.leaving:
                self.waits = True
                pthread_cond_wait(&self.changed, &self.lock)
            self.waits = False
            if max_batch_age_seconds > 0 and self.queued_count and not self.leaving:
                pthread_mutex_unlock(&self.lock)
                _pause(max_batch_age_seconds)
                pthread_mutex_lock(&self.lock)
            count, lsn, self.due = self.queued_count, self.queued_lsn, False
            if count == 0 or self.dropped:
                pthread_mutex_unlock(&self.lock)
                return 0
            other, room = self.taken, self.taken_room
            self.taken, self.taken_room = self.queued, self.queued_room
            self.queued, self.queued_room, self.queued_count = other, room, 0
            pthread_mutex_unlock(&self.lock)
            problem = self._write_all(file, count)
            if problem:
                return problem
            began = _now()
            while fdatasync(file):
                if errno != EINTR:  # a signal came in its way: nothing was lost, unlike after any other error
                    return errno
            seconds = _now() - began
            pthread_mutex_lock(&self.lock)
            self.synced_lsn = lsn
            self.synced_buffers += count
            self.syncs += 1
            self.sync_seconds += seconds
            if seconds > self.longest_seconds:
                self.longest_seconds = seconds
            pthread_mutex_unlock(&self.lock)
            write(told, &one, sizeof(one))

    cdef int _write_all(self, int file, size_t count) noexcept nogil:
        cdef size_t first = 0
        cdef size_t some
        cdef ssize_t written
        while first < count:
            some = count - first
            if some > <size_t> MAX_IOVECS:
                some = MAX_IOVECS
            written = pwritev(file, &self.taken[first], <int> some, self.position)
            if written < 0:
                if errno == EINTR:
                    continue
                return errno
            if written == 0 and _bytes(&self.taken[first], some):
                return EIO
            self.position += written
            while first < count and <size_t> written >= self.taken[first].iov_len:
                written -= self.taken[first].iov_len
                first += 1
            if written:
                self.taken[first].iov_base = <char *> self.taken[first].iov_base + written
                self.taken[first].iov_len -= written
        return 0


cdef size_t _bytes(const iovec *some, size_t count) noexcept nogil:
    cdef size_t index
    cdef size_t total = 0
    for index in range(count):
        total += some[index].iov_len
    return total


cdef double _now() noexcept nogil:
    cdef timespec at
    clock_gettime(CLOCK_MONOTONIC, &at)
    return at.tv_sec + at.tv_nsec * 1e-9


cdef void _pause(double seconds) noexcept nogil:
    cdef timespec length
    length.tv_sec = <long> seconds
    length.tv_nsec = <long> ((seconds - <long> seconds) * 1e9)
    nanosleep(&length, NULL)
