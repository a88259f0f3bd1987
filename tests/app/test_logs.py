"""The log of a process: lines for people or for machines, set up by processes only."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from streamhouse.app.logs import set_up_logs
from streamhouse.core.settings import LogFormat, LogLevel, LogSettings

TEXT = LogSettings(level=LogLevel.INFO, format=LogFormat.TEXT)
LOG = logging.getLogger("streamhouse.somewhere")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("streamhouse")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def test_a_line_for_people_has_time_level_place_and_words() -> None:
    stream = io.StringIO()
    set_up_logs(TEXT, stream=stream)
    LOG.info("%d leases", 3, extra={"leases": 3})
    LOG.debug("unheard")
    (line,) = stream.getvalue().splitlines()
    time, rest = line.split(" ", 1)
    assert (len(time), time[10], time[-1]) == (24, "T", "Z")
    assert rest == "INFO streamhouse.somewhere: 3 leases"


def test_a_line_for_machines_is_one_object_with_what_the_line_knows() -> None:
    stream = io.StringIO()
    set_up_logs(LogSettings(format=LogFormat.JSON, level=LogLevel.DEBUG), stream=stream)
    LOG.debug("two\nlines", extra={"leases": 3, "place": {1}, "level": "mine"})
    try:
        raise OSError("disk")
    except OSError:
        LOG.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert list(first) == ["time", "level", "logger", "message", "leases", "place"]
    assert (first["level"], first["logger"], first["message"]) == ("debug", "streamhouse.somewhere", "two\nlines")
    assert (first["leases"], first["place"]) == (3, "{1}")
    assert second["traceback"].endswith("OSError: disk")


def test_the_level_is_the_least_important_that_is_written_and_libraries_only_warn() -> None:
    stream = io.StringIO()
    set_up_logs(replace(TEXT, level=LogLevel.DEBUG), stream=stream)
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").warning("slow")
    set_up_logs(replace(TEXT, level=LogLevel.ERROR), stream=stream)
    LOG.warning("unheard")
    assert [line.split(": ", 1)[1] for line in stream.getvalue().splitlines()] == ["slow"]


def test_setting_it_up_twice_writes_each_line_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logs(TEXT, stream=first)
    set_up_logs(TEXT, stream=second)
    LOG.info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_a_program_with_streamhouse_inside_keeps_its_own_logging(tmp_path: object) -> None:
    program = f"""
import asyncio, logging
from streamhouse import StreamHouse
async def main():
    async with StreamHouse.open(data_dir={str(tmp_path)!r}, log_format="json", log_level="debug") as sh:
        await sh.create_topic("t", 1)
        await sh.produce("t", b"v")
asyncio.run(main())
print(logging.getLogger().handlers, logging.getLogger("streamhouse").handlers, logging.getLogger("streamhouse").level)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("[] [] 0\n", "")
