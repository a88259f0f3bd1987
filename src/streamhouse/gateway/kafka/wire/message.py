"""A message as a handler sees it: fields as attributes, whatever the version had of them."""

from __future__ import annotations

from typing import Any


class Message:
    """Fields by their snake_case names. Those that the version lacks read as their default; structs are Messages,
    arrays lists; times are integers in milliseconds, error codes integers, a missing uuid is the zero one.
    """

    def __init__(self, **fields: Any) -> None:
        self.__dict__ = fields

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Message:
        """Takes ``fields`` over, without a copy."""
        made = cls.__new__(cls)
        made.__dict__ = fields
        return made

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this message has no field {name!r}; it has {', '.join(self.__dict__)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Message({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"
