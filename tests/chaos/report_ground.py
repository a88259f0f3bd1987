"""A report to show: who took part, what was done, and what a history made by hand holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from chaos_histories import Tale, chaos_options

from streamhouse.chaos.fleet.nemesis import Happened
from streamhouse.chaos.load.clients import Clients, LoadClient
from streamhouse.chaos.options import FaultKind, Options
from streamhouse.chaos.report.document import Story, compose


def full_report(tale: Tale, tmp_path: Path) -> dict[str, Any]:
    options = Options(
        minutes=1,
        agents=2,
        seed=4,
        results=tmp_path,
        fault_every_s=5,
        faults=tuple(FaultKind),
        floor=0.5,
        rate=10,
        unavailable_limit_s=60,
        settle_s=5,
        keep=False,
    )
    story = Story(
        run="r",
        version="0",
        target="2 agents of its own",
        versions={"PostgreSQL": "15"},
        begin_ms=1000,
        end_ms=61_000,
        interrupted=False,
        clients=Clients(
            present=[LoadClient(name="librdkafka", version="2")], absent=["java: there is no java on PATH"]
        ),
        happened=[
            Happened(kind="kill", target="agent-1", begin_ms=5000, end_ms=7000, detail="for 2.0 s"),
            Happened(kind="s3", target="s3", begin_ms=9000, end_ms=12_000, detail="hold for 3.0 s; <late>"),
        ],
        left_out=Counter({FaultKind.PAUSE: 2}),
        skipped={FaultKind.CLOCK: "libfaketime is not installed"},
        good_share=0.9,
        problems=[],
    )
    return compose(options, story, tale.verdict())


def bare_report(tmp_path: Path, **more: Any) -> dict[str, Any]:
    tale = more.pop("tale", None) or Tale(tmp_path / "history-of-a-test")
    common: dict[str, Any] = {
        "run": "r",
        "version": "0",
        "target": "2 agents of its own",
        "versions": {},
        "begin_ms": 1000,
        "end_ms": 61_000,
        "interrupted": False,
        "clients": Clients(present=[], absent=[]),
        "happened": [],
        "left_out": Counter(),
        "skipped": {},
        "good_share": 0.9,
        "problems": [],
    }
    return compose(chaos_options(tmp_path), Story(**{**common, **more}), tale.verdict())
