"""The pytest plugin, used as somebody else's project would: by installing StreamHouse and naming a fixture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamhouse import StreamHouse
from streamhouse.core.errors import TopicNotFound


def test_the_fixture_is_a_running_platform(streamhouse: Any) -> None:
    streamhouse.run(streamhouse.api.create_topic("orders", 2))
    sent = streamhouse.run(streamhouse.api.produce("orders", b"hello", partition=1))
    (record,) = streamhouse.run(streamhouse.api.read("orders", 1, sent.offset))
    assert record.value == b"hello"
    with pytest.raises(TopicNotFound):
        streamhouse.run(streamhouse.api.topic("other"))


def test_every_test_has_its_own(streamhouse: Any) -> None:
    assert streamhouse.run(streamhouse.api.topics()) == []


async def test_options_serve_async_tests(streamhouse_options: dict[str, str]) -> None:
    async with StreamHouse.open(**streamhouse_options) as sh:
        await sh.create_topic("orders", 1)


def test_a_foreign_project_finds_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "def test_it(streamhouse):\n    assert streamhouse.run(streamhouse.api.topics()) == []\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
