"""Timings: what must hold between them, and where they come from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fleet import FAST

from streamhouse.cluster.contract import Mode, Timings
from streamhouse.core.errors import ConfigError
from streamhouse.core.settings import load_settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_interval_ms": 0},
        {"renew_interval_ms": 0},
        {"assign_interval_ms": -1},
        {"transfer_timeout_ms": 0},
        {"liveness_timeout_ms": 2_000},
        {"margin_ms": -1},
        {"margin_ms": 4_000},
        {"lease_ttl_ms": 2_600},
    ],
)
def test_timings_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(FAST, **wrong)


@pytest.mark.parametrize("profile", ["default", "fast"])
def test_s3_16_both_profiles_give_timings_that_work(profile: str, tmp_path: Path) -> None:
    settings = load_settings(
        flags={"data_dir": str(tmp_path), "profile": profile}, environ={}, working_dir=tmp_path
    ).settings
    timings = Timings.from_settings(settings, Mode.FLEET)
    assert timings.lease_ttl_ms == settings.lease.ttl_ms
    assert timings.margin_ms > 0
    if profile == "fast":
        assert timings.liveness_timeout_ms + timings.assign_interval_ms <= 10_000
    assert Timings.from_settings(settings, Mode.SINGLE_NODE).lease_ttl_ms is None
