"""The problems of an agent: each cause is logged once, however many loops report it, and the health lists them all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from streamhouse.cluster.problems import METADATA_STORE, OBJECT_STORE, Problems
from streamhouse.core.errors import CorruptData, MetadataUnavailable, StoreUnavailable
from virtual_time import LoopClock, run_virtually

AWAY = MetadataUnavailable("away")
NO_BUCKET = StoreUnavailable("no bucket")
SETTLED_S = 2.0
"""Longer than an outage waits before it counts as over."""


@pytest.fixture(autouse=True)
def _warnings_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="streamhouse.cluster.problems")


def play(story: Callable[[Problems], Coroutine[Any, Any, None]]) -> None:
    run_virtually(story(Problems(clock=LoopClock())))


def causes(problems: Problems) -> list[str]:
    return [outage.what for outage in problems.outages()]


def test_a_store_that_is_away_is_one_outage_until_the_last_loop_works(caplog: pytest.LogCaptureFixture) -> None:
    async def story(problems: Problems) -> None:
        for _ in range(3):
            for loop in ("heartbeat", "renewals", "assigner"):
                problems.report(loop, AWAY)
        assert causes(problems) == [METADATA_STORE]
        for loop in ("heartbeat", "renewals"):
            problems.report(loop, None)
            await asyncio.sleep(SETTLED_S)
        assert causes(problems) == [METADATA_STORE], "the assigner still waits for it"
        problems.report("assigner", None)
        await asyncio.sleep(SETTLED_S)
        assert causes(problems) == []
        assert not problems

    play(story)
    assert caplog.messages == [
        f"problem with the metadata store: {AWAY}",
        "the metadata store works again after 4.0 s",
    ]


@pytest.mark.parametrize(
    ("error", "cause", "text"),
    [
        (AWAY, METADATA_STORE, str(AWAY)),
        (TimeoutError(), METADATA_STORE, "no answer in time"),
        (NO_BUCKET, OBJECT_STORE, str(NO_BUCKET)),
        (CorruptData("torn"), "renewals", "torn"),
        (OSError(), "renewals", "OSError"),
        ("no live agent", "renewals", "no live agent"),
    ],
)
def test_the_cause_is_a_store_that_is_away_or_else_the_loop_itself(
    error: Exception | str, cause: str, text: str
) -> None:
    async def story(problems: Problems) -> None:
        problems.report("renewals", error)
        assert causes(problems) == [cause]
        assert str(problems) == f"renewals: {text}"

    play(story)


def test_two_causes_are_two_outages_and_one_line_of_health() -> None:
    async def story(problems: Problems) -> None:
        problems.report("heartbeat", AWAY)
        problems.report("flush", NO_BUCKET)
        assert causes(problems) == [METADATA_STORE, OBJECT_STORE]
        assert str(problems) == f"heartbeat: {AWAY}; flush: {NO_BUCKET}"
        problems.report("heartbeat", None)
        await asyncio.sleep(SETTLED_S)
        assert causes(problems) == [OBJECT_STORE]
        assert str(problems) == f"flush: {NO_BUCKET}"

    play(story)


def test_a_loop_that_fails_in_another_way_ends_its_former_outage() -> None:
    async def story(problems: Problems) -> None:
        problems.report("open", AWAY)
        problems.report("open", CorruptData("torn"))
        await asyncio.sleep(SETTLED_S)
        assert causes(problems) == ["open"]
        assert str(problems) == "open: torn"

    play(story)


def test_a_loop_that_works_and_never_failed_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    async def story(problems: Problems) -> None:
        problems.report("heartbeat", None)
        await asyncio.sleep(SETTLED_S)
        assert not problems

    play(story)
    assert caplog.messages == []


def test_an_agent_that_stops_does_not_log_that_its_troubles_are_over(caplog: pytest.LogCaptureFixture) -> None:
    async def story(problems: Problems) -> None:
        problems.report("heartbeat", AWAY)
        problems.report("heartbeat", None)
        problems.forget()
        await asyncio.sleep(SETTLED_S)
        assert causes(problems) == []

    play(story)
    assert caplog.messages == [f"problem with the metadata store: {AWAY}"]
