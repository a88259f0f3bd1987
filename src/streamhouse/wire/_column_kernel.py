"""Which of the twins does the work: the compiled one where it was built, unless STREAMHOUSE_PURE=1 asks otherwise."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING


def _choose() -> ModuleType:
    if os.environ.get("STREAMHOUSE_PURE") != "1":
        try:
            return importlib.import_module("streamhouse.wire._columns")
        except ModuleNotFoundError as error:
            if error.name != "streamhouse.wire._columns":
                raise
    return importlib.import_module("streamhouse.wire._columns_py")


if TYPE_CHECKING:
    from streamhouse.wire import _columns_py as kernel
else:
    kernel = _choose()

__all__ = ["IS_COMPILED", "kernel"]

IS_COMPILED: bool = kernel.__name__.endswith("._columns")
