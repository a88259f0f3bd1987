"""The pytest plugin, used as another project would: by installing StreamHouse and naming a fixture."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamhouse import StreamHouse
from streamhouse.core.errors import TopicNotFound
from streamhouse.testing.plugin import running

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.md"
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$",
    QUICKSTART.read_text().partition("\n## In tests\n")[2].partition("\n## ")[0],
    re.MULTILINE | re.DOTALL,
)


def test_plain_tests_call_and_have_the_result(streamhouse: Any) -> None:
    streamhouse.create_topic("orders", 2)
    sent = streamhouse.produce("orders", b"hello", partition=1)
    (record,) = streamhouse.read("orders", 1, sent.offset)
    assert record.value == b"hello"
    with pytest.raises(TopicNotFound):
        streamhouse.topic("other")


async def test_async_tests_await_the_same_calls(streamhouse: Any) -> None:
    await streamhouse.create_topic("orders", 2)
    sent, _ = await asyncio.gather(*(streamhouse.produce("orders", b"hello", partition=each) for each in (1, 0)))
    (record,) = await streamhouse.read("orders", 1, sent.offset)
    assert record.value == b"hello"
    with pytest.raises(TopicNotFound):
        await streamhouse.topic("other")


async def test_an_awaited_call_leaves_the_tests_own_loop_free(streamhouse: Any) -> None:
    await streamhouse.create_topic("orders", 1)
    waiting = asyncio.create_task(streamhouse.read("orders", 0, 0, wait_ms=30_000))
    await asyncio.sleep(0)
    await streamhouse.produce("orders", b"hello")
    assert [record.value for record in await waiting] == [b"hello"]


def test_calls_of_ones_own_run_where_the_platform_does(streamhouse: Any) -> None:
    async def both() -> int:
        await streamhouse.api.create_topic("orders", 1)
        return len(await streamhouse.api.topics())

    assert streamhouse.run(both()) == 1


def test_it_has_what_the_platform_has_and_no_more(streamhouse: Any) -> None:
    assert streamhouse.settings is streamhouse.api.settings
    assert streamhouse.kafka_addresses == []
    assert {"create_topic", "produce", "run", "api"} <= set(dir(streamhouse))
    assert streamhouse.create_topic.__doc__ == streamhouse.api.create_topic.__doc__
    with pytest.raises(AttributeError, match="'StreamHouse' object has no attribute 'creat_topic'"):
        streamhouse.creat_topic("orders", 1)
    with pytest.raises(AttributeError):
        streamhouse._agent  # noqa: B018


def test_every_test_has_its_own(streamhouse: Any) -> None:
    assert streamhouse.topics() == []


async def test_options_serve_async_tests(streamhouse_options: dict[str, str]) -> None:
    async with StreamHouse.open(**streamhouse_options) as sh:
        await sh.create_topic("orders", 1)


def test_the_platform_may_also_be_a_block(streamhouse_options: dict[str, str]) -> None:
    for _ in range(2):
        with running(streamhouse_options) as platform:
            assert platform.topics() == []


def pytest_in(directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(directory)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=directory,
    )
    return done.stdout + done.stderr


def test_the_examples_of_the_quickstart_work_in_a_foreign_project(tmp_path: Path) -> None:
    """They work as they stand there, in a directory that knows nothing of ours but the installed plugin."""
    assert len(EXAMPLES) >= 4
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    told = pytest_in(tmp_path)
    assert f"{len(EXAMPLES)} passed in" in told, told
