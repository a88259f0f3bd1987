"""Sizes and durations: exact both ways, and clear about what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.units import MAX_QUANTITY, format_duration, format_size, parse_duration, parse_size

QUANTITIES = st.one_of(
    st.integers(0, MAX_QUANTITY),
    st.builds(lambda n, f: n * f, st.integers(0, 9999), st.sampled_from([1000, 1024, 1024**2, 60_000, 86_400_000])),
)


@given(QUANTITIES)
def test_a_formatted_size_parses_to_the_same_bytes(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(QUANTITIES)
def test_a_formatted_duration_parses_to_the_same_milliseconds(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@given(st.text(max_size=80))
def test_any_text_gives_a_quantity_in_range_or_a_clear_refusal(text: str) -> None:
    for parse in (parse_size, parse_duration):
        refusal = None
        try:
            assert 0 <= parse(text) <= MAX_QUANTITY
        except InvalidSetting as error:
            refusal = error
        assert refusal is None or refusal.hint.startswith("write a number and a unit")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64MiB", 64 * 2**20),
        ("1GB", 10**9),
        ("512KiB", 512 * 1024),
        ("1.5GiB", 3 * 2**29),
        ("2tib", 2**41),
        ("1 MB", 10**6),
        (" 7B ", 7),
        ("123", 123),
        (123, 123),
        (0, 0),
        ("9223372036854775807", MAX_QUANTITY),
    ],
)
def test_sizes(text: str | int, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("10m", 600_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
        ("1.5s", 1500),
        ("0.25s", 250),
        ("15", 15),
        (15, 15),
    ],
)
def test_durations(text: str | int, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0B"), (1, "1B"), (2**20, "1MiB"), (10**6, "1MB"), (1536, "1536B")]
)
def test_a_size_is_spelled_in_its_largest_exact_unit(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"), [(0, "0ms"), (1001, "1001ms"), (60_000, "1m"), (90_000, "90s"), (86_400_000, "1d")]
)
def test_a_duration_is_spelled_in_its_largest_exact_unit(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("512k", "ambiguous; say KB (1000) or KiB (1024)"),
        ("10M", "ambiguous; say MB (1000) or MiB (1024)"),
        ("5 parsecs", "'parsecs' is not known"),
        ("0.3B", "not a whole number of bytes"),
        # 31 digits: floats and 28-digit decimals would round it to a whole number.
        ("1.0000000000000000000000000000001KiB", "not a whole number of bytes"),
        ("-1MiB", "is not a size"),
        ("", "is not a size"),
        ("MiB", "is not a size"),
        ("1  MiB", "is not a size"),
        ("１MiB", "is not a size"),
        ("1e3", "is not a size"),
        ("9" * 65, "is not a size"),
        ("9223372036854775808", "out of range"),
        ("9000000TiB", "out of range"),
        (-1, "out of range"),
        (True, "is not a size"),
        (1.5, "is not a size"),
        (None, "is not a size"),
    ],
)
def test_what_is_no_size_is_refused_with_the_reason(text: object, says: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_size(text)  # type: ignore[arg-type]
    assert says in caught.value.message
    assert "64MiB" in caught.value.hint


@pytest.mark.parametrize("text", ["1h30m", "5min", "1w", "0.0001s", "10 s s"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_duration(text)
    assert "250ms" in caught.value.hint
