"""One client's connection: takes frames, starts handlers, and sends answers in order. It does not know what is asked.

A frame waits (in the inbox) while the one before it is served, unless that one is pipelined; while the requests under
way take this connection's share of the memory; while the client does not take its answers; and after
MAX_FRAMES_PER_TURN frames, so that others get their turn. The socket is not read once the
inbox holds MAX_WAITING_BYTES that way, or while the memory budget is spent. Up to then it is, because only reading
shows that a client has gone: what a hot handler awaits is cancelled then, so a handler shields what must go on. A cold
handler goes on, and its answer is dropped.
Whatever goes wrong closes this connection and no other.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from streamhouse.core.errors import MalformedRequest, StreamHouseError
from streamhouse.core.limits import KIB
from streamhouse.gateway.kafka.answers import OWN_WRITE_BYTES, Answers, AnswerSlot, coalesce
from streamhouse.gateway.kafka.api import Buffers, ClientConnection, CloseConnection
from streamhouse.gateway.kafka.dispatch import Started, api_name, framed
from streamhouse.gateway.kafka.inbox import MAX_WAITING_BYTES, SCRATCH_BYTES, Inbox

if TYPE_CHECKING:
    from streamhouse.gateway.kafka.connections import Connections

MAX_FRAMES_PER_TURN: Final = 32
MAX_PIPELINED: Final = 8192
"""Requests of one connection under way. librdkafka without idempotence sends one for each batch that it has: where a
commit takes 250 ms, this allows 32,000 requests per second. PIPELINED_SHARE bounds their memory."""
PIPELINED_SHARE: Final = 8
"""One connection's requests under way may take this part of the memory for requests; with the rest, others go on."""
SLOT_BYTES: Final = 3 * KIB
"""What a request under way takes beside its bytes, measured: the objects that wait for its answer, down to the log."""
READ_WHEN_SPENT_BYTES: Final = 4 * KIB
"""What one read may still bring in when the budget is spent: ten thousand connections then add 40 MB."""

# Before 3.12 writelines joins its pieces; since then it hands them to the kernel as they are.
_SENDS_PIECES: Final = sys.version_info >= (3, 12)


class KafkaConnection(asyncio.BufferedProtocol):
    def __init__(self, connections: Connections, listener: str) -> None:
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._inbox = Inbox(connections.buffers, connections.limits.max_request_bytes)
        self._answers = Answers()
        self._serving: AnswerSlot | None = None
        self._under_way_bytes = 0
        self._most_under_way_bytes = connections.limits.request_memory_bytes // PIPELINED_SHARE
        self._stuck = False
        self._yielded = False
        self._draining = False
        self._closing = False
        self._paused = False
        self._out_of_budget = False
        self._flush_planned = False
        self.client = ClientConnection(host="", listener=listener)
        self.opened_at = connections.now()
        self.read_at = self.opened_at
        self.had_request = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.client.host = str(peer[0]) if peer else ""
        refusal = self._connections.admit(self)
        if refusal is not None:
            self.hang_up(refusal[0], refusal[1])
            return
        limits = self._connections.limits
        transport.set_write_buffer_limits(high=limits.unsent_high_bytes, low=limits.unsent_low_bytes)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.writable(READ_WHEN_SPENT_BYTES if self._connections.budget.is_spent else SCRATCH_BYTES)

    def buffer_updated(self, nbytes: int) -> None:
        self.read_at = self._connections.now()
        self._connections.stats.bytes_in += nbytes
        self._inbox.received(nbytes)
        self._serve()

    def pause_writing(self) -> None:
        """Called in the middle of ``_flush``, which tells the connections when all of an answer is written."""
        self._stuck = True

    def resume_writing(self) -> None:
        self._stuck = False
        self._connections.reader_caught_up(self)
        self._serve()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._inbox.clear()
        for slot in self._answers.slots:
            if slot.future is not None and slot.cancel_with_client:
                slot.future.cancel()
        self._connections.gone(self)

    # Requests.

    def _serve(self) -> None:
        """Start what may be started, send what is ready, then decide whether to read on."""
        frames_left = MAX_FRAMES_PER_TURN
        try:
            while not self._must_wait() and (frame := self._inbox.next_frame()) is not None:
                self._start(frame)
                if self._answers.held_bytes >= OWN_WRITE_BYTES:
                    self._flush()
                frames_left -= 1
                if not frames_left and self._inbox.has_frame():
                    self._yielded = True
                    self._connections.call_soon(self._continue)
        except MalformedRequest as error:
            self._flush()
            self.hang_up("malformed", f"sent what is not a Kafka request: {error}", logging.WARNING)
        self._flush()
        self._settle_reading()

    def _continue(self) -> None:
        self._yielded = False
        self._serve()

    def _must_wait(self) -> bool:
        return (
            self._serving is not None
            or self._stuck
            or self._yielded
            or self._draining
            or self._closing
            or len(self._answers.slots) >= MAX_PIPELINED
            or self._under_way_bytes >= self._most_under_way_bytes
            or self._answers.held_bytes >= self._connections.limits.unsent_high_bytes
        )

    def _start(self, frame: memoryview) -> None:
        self._connections.stats.requests += 1
        if not self.had_request:
            self.had_request = True
            self._connections.greeted(self)
        try:
            started = self._connections.dispatcher.start(frame, self.client)
        except Exception as error:
            self._fail(int.from_bytes(frame[:2], "big", signed=True), error)
            return
        result = started.result
        if result is None:
            return
        if isinstance(result, Sequence):
            self._answers.put(framed(started.flexible, started.correlation_id, result))
            return
        self._await(started, result, frame)

    def _await(self, started: Started, result: Awaitable[Buffers | None], frame: memoryview) -> None:
        slot = AnswerSlot(
            api_key=int.from_bytes(frame[:2], "big", signed=True),
            correlation_id=started.correlation_id,
            flexible=started.flexible,
            request_bytes=len(frame) + SLOT_BYTES,
        )
        self._under_way_bytes += slot.request_bytes
        slot.future = asyncio.ensure_future(result)
        slot.cancel_with_client = started.cancel_with_client
        self._answers.slots.append(slot)
        self._connections.under_way(slot)
        if slot.future.done():
            self._take(slot, slot.future)
            return
        if not started.pipelined:
            self._serving = slot
        slot.future.add_done_callback(partial(self._done, slot))

    def _done(self, slot: AnswerSlot, future: asyncio.Future[Any]) -> None:
        self._take(slot, future)
        if self._serving is slot:
            self._serving = None
            self._serve()
        elif not self._flush_planned:
            self._flush_planned = True
            self._connections.call_soon(self._flush_pipelined)

    def _take(self, slot: AnswerSlot, future: asyncio.Future[Any]) -> None:
        """Put the answer into its place; of a client that has gone, only the accounts are closed."""
        self._connections.ended(slot)
        self._under_way_bytes -= slot.request_bytes
        if future.cancelled():
            if not self._closing:
                self.hang_up("stopped", f"{api_name(slot.api_key)} was cancelled")
            return
        error = future.exception()
        if self._closing:
            if error is not None and not isinstance(error, StreamHouseError | CloseConnection):
                self._connections.log.log(logging.ERROR, f"{api_name(slot.api_key)} failed", error=error)
            return
        if error is not None:
            self._fail(slot.api_key, error)
            return
        body: Buffers | None = future.result()
        self._answers.settle(slot, () if body is None else framed(slot.flexible, slot.correlation_id, body))

    def _fail(self, api_key: int, error: BaseException) -> None:
        """A request without an answer: the client learns it from the closed connection, as with Kafka."""
        self._flush()
        name = api_name(api_key)
        if isinstance(error, CloseConnection):
            self.hang_up("refused", f"{name}: {error}", logging.INFO)
        elif isinstance(error, MalformedRequest):
            self.hang_up("malformed", f"sent a malformed {name}: {error}", logging.WARNING)
        elif isinstance(error, StreamHouseError):
            self.hang_up("failed", f"{name} failed: {error}", logging.ERROR)
        else:
            self.hang_up("failed", f"{name} failed", logging.ERROR, error=error)

    # Answers.

    def _flush_pipelined(self) -> None:
        self._flush_planned = False
        self._serve()

    def _flush(self) -> None:
        pieces = self._answers.take()
        transport = self._transport
        if transport is not None and pieces and not self._closing:
            self._connections.stats.bytes_out += sum(map(len, pieces))
            if _SENDS_PIECES:
                transport.writelines(pieces)
            else:
                for chunk in coalesce(pieces):
                    transport.write(chunk)
            if self._stuck:
                self._connections.reader_is_slow(self)
        if self._draining and not self._answers.slots:
            self.hang_up("stopped", "")

    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # Reading or not.

    def _settle_reading(self) -> None:
        inbox, budget = self._inbox, self._connections.budget
        if self._closing:
            inbox.clear()
            return
        inbox.park()
        waits = self._must_wait()
        budget.hold(self, inbox.capacity, receiving=inbox.capacity > 0 and not waits)
        if not self._out_of_budget and not budget.may_read(self):
            self._out_of_budget = True
            budget.wait(self)
        self._pause_or_resume(self._out_of_budget or (waits and inbox.waiting_bytes >= MAX_WAITING_BYTES))

    def resume_receiving(self) -> None:
        self._out_of_budget = False
        self._settle_reading()

    def _pause_or_resume(self, pause: bool) -> None:
        if self._transport is None or pause == self._paused:
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def is_busy(self) -> bool:
        return bool(self._answers.slots)

    @property
    def is_held_back(self) -> bool:
        """Whether this server has stopped reading the socket. Then it is not the client's fault that no bytes come."""
        return self._paused

    # The end.

    def drain(self) -> None:
        """Start nothing new; close when what is under way has been answered."""
        self._draining = True
        self._flush()

    def hang_up(
        self, reason: str, text: str, level: int = logging.DEBUG, *, error: BaseException | None = None
    ) -> None:
        """Close after sending what is ready. ``reason`` is counted, ``text`` logged."""
        if self._closing:
            return
        self._closing = True
        self._connections.closing(self, reason, text, level, error)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str, text: str, level: int = logging.DEBUG) -> None:
        """Close at once, whatever is unsent."""
        if not self._closing:
            self._closing = True
            self._connections.closing(self, reason, text, level, None)
        if self._transport is not None:
            self._transport.abort()
