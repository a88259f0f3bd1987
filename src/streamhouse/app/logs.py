"""How a process writes its log: to stderr, a line for people or a JSON object for machines (settings `log.*`).

Only processes set this up. A program that has StreamHouse inside decides for itself where its loggers, all below
``streamhouse``, go; nothing here is touched on import.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

from streamhouse.core.settings import LogFormat, LogLevel, LogSettings

_OURS: Final = "streamhouse"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVELS: Final = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}


class TextLines(logging.Formatter):
    """``2026-01-31T12:00:00.123Z WARNING streamhouse.cluster.lease_log: words``; a traceback follows on lines of its
    own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 (the base class names it)
        return _utc(record)


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, then whatever else the line knows."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _ProcessHandler(logging.StreamHandler[TextIO]):
    """The handler of our log. A class of its own lets a second set-up replace the first."""


def set_up_logs(settings: LogSettings, *, stream: TextIO | None = None) -> None:
    """Set up the root logger: what libraries warn of belongs into the same log, in the same format."""
    handler = _ProcessHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if settings.format is LogFormat.JSON else TextLines())
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _ProcessHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    level = _LEVELS[settings.level]
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger(_OURS).setLevel(level)
    logging.captureWarnings(True)


def _utc(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
