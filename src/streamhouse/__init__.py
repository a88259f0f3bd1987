"""StreamHouse: S3-native, Kafka-compatible event streaming in Python. Its API is the class ``StreamHouse``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamhouse.app.platform import StreamHouse

__all__ = ["StreamHouse", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The API is loaded when it is first asked for: the command line must start without it."""
    if name == "StreamHouse":
        from streamhouse.app.platform import StreamHouse

        return StreamHouse
    raise AttributeError(f"module 'streamhouse' has no attribute {name!r}")
