"""Converts a decoded value to the type of its column, or says why it does not fit. Pure.

Nothing is rounded or cut: what does not fit exactly is the record's fault, and the reason says so.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

Coerce = Callable[[Any], Any]
"""Raises ValueError with the reason."""

_SHOWN_CHARS: Final = 60


@lru_cache(maxsize=4096)
def coercion_to(kind: pa.DataType) -> Coerce:
    """Return the function that converts values to this type. It returns None for None."""
    strict = _coercion(kind)

    def coerce(value: Any) -> Any:
        return None if value is None else strict(value)

    return coerce


def json_text(value: Any) -> str:
    """Text unchanged, anything else as JSON. Raises ValueError for text that is not valid Unicode."""
    if not isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        return text if _is_unicode(text) else json.dumps(value, separators=(",", ":"), default=str)
    if not _is_unicode(value):
        raise ValueError("the text holds half of a surrogate pair")
    return value


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _coercion(kind: pa.DataType) -> Coerce:
    if pa.types.is_string(kind):
        return json_text
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_integer(kind):
        return _integer(kind.bit_width)
    if pa.types.is_floating(kind):
        return _floating
    if pa.types.is_timestamp(kind):
        return _timestamp(with_zone=kind.tz is not None)
    if pa.types.is_date(kind):
        return _date
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_binary(kind):
        return _binary
    if pa.types.is_list(kind):
        return _list(coercion_to(kind.value_type))
    if pa.types.is_struct(kind):
        return _struct({field.name: coercion_to(field.type) for field in kind})
    if pa.types.is_map(kind):
        return _map(coercion_to(kind.key_type), coercion_to(kind.item_type))
    raise ValueError(f"columns of type {kind} cannot be filled")


def _unfit(value: Any, what: str) -> ValueError:
    return ValueError(f"{json.dumps(value, default=str)[:_SHOWN_CHARS]} is not {what}")


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unfit(value, "a boolean")
    return value


def _integer(bits: int) -> Coerce:
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def coerce(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise _unfit(value, f"an integer of {bits} bits")
        return value

    return coerce


def _floating(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _unfit(value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _unfit(value, "a number that fits") from None


def _timestamp(*, with_zone: bool) -> Coerce:
    def coerce(value: Any) -> datetime:
        found = value
        if isinstance(value, str):
            try:
                found = datetime.fromisoformat(value)
            except ValueError:
                found = None
        if not isinstance(found, datetime):
            raise _unfit(value, "a time such as 2024-01-02T03:04:05Z")
        if not with_zone:
            return found.replace(tzinfo=None) if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found

    return coerce


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise _unfit(value, "a date such as 2024-01-02") from None


def _decimal(precision: int, scale: int) -> Coerce:
    def coerce(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
            raise _unfit(value, "a decimal number")
        try:
            number = Decimal(str(value))
            exact = number.quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            raise _unfit(value, f"a DECIMAL({precision}, {scale})") from None
        if exact != number or len(exact.as_tuple().digits) > precision:
            raise _unfit(value, f"a DECIMAL({precision}, {scale})")
        return exact

    return coerce


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _unfit(value, "base64") from None


def _list(item: Coerce) -> Coerce:
    def coerce(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _unfit(value, "an array")
        return [item(each) for each in value]

    return coerce


def _struct(fields: dict[str, Coerce]) -> Coerce:
    def coerce(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _unfit(value, "an object")
        return {name: field(value.get(name)) for name, field in fields.items()}

    return coerce


def _map(key: Coerce, item: Coerce) -> Coerce:
    def coerce(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise _unfit(value, "an object")
        return [(key(name), item(each)) for name, each in value.items()]

    return coerce
