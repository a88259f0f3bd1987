"""Windows in little memory: a mapping that behaves as an ordinary one in order of use."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.limits import MAX_PRODUCERS_PER_PARTITION, MAX_UNPACKED_PRODUCERS, PRODUCER_WINDOW
from streamhouse.log.leased import windows as module
from streamhouse.log.leased.windows import ProducerWindows
from streamhouse.metadata.contract import ProducerBatch, ProducerState
from streamhouse.metadata.dedup import ProducerWindow

producer_ids = st.integers(0, 12)
batches = st.lists(
    st.builds(
        ProducerBatch,
        base_sequence=st.integers(0, 2**31 - 1),
        record_count=st.integers(1, 2**62),
        base_offset=st.integers(0, 2**63 - 1),
    ),
    max_size=PRODUCER_WINDOW,
)
epochs = st.integers(0, 2**15 - 1)
steps = st.one_of(
    st.tuples(st.just("set"), producer_ids, epochs, batches),
    st.tuples(st.just("pop"), producer_ids),
    st.tuples(st.just("evict")),
)


def content(windows: ProducerWindows | dict[int, ProducerWindow]) -> list[tuple[int, int, list[ProducerBatch]]]:
    return [(producer, window.producer_epoch, list(window.batches)) for producer, window in windows.items()]


@given(steps=st.lists(steps, max_size=60), unpacked=st.integers(1, 4))
def test_it_is_a_dictionary_in_order_of_use(steps: list[tuple[object, ...]], unpacked: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_UNPACKED_PRODUCERS", unpacked)
        model: dict[int, ProducerWindow] = {}
        windows = ProducerWindows()
        for what, *args in steps:
            if what == "set":
                producer, epoch, known = args
                for one in (model, windows):
                    one.pop(producer, None)  # type: ignore[attr-defined]
                    one[producer] = ProducerWindow(epoch, known)  # type: ignore[index, arg-type]
            elif what == "pop":
                found, expected = windows.pop(args[0]), model.pop(args[0], None)  # type: ignore[arg-type, call-overload]
                assert (found is None) == (expected is None)
            elif model:
                for one in (model, windows):
                    del one[next(iter(one))]  # type: ignore[attr-defined]
            assert content(windows) == content(model)
            assert len(windows) == len(model)
            assert len(windows._unpacked) <= unpacked


def test_pages_newest_first_are_older_than_what_is_there() -> None:
    windows = ProducerWindows()
    windows[9] = ProducerWindow(0)
    for page in ((6, 5), (4, 3), (2,)):
        windows.load(
            ProducerState(producer_id=producer, producer_epoch=1, batches=(), updated_at_ms=0) for producer in page
        )
    assert list(windows) == [2, 3, 4, 5, 6, 9]
    windows.load([ProducerState(producer_id=6, producer_epoch=0, batches=(), updated_at_ms=0)])
    assert windows[6].producer_epoch == 1, "what was loaded first is the newest"
    assert 7 not in windows
    with pytest.raises(KeyError):
        windows[7]
    with pytest.raises(KeyError):
        del windows[7]


def test_r22_as_many_producers_as_a_partition_may_know_take_little_memory() -> None:
    def states() -> list[ProducerState]:
        return [
            ProducerState(
                producer_id=10**6 + producer,
                producer_epoch=0,
                batches=tuple(
                    ProducerBatch(base_sequence=1000 + number, record_count=500, base_offset=10**9 + producer + number)
                    for number in range(PRODUCER_WINDOW)
                ),
                updated_at_ms=0,
            )
            for producer in range(MAX_PRODUCERS_PER_PARTITION)
        ]

    windows = ProducerWindows()
    tracemalloc.start()
    try:
        windows.load(states())
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used / MAX_PRODUCERS_PER_PARTITION < 300
    for producer in list(windows)[: 2 * MAX_UNPACKED_PRODUCERS]:
        windows[producer] = windows.pop(producer) or ProducerWindow()
    assert len(windows) == MAX_PRODUCERS_PER_PARTITION
    assert len(windows._unpacked) == MAX_UNPACKED_PRODUCERS
