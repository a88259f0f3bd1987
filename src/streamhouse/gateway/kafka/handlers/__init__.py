"""One file per Kafka API, ``api_<key>_<name>.py``. ``register_all`` imports them: what has no file is not offered."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules


def register_all() -> None:
    for module in iter_modules(__path__):
        if module.name.startswith("api_"):
            import_module(f"{__name__}.{module.name}")
