"""Documents that users write, declared as msgspec structs and read with all their problems. Pure.

msgspec stops at the first error and names types of its own. The author of a file wants to see every mistake at once,
each with the path of its key (``target.postgres.key``) and what to write instead. So ``read`` walks through the structs
itself, and msgspec converts each single value: strictly, with the constraints of its ``Meta``. A ``KeyRule`` beside the
``Meta`` adds what msgspec cannot say:

    class Watermark(Document):
        column: Annotated[Text, KeyRule(example="column: at")]
        delay: Annotated[Text, Meta(pattern=r"^[0-9]+ [a-z]+$"), KeyRule(example="delay: 10 minutes")]

A key without a value (null) counts as not given. A number is taken for text: YAML reads ``name: 2026`` as a number. The
words of an enum or a ``Literal`` may be written in capitals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from streamhouse.core.errors import ConfigError, InvalidRequest, InvalidSetting
from streamhouse.core.suggest import did_you_mean

Path = tuple[str, ...]
Text = Annotated[str, Meta(min_length=1, max_length=4_096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentProblem:
    path: Path
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = ".".join(self.path)
        said = f"{where}: {self.message}" if where else self.message
        return f"{said} ({self.hint})" if self.hint else said


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping with known keys. Other keys are refused."""

    def contradictions(self) -> Iterator[DocumentProblem]:
        """Fields that are right by themselves and wrong together. Paths begin at this document."""
        return iter(())


D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """``before`` and ``check`` may raise ConfigError or InvalidRequest."""

    example: str = ""
    """A hint, if the value is missing or wrong."""
    wrong: str = ""
    """Said after the value, instead of the message of msgspec; for patterns."""
    before: Callable[[Any], Any] | None = None
    """Called with the value as it was written. Returns the value to convert; for short forms."""
    check: Callable[[Any], object] | None = None
    """A check that is called with the converted value."""


_NO_RULE: Final = KeyRule()


def read(kind: type[D], document: object) -> tuple[D | None, list[DocumentProblem]]:
    """The struct; or None and the problems."""
    problems: list[DocumentProblem] = []
    found = _value(kind, document, (), problems)
    return (None if problems else found), problems


def _value(kind: Any, value: Any, path: Path, problems: list[DocumentProblem]) -> Any:
    """Return the converted value, or None if there were problems."""
    if value is None and NoneType in get_args(kind):
        return None
    base, rule = _unwrapped(kind)
    count = len(problems)
    try:
        if rule.before is not None:
            value = rule.before(value)
        if isinstance(base, type) and issubclass(base, Document):
            value = _document(base, value, path, problems)
        elif get_origin(base) is dict:
            value = _mapping(base, value, path, problems)
        else:
            value = _leaf(kind, base, value, rule)
        if rule.check is not None and len(problems) == count:
            rule.check(value)
    except (ConfigError, InvalidRequest) as error:
        problems.append(DocumentProblem(path=path, message=error.message, hint=error.hint or rule.example))
    return value if len(problems) == count else None


def _document(kind: type[D], value: Any, path: Path, problems: list[DocumentProblem]) -> D | None:
    given, fields = _items(value), {field.encode_name: field for field in msgspec.structs.fields(kind)}
    found, count = dict[str, Any](), len(problems)
    for name, field in fields.items():
        if given.get(name) is not None:
            found[field.name] = _value(field.type, given[name], (*path, name), problems)
        elif field.required:
            problems.append(
                DocumentProblem(path=path, message=f"{name} is missing", hint=_unwrapped(field.type)[1].example)
            )
    for name in [name for name in given if name not in fields]:
        hint = did_you_mean(name, fields, otherwise=f"known here: {', '.join(sorted(fields))}")
        problems.append(DocumentProblem(path=(*path, name), message=f"there is no {name[:80]!r} here", hint=hint))
    if len(problems) > count:
        return None
    made = kind(**found)
    problems += [replace(each, path=(*path, *each.path)) for each in made.contradictions()]
    return made


def _mapping(kind: Any, value: Any, path: Path, problems: list[DocumentProblem]) -> dict[str, Any]:
    key_kind, value_kind = get_args(kind)
    found: dict[str, Any] = {}
    for name, each in _items(value).items():
        key = _value(key_kind, name, (*path, name), problems)
        found[name] = None if key is None else _value(value_kind, each, (*path, name), problems)
    return found


def _items(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidSetting("is not a mapping of names to values")
    return {str(name): each for name, each in value.items()}


def _leaf(kind: Any, base: Any, value: Any, rule: KeyRule) -> Any:
    choices = _choices(base)
    if (base is str or choices) and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if choices and isinstance(value, str):
        value = value.lower()
        if value not in choices:
            hint = did_you_mean(value, choices, otherwise=f"write {', '.join(choices)}")
            raise InvalidSetting(f"{value[:80]!r} is none of {', '.join(choices)}", hint=hint)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if rule.wrong and value and isinstance(value, str):
            raise InvalidSetting(f"{value[:80]!r} {rule.wrong}", hint=rule.example) from None
        said = str(error).replace("`", "").replace("Expected", "expected", 1).partition(" - at ")[0]
        raise InvalidSetting(said, hint=rule.example) from None


def _choices(base: Any) -> list[str]:
    if get_origin(base) is Literal:
        return list(get_args(base))
    return [each.value for each in base] if isinstance(base, type) and issubclass(base, StrEnum) else []


def _unwrapped(kind: Any) -> tuple[Any, KeyRule]:
    """The type without ``| None`` and ``Annotated``, and its rule."""
    rule = _NO_RULE
    while True:
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            rule = next((note for note in reversed(notes) if isinstance(note, KeyRule)), rule)
        elif get_origin(kind) in (Union, UnionType):
            (kind,) = (each for each in get_args(kind) if each is not NoneType)
        else:
            return kind, rule
