"""Which twin runs the loops over records: the compiled one where it was built, unless STREAMHOUSE_PURE=1 asks
otherwise."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Final

_PACKAGE: Final = "streamhouse.maintenance.key_compaction"


def _choose() -> ModuleType:
    if os.environ.get("STREAMHOUSE_PURE") != "1":
        try:
            return importlib.import_module(f"{_PACKAGE}._key_loops")
        except ModuleNotFoundError as error:
            if error.name != f"{_PACKAGE}._key_loops":
                raise
    return importlib.import_module(f"{_PACKAGE}._key_loops_py")


if TYPE_CHECKING:
    from streamhouse.maintenance.key_compaction import _key_loops_py as loops
else:
    loops = _choose()

__all__ = ["loops"]
