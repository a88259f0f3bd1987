"""Sizes and durations as people write them, to exact integers and back.

    size       64MiB  1GB  512KiB  1.5GiB  0B      plain integers are bytes
    duration   250ms  30s  10m  24h  7d  1.5s      plain integers are milliseconds

KiB, MiB, GiB and TiB are powers of 1024; KB, MB, GB and TB are powers of 1000. A bare letter ("512k") is refused: half
the world reads it as 1000 and the other half as 1024. Case does not matter and one space before the unit is allowed.
A fraction is taken only if the result is a whole number of bytes or milliseconds; nothing is ever rounded.

This module knows no setting and no default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from streamhouse.core.errors import InvalidSetting

MAX_QUANTITY: Final = 2**63 - 1
"""The largest number that fits the 64-bit columns and Kafka fields in which sizes and durations are kept."""

_MAX_TEXT_CHARS: Final = 64  # far above any honest quantity, so that no text costs more than a glance

_SIZE_UNITS: Final[Mapping[str, int]] = {
    "B": 1,
    "KB": 1000,
    "KiB": 1024,
    "MB": 1000**2,
    "MiB": 1024**2,
    "GB": 1000**3,
    "GiB": 1024**3,
    "TB": 1000**4,
    "TiB": 1024**4,
}
_DURATION_UNITS: Final[Mapping[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_SIZE_BY_LOWER: Final = {unit.lower(): factor for unit, factor in _SIZE_UNITS.items()}
_QUANTITY: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>[A-Za-z]*)", re.ASCII)

SIZE_HINT: Final = "write a number and a unit, such as 512KiB, 64MiB or 1GB; a plain number is bytes"
DURATION_HINT: Final = "write a number and a unit, such as 250ms, 30s, 10m, 24h or 7d; a plain number is milliseconds"


def parse_size(text: str | int) -> int:
    """Return the number of bytes that a size such as ``64MiB`` stands for."""
    return _parse(text, what="size", units=_SIZE_BY_LOWER, hint=SIZE_HINT)


def parse_duration(text: str | int) -> int:
    """Return the number of milliseconds that a duration such as ``10s`` stands for."""
    return _parse(text, what="duration", units=_DURATION_UNITS, hint=DURATION_HINT)


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling; ``parse_size`` gives the same number back."""
    return _format(size_bytes, _SIZE_UNITS, smallest="B")


def format_duration(duration_ms: int) -> str:
    """The shortest exact spelling; ``parse_duration`` gives the same number back."""
    return _format(duration_ms, _DURATION_UNITS, smallest="ms")


def _parse(text: str | int, *, what: str, units: Mapping[str, int], hint: str) -> int:
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise InvalidSetting(f"{text!r} is not a {what}", hint=hint)
    quantity = text if isinstance(text, int) else _parse_text(text, what=what, units=units, hint=hint)
    if not 0 <= quantity <= MAX_QUANTITY:
        raise InvalidSetting(f"{str(text)[:_MAX_TEXT_CHARS]!r} is out of range for a {what}", hint=hint)
    return quantity


def _parse_text(text: str, *, what: str, units: Mapping[str, int], hint: str) -> int:
    stripped = text.strip() if len(text) <= _MAX_TEXT_CHARS else ""
    match = _QUANTITY.fullmatch(stripped)
    if match is None:
        raise InvalidSetting(f"{text[:_MAX_TEXT_CHARS]!r} is not a {what}", hint=hint)
    number, unit = match["number"], match["unit"].lower()
    factor = units.get(unit, 0) if unit else 1
    if factor == 0:
        raise InvalidSetting(
            f"{text!r} is not a {what}: the unit {match['unit']!r} is {_why_not(unit, units)}", hint=hint
        )
    whole, _, fraction = number.partition(".")
    divisor: int = 10 ** len(fraction)
    quantity, rest = divmod(int(whole + fraction) * factor, divisor)
    if rest:
        smallest = "bytes" if what == "size" else "milliseconds"
        raise InvalidSetting(f"{text!r} is not a whole number of {smallest}", hint=hint)
    return quantity


def _why_not(unit: str, units: Mapping[str, int]) -> str:
    decimal, binary = f"{unit}b", f"{unit}ib"
    if decimal in units and binary in units:
        return f"ambiguous; say {decimal.upper()} (1000) or {unit.upper()}iB (1024)"
    return "not known"


def _format(quantity: int, units: Mapping[str, int], *, smallest: str) -> str:
    if quantity == 0:
        return f"0{smallest}"
    count, unit = min((quantity // factor, unit) for unit, factor in units.items() if quantity % factor == 0)
    return f"{count}{unit}"
