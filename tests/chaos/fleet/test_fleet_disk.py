"""A small disk is filled to the last byte and emptied, or the reason why there is none is told."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamhouse.chaos.fleet.disk import SmallDisk, why_no_disks


def test_a_small_disk_is_filled_and_emptied_or_the_reason_why_not_is_told(tmp_path: Path) -> None:
    reason = why_no_disks(tmp_path)
    if reason is not None:
        assert "mount" in reason
        return
    home = tmp_path / "disk"
    home.mkdir()
    disk = SmallDisk(home)
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"), (home / "one").open("wb", buffering=0) as file:
            file.write(bytes(4096))
        disk.empty()
        (home / "one").write_bytes(bytes(4096))
    finally:
        disk.unmount()
    assert not os.path.ismount(home)


def test_only_root_can_have_small_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_no_disks(tmp_path) == "only root may mount a small disk"


def test_without_a_mount_program_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert why_no_disks(tmp_path) == "there is no mount program"


def test_a_mount_that_is_refused_is_told_and_the_probe_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, 32, "", "mount: permission denied.\n")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", refuse)
    reason = why_no_disks(tmp_path)
    assert reason is not None
    assert "a small disk cannot be mounted" in reason
    assert "permission denied" in reason
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_part", [True, False])
def test_filling_uses_every_byte_down_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_part: bool
) -> None:
    """A file that may grow to 3 MiB and 5 bytes stands for the disk. Writes beyond are cut, or refused as a whole."""
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0, "", ""))
    disk = SmallDisk(tmp_path)
    limit = 3 * 1024 * 1024 + 5

    class Full(io.FileIO):
        def write(self, data: Any, /) -> int:
            room = limit - self.tell()
            if not room or (len(data) > room and not in_part):
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[:room])

    monkeypatch.setattr(Path, "open", lambda self, mode, **_: Full(self, mode.replace("b", "")))
    disk.fill()
    assert (tmp_path / "filler").stat().st_size == limit
    disk.empty()
    disk.empty()
    assert list(tmp_path.iterdir()) == []
