"""How the settings become the log's options."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamhouse.app.log_parts import leased_options
from streamhouse.core.limits import MIB
from streamhouse.core.settings import resolve
from streamhouse.log.flush_policy import FlushPace
from streamhouse.metadata.contract.store import Durability


def pace(**flags: str) -> FlushPace | None:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return leased_options(resolve(flags=named).require().settings, Durability.OBJECT).rules.pace


DEFAULT = FlushPace(puts_per_second=20, longest_wait_ms=250, unbudgeted_bytes=MIB, enough_bytes=8 * MIB)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, DEFAULT),
        ({"profile": "fast"}, replace(DEFAULT, puts_per_second=200)),
        ({"profile": "cheap"}, replace(DEFAULT, puts_per_second=4)),
        ({"profile": "fast", "flush__max_puts_per_second": "7"}, replace(DEFAULT, puts_per_second=7)),
        ({"segment__max_bytes": "4MiB"}, replace(DEFAULT, unbudgeted_bytes=4 * MIB)),
        ({"segment__max_bytes": "16MiB"}, replace(DEFAULT, unbudgeted_bytes=16 * MIB, enough_bytes=16 * MIB)),
        ({"flush__interval": "1s"}, replace(DEFAULT, longest_wait_ms=1000)),
    ],
)
def test_a_profile_decides_the_pace_of_flushes_and_each_setting_can_be_changed(
    flags: dict[str, str], expected: FlushPace
) -> None:
    assert pace(**flags) == expected


def test_where_the_wal_is_the_durability_flushes_have_no_pace() -> None:
    settings = resolve(flags={"profile": "fast"}).require().settings
    assert leased_options(settings, Durability.WAL).rules.pace is None
