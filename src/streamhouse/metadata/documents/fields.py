"""Takes a JSON document apart strictly: every field typed and bounded, every key known, every error with its place.

Owns nothing about what a document means. Pure; no IO.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar
from uuid import UUID

from streamhouse.core.errors import CorruptDocument, LimitExceeded
from streamhouse.core.limits import MAX_METADATA_DOCUMENT_BYTES

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

_Choice = TypeVar("_Choice", bound=StrEnum)
_REQUIRED: Final[Any] = object()


def dump(document: Mapping[str, object], where: str) -> bytes:
    raw = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    if len(raw) > MAX_METADATA_DOCUMENT_BYTES:
        raise LimitExceeded(f"{where} would take {len(raw)} bytes; {MAX_METADATA_DOCUMENT_BYTES} at most")
    return raw


def load(raw: bytes, where: str) -> Fields:
    if len(raw) > MAX_METADATA_DOCUMENT_BYTES:
        raise CorruptDocument(f"{where} is {len(raw)} bytes long; {MAX_METADATA_DOCUMENT_BYTES} at most")
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise CorruptDocument(f"{where} is nested too deeply") from error
    except ValueError as error:
        raise CorruptDocument(f"{where} is not a JSON document: {error}") from error
    return Fields(value, where)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


class Fields:
    """One JSON object. Each getter takes its key out; ``finish`` refuses what is left over."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise CorruptDocument(f"{where} holds {_kind(value)} where an object belongs")
        self.where = where
        self._left: dict[str, object] = dict(value)

    def has(self, name: str) -> bool:
        return name in self._left

    def integer(self, name: str, *, least: int = 0, default: int = _REQUIRED) -> int:
        value = self._take(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, f"holds {_kind(value)} where a whole number belongs")
        if not least <= value <= INT64_MAX:
            raise self.wrong(name, f"is {value if abs(value) < 2**64 else 'far'} outside {least} … {INT64_MAX}")
        return value

    def optional_integer(self, name: str) -> int | None:
        if self._left.get(name) is None:
            self._left.pop(name, None)
            return None
        return self.integer(name)

    def text(self, name: str, *, default: str = _REQUIRED) -> str:
        value = self._take(name, default)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, f"holds {_kind(value)} where a text belongs")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise self.wrong(name, "is not valid Unicode text")
        return value

    def uuid(self, name: str) -> UUID:
        text = self.text(name)
        try:
            found = UUID(text)
        except ValueError as error:
            raise self.wrong(name, f"is {text[:64]!r}, not a UUID") from error
        if str(found) != text:
            raise self.wrong(name, f"is {text[:64]!r}, not a UUID in its usual spelling")
        return found

    def optional_uuid(self, name: str) -> UUID | None:
        if self._left.get(name) is None:
            self._left.pop(name, None)
            return None
        return self.uuid(name)

    def choice(self, name: str, kind: type[_Choice], *, default: _Choice = _REQUIRED) -> _Choice:
        text = self.text(name, default=default)
        try:
            return kind(text)
        except ValueError as error:
            raise self.wrong(name, f"is {text[:64]!r}; it may be {', '.join(kind)}") from error

    def optional_object(self, name: str) -> Fields | None:
        value = self._left.pop(name, None)
        return None if value is None else Fields(value, f"{self.where}, {name}")

    def objects(self, name: str) -> list[Fields]:
        """A list of objects; absent is empty."""
        value = self._left.pop(name, [])
        if not isinstance(value, list):
            raise self.wrong(name, f"holds {_kind(value)} where a list belongs")
        return [Fields(item, f"{self.where}, {name}[{index}]") for index, item in enumerate(value)]

    def finish(self) -> None:
        if self._left:
            unknown = ", ".join(sorted(repr(name[:64]) for name in self._left)[:8])
            raise CorruptDocument(
                f"{self.where} holds unknown fields: {unknown}", hint="it may come from a newer StreamHouse; upgrade"
            )

    def wrong(self, name: str, what: str) -> CorruptDocument:
        return CorruptDocument(f"{self.where}: {name} {what}")

    def _take(self, name: str, default: object) -> object:
        if name in self._left:
            return self._left.pop(name)
        if default is _REQUIRED:
            raise self.wrong(name, "is missing")
        return default


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    names: dict[type, str] = {int: "a number", float: "a fraction", list: "a list", dict: "an object"}
    return names.get(type(value), "an empty text" if value == "" else "a text")
