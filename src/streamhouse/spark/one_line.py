"""Errors of ours, as Spark shows them: one line instead of two screens of frames that help nobody."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from streamhouse.core.errors import StreamHouseError

P = ParamSpec("P")
T = TypeVar("T")


def one_line(call: Callable[P, T]) -> Callable[P, T]:
    """Around what Spark calls. For an error that is not ours the frames stay."""

    @functools.wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except StreamHouseError:
            # PySpark's own switch. The process is one of its workers, which ends with this error.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return wrapped
