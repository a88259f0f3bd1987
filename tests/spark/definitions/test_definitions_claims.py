"""Which runner has a definition: renewed in time, kept while the store is away, taken over from one that ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import Conflict, MetadataUnavailable
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.sqlite.connections import MEMORY
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.opening import StoreOptions
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.connection import Connection
from streamhouse.spark.definitions.catalog import Stored
from streamhouse.spark.definitions.claims import Claims, check_unclaimed, claim_name, is_surely_gone, runner_id

NAME = "pipeline/x"
TTL_MS = 15_000


class Away(Connection):
    """A connection to a store in memory, which can be away. It counts the calls."""

    def __init__(self, clock: ManualClock) -> None:
        nowhere = StoreAddress(
            metadata_url="", store_url="", store=StoreOptions(), request_timeout_ms=1, retry_deadline_ms=1
        )
        super().__init__(nowhere, clock=clock)
        self.store = SqliteMetadata(MEMORY, clock=clock, randomness=SeededRandomness(1), threads=False)
        super().run(self.store.open())
        self._metadata = self.store
        self.is_away = False
        self.calls = 0

    def run(self, call: Any, *, timeout_s: float = 10.0) -> Any:
        self.calls += 1
        if self.is_away:
            call.close()
            raise MetadataUnavailable("away")
        return super().run(call, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    clock: ManualClock
    connection: Away

    def claims(self, owner: str) -> Claims:
        return Claims(self.connection, owner=owner, clock=self.clock)

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)


@pytest.fixture
def ground() -> Iterator[Ground]:
    clock = ManualClock()
    made = Ground(clock=clock, connection=Away(clock))
    yield made
    made.connection.is_away = False
    made.connection.close()


def ended_runner() -> str:
    """The id of a runner on this machine whose process has ended."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    host, _, where, _ = runner_id(SeededRandomness(1)).split("/")
    return f"{host}/{child.pid}/{where}/00000000"


def test_a_claim_is_for_one_runner_until_it_is_released(ground: Ground) -> None:
    one, other = ground.claims("one"), ground.claims("other")
    assert one.hold(NAME)
    assert not other.hold(NAME)
    one.release(NAME)
    one.release(NAME)
    assert other.hold(NAME)


def test_a_claim_is_renewed_long_before_it_ends_and_not_at_every_look(ground: Ground) -> None:
    one, other = ground.claims("one"), ground.claims("other")
    one.hold(NAME)
    calls = ground.connection.calls
    assert one.hold(NAME)
    assert ground.connection.calls == calls
    for _ in range(10):
        ground.pass_ms(TTL_MS // 2)
        assert one.hold(NAME)
        assert not other.hold(NAME)


def test_while_the_store_is_away_a_claim_counts_until_it_ends(ground: Ground) -> None:
    one = ground.claims("one")
    one.hold(NAME)
    ground.connection.is_away = True
    ground.pass_ms(TTL_MS - 1)
    assert one.hold(NAME)
    ground.pass_ms(1)
    assert not one.hold(NAME)
    assert not ground.claims("other").hold("pipeline/never held")


def test_a_claim_that_another_took_meanwhile_is_lost(ground: Ground) -> None:
    one, other = ground.claims("one"), ground.claims("other")
    one.hold(NAME)
    ground.pass_ms(TTL_MS + 1)
    assert other.hold(NAME)
    assert not one.hold(NAME)
    one.release(NAME)
    assert not one.hold(NAME), "what is not held is not released"


def test_the_claim_of_a_process_that_has_ended_is_taken_at_once(ground: Ground) -> None:
    assert ground.claims(ended_runner()).hold(NAME)
    assert ground.claims("one").hold(NAME)


@pytest.mark.parametrize("change", [0, 1, 2, 3])
def test_only_a_process_that_is_surely_gone_counts_as_gone(change: int) -> None:
    gone = ended_runner()
    assert is_surely_gone(gone)
    parts = gone.split("/")
    if change == 3:
        assert not is_surely_gone("/".join(parts[:3]))
        return
    parts[change] = {0: "another-host", 1: str(os.getpid()), 2: "another-boot"}[change]
    assert not is_surely_gone("/".join(parts))


def test_a_runner_id_names_this_process_and_differs_each_time() -> None:
    randomness = SeededRandomness(1)
    one, other = runner_id(randomness), runner_id(randomness)
    assert one != other
    assert one.split("/")[1] == str(os.getpid())
    assert not is_surely_gone(one)


def test_what_a_runner_still_has_is_not_deleted(ground: Ground) -> None:
    stored = cast(Stored[Any], _Named())
    check_unclaimed(ground.connection, "pipeline", stored)
    held = claim_name("pipeline", stored.definition_id)
    ground.claims(ended_runner()).hold(held)
    check_unclaimed(ground.connection, "pipeline", stored)
    ground.claims("host-9/1/x/y").hold(held)
    with pytest.raises(Conflict, match=r"a runner \(host-9\) still has the pipeline orders"):
        check_unclaimed(ground.connection, "pipeline", stored)


class _Named:
    definition_id = UUID(int=5)
    name = "orders"
