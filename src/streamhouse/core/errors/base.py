"""The root of the error tree, and the errors of the lowest layer: settings, and servers that tests start."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

_E = TypeVar("_E", bound=BaseException)


class StreamHouseError(Exception):
    """Root of the tree. ``message`` says what and where; ``hint`` says what to do next."""

    kafka_code: ClassVar[int] = -1  # UNKNOWN_SERVER_ERROR
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Spark's tasks send errors to the driver. Exceptions are unpickled by a call of their class with ``args``, but
        many classes here take other arguments. So the copy is made without ``__init__``, and gets all attributes."""
        return _without_init, (type(self), self.args), self.__dict__


def _without_init(cls: type[StreamHouseError], args: tuple[Any, ...]) -> StreamHouseError:
    return cls.__new__(cls, *args)


def as_result(error: _E) -> _E:
    """The error without its traceback, to be kept in a result instead of being raised.

    A traceback holds the frames of its whole call stack, and with them the bytes of the request. A frame that holds the
    result as well makes a cycle: the bytes would stay until the garbage collector's next look at older objects.
    """
    error.__traceback__ = error.__context__ = None
    return error


class ConfigError(StreamHouseError):
    kafka_code = 40  # INVALID_CONFIG
    http_status = 400


class UnknownSetting(ConfigError):
    pass


class InvalidSetting(ConfigError):
    pass


class InvalidTopicConfig(ConfigError):
    pass


class ServiceError(StreamHouseError):
    http_status = 503


class ServiceMissing(ServiceError):
    pass


class ServiceFailed(ServiceError):
    pass
