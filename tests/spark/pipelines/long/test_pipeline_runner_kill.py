"""A pipeline's runner killed with -9 in the middle of its work, once; what is in the target afterwards."""

from __future__ import annotations

import json

from pipeline_ground import per_minute, rows_per_minute
from runner_ground import COUNT, Shop, batches_done, wait_until


def test_r8_an_aggregation_into_postgresql_survives_kill_9_of_its_runner(shop: Shop) -> None:
    applied = shop.command("apply", "-f", str(shop.file))
    assert (applied.returncode, applied.stdout.split()[4:7]) == (0, ["per-minute", "created", "running"])
    runner = shop.runner()
    wait_until(lambda: batches_done(shop.dsn) >= 2, runner)
    runner.kill(all_of_it=False)
    assert rows_per_minute(shop.dsn) != per_minute(range(COUNT))
    runner = shop.runner()
    wait_until(lambda: rows_per_minute(shop.dsn) == per_minute(range(COUNT)), runner)
    shown = json.loads(shop.command("pipeline", "list", "-o", "json").stdout)
    assert [(each["name"], each["wanted"], each["state"]) for each in shown] == [("per-minute", "running", "running")]
    shop.command("pipeline", "stop", "per-minute")
    wait_until(lambda: "stopped" in shop.command("pipeline", "logs", "per-minute").stdout, runner)
    assert runner.end() == 0
    assert rows_per_minute(shop.dsn) == per_minute(range(COUNT))
    said = shop.command("pipeline", "logs", "per-minute").stdout
    assert "started at the beginning" in said
    assert "started where its checkpoint stands" in said
