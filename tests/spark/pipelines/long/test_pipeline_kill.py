"""kill -9 of a pipeline's runner, or of its Spark, again and again, at any time: PostgreSQL has exactly the right rows.

SPARK_KILLS says how often. Orders keep coming, so that there is work left whenever the runner dies.
"""

from __future__ import annotations

import json
import os
import random
import time

import pytest
from pipeline_ground import per_minute, rows_per_minute, write_orders
from runner_ground import COUNT, Shop, batches_done, wait_until

from streamhouse.testing.plugin import RunningStreamHouse

KILLS = int(os.environ.get("SPARK_KILLS", "1"))
MORE = 600
"""Orders that come with every runner: three batches of them."""


@pytest.mark.timeout(300 + 60 * KILLS)
def test_r8_the_rows_are_right_after_many_kills(shop: Shop, streamhouse: RunningStreamHouse) -> None:
    assert shop.command("apply", "-f", str(shop.file)).returncode == 0
    dice, count = random.Random(6), COUNT
    for number in range(KILLS):
        runner = shop.runner()
        before = batches_done(shop.dsn)
        wait_until(lambda before=before: batches_done(shop.dsn) > before, runner)  # type: ignore[misc]
        time.sleep(dice.uniform(0, 1))
        runner.kill(all_of_it=number % 2 == 0)
        assert rows_per_minute(shop.dsn) != per_minute(range(count)), f"kill {number} came when all was done"
        write_orders(streamhouse, count, count + MORE)
        count += MORE
    runner, expected = shop.runner(), per_minute(range(count))
    wait_until(lambda: rows_per_minute(shop.dsn) == expected, runner)
    assert runner.end() == 0
    assert rows_per_minute(shop.dsn) == expected


def test_r8_a_runner_outlives_its_spark(shop: Shop) -> None:
    assert shop.command("apply", "-f", str(shop.file)).returncode == 0
    runner = shop.runner()
    wait_until(lambda: batches_done(shop.dsn) >= 1, runner)
    runner.kill_spark()
    wait_until(lambda: rows_per_minute(shop.dsn) == per_minute(range(COUNT)), runner)
    assert "Spark has died; starting it again" in runner.log.read_text()
    assert runner.end() == 0


def test_an_isolated_pipeline_has_an_application_of_its_own(shop: Shop) -> None:
    shop.file.write_text(shop.file.read_text() + "    isolated: true\n    trigger: available-now\n")
    assert shop.command("apply", "-f", str(shop.file)).returncode == 0
    runner = shop.runner("--until-idle")
    assert runner.process.wait(250) == 0
    assert rows_per_minute(shop.dsn) == per_minute(range(COUNT))
    (shown,) = json.loads(shop.command("pipeline", "list", "-o", "json").stdout)
    assert (shown["wanted"], shown["state"]) == ("stopped", "finished")
    described = json.loads(shop.command("pipeline", "describe", "per-minute", "-o", "json").stdout)
    assert f"/{runner.process.pid}/" not in described["runner"]
