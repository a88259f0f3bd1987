"""kill -9 of a pipeline's runner, again and again, at any time: PostgreSQL ends with exactly the right rows.

SPARK_KILLS says how often.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from pipeline_ground import per_minute, rows_per_minute
from runner_ground import batches_done, wait_until
from test_pipeline_runner import COUNT, Shop

from streamhouse.testing.plugin import RunningStreamHouse

KILLS = int(os.environ.get("SPARK_KILLS", "1"))


@pytest.mark.timeout(240 + 60 * KILLS)
def test_r8_the_rows_are_right_after_many_kills(
    streamhouse: RunningStreamHouse, tmp_path: Path, postgres_database: str
) -> None:
    shop = Shop(streamhouse, tmp_path, postgres_database)
    assert shop.command("apply", "-f", str(shop.file)).returncode == 0
    dice = random.Random(6)
    for number in range(KILLS):
        runner = shop.runner()
        before = batches_done(shop.dsn)
        wait_until(lambda before=before: batches_done(shop.dsn) > before, runner)  # type: ignore[misc]
        time.sleep(dice.uniform(0, 1))
        runner.kill(all_of_it=number % 2 == 0)
        if rows_per_minute(shop.dsn) == per_minute(range(COUNT)):
            break
    runner = shop.runner()
    wait_until(lambda: rows_per_minute(shop.dsn) == per_minute(range(COUNT)), runner)
    assert runner.end() == 0
    assert rows_per_minute(shop.dsn) == per_minute(range(COUNT))
