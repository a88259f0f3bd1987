"""What a client process is told reads back, in Python and as Java properties."""

from __future__ import annotations

from pathlib import Path

from streamhouse.chaos.load.spec import GroupSpec, LoadSpec, Role, load_spec


def test_a_spec_reads_back(tmp_path: Path) -> None:
    spec = LoadSpec(
        role=Role.GROUPS,
        client="aiokafka",
        run="r",
        bootstrap="127.0.0.1:1",
        topics={"t": 2, "u": 1},
        history="/h",
        process="aiokafka",
        seed=3,
        rate=10.0,
        settle_s=5.0,
        groups=(GroupSpec(name="g", protocol="classic", members=2),),
    )
    spec.save(tmp_path / "spec.json")
    assert load_spec(tmp_path / "spec.json") == spec
    assert isinstance(load_spec(tmp_path / "spec.json").role, Role), "process.py chooses by it"
    assert spec.places == [("t", 0), ("t", 1), ("u", 0)]
    spec.save_for_java(tmp_path / "spec.properties")
    assert "topics=t:2,u:1\ngroups=g:classic:2\n" in (tmp_path / "spec.properties").read_text()
