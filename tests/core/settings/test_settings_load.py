"""The configuration file: where it is looked for, and everything that can be wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from settings_ground import only

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.limits import MAX_CONFIG_FILE_BYTES
from streamhouse.core.settings import attempt_settings, load_settings


class TestFile:
    """Search order, and everything that can be wrong with a file."""

    def zone(self, tmp_path: Path, **named: object) -> str:
        return load_settings(working_dir=tmp_path, **{"environ": {}, **named}).settings.agent.zone  # type: ignore[arg-type]

    def test_the_flag_beats_the_variable_beats_the_working_directory(self, tmp_path: Path) -> None:
        for name in ("flag", "variable", "streamhouse"):
            (tmp_path / f"{name}.toml").write_text(f'[agent]\nzone = "{name}"\n')
        environ = {"STREAMHOUSE_CONFIG": "variable.toml"}
        assert self.zone(tmp_path, environ=environ, config_path=Path("flag.toml")) == "flag"
        assert self.zone(tmp_path, environ=environ) == "variable"
        assert self.zone(tmp_path) == "streamhouse"

    def test_no_file_is_fine_unless_one_was_named(self, tmp_path: Path) -> None:
        assert self.zone(tmp_path) == "default"
        for named in ({"config_path": Path("gone.toml")}, {"environ": {"STREAMHOUSE_CONFIG": "gone.toml"}}):
            with pytest.raises(InvalidSetting, match=r"gone\.toml: No such file.*named by"):
                self.zone(tmp_path, **named)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"[agent\n", "not valid TOML"),
            (b'[agent]\nzone = "a"\nzone = "b"\n', "not valid TOML"),
            (b"\xff\xfe", "not UTF-8"),
            (b"#" * (MAX_CONFIG_FILE_BYTES + 1), "larger than 1MiB"),
            (b"a = " + b"[" * 100_000, "nested too deeply"),
        ],
    )
    def test_a_file_that_cannot_be_used(self, tmp_path: Path, content: bytes, says: str) -> None:
        path = tmp_path / "streamhouse.toml"
        path.write_bytes(content)
        problem = only(attempt_settings(environ={}, working_dir=tmp_path).problems)
        assert str(path) in problem.message
        assert says in problem.message

    def test_a_directory_in_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "streamhouse.toml").mkdir()
        problem = only(attempt_settings(environ={}, working_dir=tmp_path).problems)
        assert "Is a directory" in problem.message

    def test_dotted_keys_and_sections_are_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "streamhouse.toml").write_text('data_dir = "d"\nagent.zone = "dotted"\n')
        assert self.zone(tmp_path) == "dotted"

    def test_left_out_the_process_itself_is_asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in [name for name in os.environ if name.startswith("STREAMHOUSE_")]:
            monkeypatch.delenv(variable)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("STREAMHOUSE_AGENT_ZONE", "of-the-process")
        found = load_settings().settings
        assert found.agent.zone == "of-the-process"
        assert found.data_dir == Path(os.path.realpath(tmp_path)) / "streamhouse-data"


class TestDataDirectory:
    """A path that is taken by a file is refused before anything is opened."""

    @pytest.mark.parametrize("chosen", ["notes.txt", "notes.txt/data/deeper"])
    def test_a_file_is_refused(self, tmp_path: Path, chosen: str) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        refused = only(attempt_settings(flags={"data_dir": chosen}, environ={}, working_dir=tmp_path).problems)
        assert f"must be a directory; {tmp_path / chosen} is " in refused.message
        assert "it is made if it does not exist" in refused.hint

    def test_what_does_not_exist_yet_is_fine(self, tmp_path: Path) -> None:
        for chosen in (".", "new", "new/deeper"):
            load_settings(flags={"data_dir": chosen}, environ={}, working_dir=tmp_path)
        assert list(tmp_path.iterdir()) == []
