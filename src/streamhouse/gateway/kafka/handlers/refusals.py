"""How a handler puts what went wrong into its answer: the error's Kafka code, and its words where there is room."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Iterable
from typing import Final, TypeVar

from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Fields
from streamhouse.gateway.kafka.codes import ErrorCode

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

FINE: Final[Fields] = {"error_code": 0, "error_message": None}


def refusal(code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message}


def refused(error: StreamHouseError) -> Fields:
    return refusal(error.kafka_code, str(error))


async def attempt(what: str, work: Awaitable[T]) -> T | Fields:
    """The result, or the error as fields of the answer. A defect goes to the log, and to the client as -1."""
    try:
        return await work
    except StreamHouseError as error:
        return refused(error)
    except Exception:
        _log.exception("%s failed", what)
        return refusal(ErrorCode.UNKNOWN_SERVER_ERROR, f"{what} failed; the broker's log says why")


def repeated(names: Iterable[T]) -> set[T]:
    """Those named more than once in one request, which Kafka refuses."""
    return {name for name, count in Counter(names).items() if count > 1}
