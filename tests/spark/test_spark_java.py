"""Which Java a session starts, whether it is new enough, its class cache and its log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from java_ground import fake_java

from streamhouse.core.clock import ManualClock, SystemClock
from streamhouse.core.errors import InvalidSetting
from streamhouse.spark import java
from streamhouse.spark.java import cache_options, check_java, find_java, log_options


@pytest.mark.parametrize(
    ("release", "says"),
    [("11.0.22", ""), ("1.8.0_402", ""), (None, 'openjdk version "11.0.22" 2024-01-16')],
    ids=["release-file", "java-8-style", "asked"],
)
def test_an_old_java_is_named_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, says: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", says, release=release)))
    with pytest.raises(InvalidSetting, match=r"Spark needs Java 17 or newer, and .*/jdk/bin/java is Java (8|11)"):
        check_java()


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidSetting, match="Spark needs Java 17 or newer, and there is no java on PATH"):
        check_java()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidSetting, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        check_java()


def test_a_program_that_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has such a stub."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "No Java runtime is present")))
    with pytest.raises(InvalidSetting, match="does not say its version: No Java runtime is present"):
        check_java()


def test_the_java_of_this_machine_is_new_enough() -> None:
    assert check_java() >= java.OLDEST


def test_of_several_recordings_of_java_classes_one_is_kept(tmp_path: Path) -> None:
    def options() -> list[str]:
        return cache_options(
            tmp_path, pyspark_home=tmp_path, pyspark_version="0", process_id=os.getpid(), clock=SystemClock()
        )

    (recording,) = [Path(each.partition("=")[2]) for each in options() if "ArchiveClassesAtExit" in each]
    for ended in (1, 2):
        recording.with_name(recording.name.replace(f".{os.getpid()}.", f".ended-{ended}.")).touch()
    (archive,) = [Path(each.partition("=")[2]) for each in options() if "SharedArchiveFile" in each]
    assert list(tmp_path.iterdir()) == [archive]


def cached(directory: Path, *, process_id: int = 7, clock: ManualClock | None = None) -> list[str]:
    return cache_options(
        directory, pyspark_home=directory, pyspark_version="0", process_id=process_id, clock=clock or ManualClock()
    )


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, other = fake_java(tmp_path / "home", ""), fake_java(tmp_path / "other", "")
    monkeypatch.setenv("PATH", str(other / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home / "bin" / "java"
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == other / "bin" / "java"


def test_a_new_java_is_taken_by_its_release_file_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "broken", release="21.0.2")))
    assert check_java() == 21


def test_the_first_session_records_and_each_process_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "")))
    one, other = cached(tmp_path / "cache", process_id=1), cached(tmp_path / "cache", process_id=2)
    assert one[0].startswith("-XX:ArchiveClassesAtExit=")
    assert one[0] != other[0]


def test_without_java_or_without_a_place_there_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "")))
    (tmp_path / "file").touch()
    assert cached(tmp_path / "file" / "cache") == []
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert cached(tmp_path / "cache") == []


def test_another_java_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for home in ("one", "two"):
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / home, "")))
        names.append(cached(tmp_path / "cache")[0])
    assert names[0] != names[1]


def test_a_log_configuration_of_the_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    (ours,) = log_options(tmp_path)
    assert ours.startswith("-Dlog4j2.configurationFile=file://")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "log4j2.properties").touch()
    assert log_options(Path("/nowhere")) == []
