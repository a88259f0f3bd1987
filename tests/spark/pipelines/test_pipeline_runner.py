"""The commands as people use them, with a runner in its own process: applied, run, killed with -9, run again, right."""

from __future__ import annotations

import json

from runner_ground import Shop


def test_the_commands_say_what_is_there(shop: Shop) -> None:
    assert shop.command("apply", "-f", str(shop.file), "--dry-run").stdout.split()[4:6] == ["per-minute", "created"]
    assert json.loads(shop.command("pipeline", "list", "-o", "json").stdout) == []
    shop.command("apply", "-f", str(shop.file))
    again = json.loads(shop.command("apply", "-f", str(shop.file), "-o", "json").stdout)
    assert again == [{"name": "per-minute", "action": "unchanged", "wanted": "running", "changes": []}]
    shop.file.write_text(shop.file.read_text().replace("output_mode", "output_mod"))
    broken = shop.command("apply", "-f", str(shop.file))
    assert (broken.returncode, broken.stdout) == (2, "")
    assert "pipelines.yaml:10: pipeline per-minute: output_mod: there is no 'output_mod' here" in broken.stderr

    described = json.loads(shop.command("pipeline", "describe", "per-minute", "-o", "json").stdout)
    assert (described["state"], described["generation"]) == ("waiting", 0)
    assert described["definition"]["output_mode"] == "update"
    refused = shop.command("pipeline", "delete", "per-minute", "--yes")
    assert (refused.returncode, "stop it first" in refused.stderr) == (4, True)
    missing = shop.command("pipeline", "start", "per-minut")
    assert (missing.returncode, "did you mean per-minute?" in missing.stderr) == (3, True)
    unasked = shop.command("pipeline", "start", "per-minute", "--reset")
    assert (unasked.returncode, "stdin is not a terminal; pass --yes" in unasked.stderr) == (2, True)
    assert "keeps: every row in PostgreSQL table per_minute" in unasked.stderr
    assert "no runner is there" in shop.command("pipeline", "start", "per-minute", "--reset", "--yes").stderr
    described = json.loads(shop.command("pipeline", "describe", "per-minute", "-o", "json").stdout)
    assert described["generation"] == 1
    assert shop.command("pipeline", "stop", "per-minute").returncode == 0
    unasked = shop.command("pipeline", "delete", "per-minute")
    assert (unasked.returncode, unasked.stdout) == (2, "")
    assert "per-minute: removes: its progress" in unasked.stderr
    assert shop.command("pipeline", "delete", "per-minute", "--yes").returncode == 0
    assert json.loads(shop.command("pipeline", "list", "-o", "json").stdout) == []
    created = shop.command(
        "pipeline", "create", "copy", "--from", "o=orders", "--schema", "id BIGINT", "--sql", "SELECT id FROM o",
        "--to-postgres", "postgresql://me:secret@db/x", "--table", "ids", "--no-start",
    )  # fmt: skip
    assert created.returncode == 0, created.stderr
    assert "secret" not in shop.command("pipeline", "describe", "copy").stdout
    away = shop.command("pipeline", "delete", "copy", "--yes")
    assert (away.returncode, "--keep-progress" in away.stderr, "secret" in away.stderr) == (4, True, False)
    assert shop.command("pipeline", "delete", "copy", "--yes", "--keep-progress").returncode == 0
    wrong = shop.command("pipeline", "create", "c", "--from", "a", "--sql", "SELECT 1")
    assert (wrong.returncode, "give one target" in wrong.stderr) == (2, True)
