"""The twins of the loops over records: which one serves, and that both keep the same records."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyed_logs import loops_twin

from streamhouse.core.errors import CorruptBatch
from streamhouse.maintenance.key_compaction.key_loops import _choose
from streamhouse.wire.batch import HEADER_BYTES
from streamhouse.wire.records import Header, Record, build_batch

PACKAGE = "streamhouse.maintenance.key_compaction"
COMPILED, PURE = loops_twin("_key_loops"), loops_twin("_key_loops_py")
RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=80),
        value=st.none() | st.binary(max_size=80),
        timestamp_ms=st.integers(0, 2**41),
        headers=st.just(()) | st.just((Header("h", b"v"),)),
    ),
    min_size=1,
    max_size=12,
)
SHIFTS = st.just(0) | st.integers(-(2**62), 2**62)


def body_of(records: list[Record]) -> bytes:
    return build_batch(records, base_offset=0)[HEADER_BYTES:]


def outcome(twin: ModuleType, body: bytes, kept: bytes, shift_ms: int) -> Any:
    try:
        return bytes(twin.kept_records(body, kept, shift_ms))
    except CorruptBatch as error:
        return error.message


@given(RECORDS, st.data(), SHIFTS)
def test_p4_both_twins_keep_the_same_bytes(records: list[Record], data: st.DataObject, shift_ms: int) -> None:
    kept = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(records), max_size=len(records))))
    made = outcome(COMPILED, body_of(records), kept, shift_ms)
    assert made == outcome(PURE, body_of(records), kept, shift_ms)
    assert isinstance(made, bytes)
    assert bool(made) is any(kept)


@given(RECORDS, st.data(), SHIFTS)
def test_bodies_that_were_changed_are_taken_or_refused_alike(
    records: list[Record], data: st.DataObject, shift_ms: int
) -> None:
    body = bytearray(body_of(records))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    body = body[: data.draw(st.integers(0, len(body)))]
    kept = data.draw(st.binary(max_size=len(records) + 1).map(lambda flags: bytes(flag & 1 for flag in flags)))
    assert outcome(COMPILED, bytes(body), kept, shift_ms) == outcome(PURE, bytes(body), kept, shift_ms)


@pytest.mark.parametrize("twin", [COMPILED, PURE], ids=["compiled", "pure"])
@pytest.mark.parametrize(
    "body",
    [b"", b"\x80", b"\x00", b"\x01", b"\x04a", b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x00"],
    ids=["nothing", "half-a-length", "no-record", "negative", "too-long", "above-32-bits", "six-bytes"],
)
def test_a_record_that_cannot_be_read_is_refused(twin: ModuleType, body: bytes) -> None:
    with pytest.raises(CorruptBatch):
        twin.kept_records(body, b"\1", 0)


@pytest.mark.parametrize("twin", [COMPILED, PURE], ids=["compiled", "pure"])
@pytest.mark.parametrize(("times_ms", "shift_ms"), [((0, 2**62), 2**62), ((2**62, 0), -(2**62) - 1)])
def test_a_time_that_would_pass_64_bits_is_refused(twin: ModuleType, times_ms: tuple[int, int], shift_ms: int) -> None:
    body = body_of([Record(key=b"k", timestamp_ms=time_ms) for time_ms in times_ms])
    assert twin.kept_records(body, b"\1\0", shift_ms)
    assert twin.kept_records(body, b"\1\1", shift_ms - 1 if shift_ms > 0 else shift_ms + 1)
    with pytest.raises(CorruptBatch):
        twin.kept_records(body, b"\1\1", shift_ms)


@pytest.mark.parametrize(("environment", "wanted"), [({}, "_key_loops"), ({"STREAMHOUSE_PURE": "1"}, "_key_loops_py")])
def test_the_environment_can_force_the_pure_twin(environment: dict[str, str], wanted: str) -> None:
    code = f"from {PACKAGE}.key_loops import loops; print(loops.__name__)"
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == f"{PACKAGE}.{wanted}"


@pytest.mark.parametrize("missing", [f"{PACKAGE}._key_loops", "streamhouse.gone"])
def test_the_pure_twin_serves_where_the_other_was_not_built_and_hides_nothing_else(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def import_module(name: str) -> ModuleType:
        if name == f"{PACKAGE}._key_loops":
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name)

    monkeypatch.delenv("STREAMHOUSE_PURE", raising=False)
    monkeypatch.setattr(importlib, "import_module", import_module)
    if missing == f"{PACKAGE}._key_loops":
        assert _choose() is PURE
    else:
        with pytest.raises(ModuleNotFoundError, match="gone"):
            _choose()
