"""A Connect server that has nothing of ours: planner and tasks get the code from the client's session."""

from __future__ import annotations

from pathlib import Path

from cluster_ground import PYTHON, bare_site_packages, run_driver
from source_ground import fill

from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services import start_spark_connect


def test_a_connect_session_brings_the_code_along(
    streamhouse: RunningStreamHouse, source_options: dict[str, str], tmp_path: Path
) -> None:
    streamhouse.run(streamhouse.api.create_topic("orders", 2))
    streamhouse.run(fill(streamhouse.api, "orders", 0, 300))
    streamhouse.run(fill(streamhouse.api, "orders", 1, 200))
    bare = bare_site_packages(tmp_path / "bare")
    with start_spark_connect(environment={"PYSPARK_PYTHON": str(PYTHON), "PYTHONPATH": str(bare)}) as server:
        plan = {"remote": server.url, "options": source_options, "checkpoint": str(tmp_path / "checkpoint")}
        answer = run_driver("read_connect.py", plan)
    assert answer["batch"] == {"0": [300, sum(range(300))], "1": [200, sum(range(200))]}
    assert answer["streamed"] == answer["batch"]
