"""Bytes in any pieces give the same frames, and memory follows what arrived, not what was announced."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.inbox import SCRATCH_BYTES, Inbox, ReceiveBuffers

MIB = 1 << 20


def receive(inbox: Inbox, data: bytes, at_most: int = SCRATCH_BYTES) -> list[bytes]:
    """Do what a connection does: read what fits, take the frames, leave the scratch."""
    frames = []
    while data:
        room = inbox.writable(at_most)
        assert len(room) > 0
        piece, data = data[: len(room)], data[len(room) :]
        room[: len(piece)] = piece
        inbox.received(len(piece))
        while (frame := inbox.next_frame()) is not None:
            frames.append(bytes(frame))
        assert not inbox.has_frame()
        inbox.park()
    return frames


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.one_of(st.integers(8, 200), st.integers(300_000, 600_000)), max_size=5),
    cuts=st.lists(st.integers(1, 300_000), min_size=2, max_size=12).filter(lambda cuts: sum(cuts) > 20_000),
)
def test_frames_do_not_depend_on_how_bytes_arrive(sizes: list[int], cuts: list[int]) -> None:
    bodies = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    stream = b"".join(map(framed, bodies))
    buffers = ReceiveBuffers()
    inbox, neighbour = Inbox(buffers, MIB), Inbox(buffers, MIB)
    got = []
    index = 0
    while stream:
        cut = cuts[index % len(cuts)]
        index += 1
        got += receive(inbox, stream[:cut])
        stream = stream[cut:]
        assert receive(neighbour, framed(b"\xee" * 50)) == [b"\xee" * 50], "the scratch is shared"
    assert got == bodies
    assert inbox.capacity == 0


def test_memory_is_at_most_twice_what_arrived() -> None:
    inbox = Inbox(ReceiveBuffers(), 100 * MIB)
    stream = framed(bytes(4 * MIB))
    arrived = 0
    while arrived < len(stream) - 70_000:
        assert receive(inbox, stream[arrived : arrived + 70_000]) == []
        arrived += 70_000
        assert inbox.capacity <= max(4096, 2 * arrived)
    assert receive(inbox, stream[arrived:]) == [bytes(4 * MIB)]


def test_an_emptied_buffer_is_used_again() -> None:
    buffers = ReceiveBuffers()
    inbox = Inbox(buffers, 100 * MIB)
    stream = framed(bytes(MIB))
    receive(inbox, stream)
    receive(inbox, stream[:500_000])
    assert inbox.capacity >= len(stream), "nothing has to be allocated or moved for the rest"


def test_spare_buffers_are_bounded() -> None:
    buffers = ReceiveBuffers()
    buffers.give(bytearray(8 * MIB))
    assert buffers._spare_bytes == 0
    large = bytearray(4 * MIB)
    for _ in range(100):
        buffers.give(large)
    assert buffers._spare_bytes <= 16 * MIB


@pytest.mark.parametrize("size", [-1, 0, 7, MIB + 1])
def test_a_size_no_request_can_have_is_refused(size: int) -> None:
    inbox = Inbox(ReceiveBuffers(), MIB)
    room = inbox.writable(100)
    room[:4] = size.to_bytes(4, "big", signed=True)
    inbox.received(4)
    assert inbox.has_frame()
    with pytest.raises(MalformedRequest, match=str(size)):
        inbox.next_frame()
