"""Agents: registration, heartbeats, liveness (S1.6, S1.9, S1.10, S3.4, S3.5)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from builders import TTL_MS
from harness import Backend

from streamhouse.core.errors import AgentNotFound, AgentSuperseded, InvalidRequest, LimitExceeded
from streamhouse.core.limits import MAX_AGENT_ID_BYTES, MAX_JSON_METADATA_BYTES, MAX_LISTENERS_PER_AGENT
from streamhouse.metadata.contract import AgentInfo, HeldLease, SlotKey


def info(backend: Backend, agent_id: str = "agent-1", **changes: object) -> AgentInfo:
    made = AgentInfo(agent_id=agent_id, incarnation=backend.uuid(), listeners={"kafka": f"{agent_id}:9092"})
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


async def test_s1_9_registering_tells_who_where_and_since_when(backend: Backend) -> None:
    asked = info(
        backend,
        availability_zone="zone-a",
        agent_group="ingest",
        metadata={"version": "1.2", "cores": 8, "load": 0.5, "spot": True, "rack": None, "name": "Zürich"},
    )
    agent = await backend.store.register_agent(asked)
    assert (agent.agent_id, agent.incarnation, agent.listeners) == (
        "agent-1",
        asked.incarnation,
        {"kafka": "agent-1:9092"},
    )
    assert (agent.availability_zone, agent.agent_group) == ("zone-a", "ingest")
    assert (agent.started_at_ms, agent.last_heartbeat_ms) == (backend.now_ms, backend.now_ms)
    assert agent.metadata == asked.metadata
    other = await backend.open_another()
    assert await other.list_agents() == [agent]


async def test_s1_9_registering_again_updates_and_keeps_the_start(backend: Backend) -> None:
    asked = info(backend)
    first = await backend.store.register_agent(asked)
    await backend.advance(5000)
    again = await backend.store.register_agent(dataclasses.replace(asked, listeners={"http": "moved:8080"}))
    assert (again.listeners, again.node_id) == ({"http": "moved:8080"}, first.node_id)
    assert (again.started_at_ms, again.last_heartbeat_ms) == (first.started_at_ms, backend.now_ms)
    assert await backend.store.list_agents() == [again]


async def test_an_agent_registers_a_listener_for_each_protocol(backend: Backend) -> None:
    listeners = {"kafka": "a:9092", "http": "a:8080", "grpc": "a:50051"}
    for name, asked in (("all", listeners), ("http", {"http": "b:8080"}), ("none", {})):
        made = await backend.store.register_agent(info(backend, name, listeners=asked))
        assert made.listeners == asked
    assert [agent.listeners for agent in await backend.store.list_agents()] == [listeners, {"http": "b:8080"}, {}]


async def test_another_incarnation_takes_the_id_over(backend: Backend) -> None:
    old, new = info(backend), info(backend)
    first = await backend.store.register_agent(old)
    await backend.advance(5000)
    second = await backend.store.register_agent(new)
    assert second.node_id == first.node_id
    assert (second.incarnation, second.started_at_ms) == (new.incarnation, backend.now_ms)
    with pytest.raises(AgentSuperseded):
        await backend.store.heartbeat("agent-1", old.incarnation)
    with pytest.raises(AgentSuperseded):
        await backend.store.register_agent(old)
    assert await backend.store.deregister_agent("agent-1", old.incarnation) is False
    assert await backend.store.list_agents() == [second]


async def test_a_replaced_incarnation_is_refused_even_after_deregistration(backend: Backend) -> None:
    old, new = info(backend), info(backend)
    await backend.store.register_agent(old)
    await backend.store.register_agent(new)
    await backend.store.deregister_agent("agent-1", new.incarnation)
    for over in (old, new):
        with pytest.raises(AgentNotFound):
            await backend.store.heartbeat("agent-1", over.incarnation)
        with pytest.raises(AgentSuperseded):
            await backend.store.register_agent(over)


async def test_r20_a_late_acquisition_of_a_deregistered_agent_takes_nothing_from_its_successor(
    backend: Backend,
) -> None:
    """The agent signed off; a call it had sent before arrives when its next run leads already."""
    first, second = backend.holder(), backend.holder()
    assert first.agent_id == second.agent_id
    await backend.register(first)
    await backend.store.deregister_agent(first.agent_id, first.incarnation)
    await backend.register(second)
    led = await backend.led(holder=second)
    with pytest.raises(AgentSuperseded):
        await backend.store.acquire_leases(first, [led.key], ttl_ms=TTL_MS)
    (lease,) = await backend.store.list_leases()
    assert (lease.incarnation, lease.epoch) == (second.incarnation, led.epoch)


async def test_a_run_that_was_replaced_and_one_that_signed_off_are_remembered_alike(backend: Backend) -> None:
    runs = [info(backend) for _ in range(9)]
    for turn, one in enumerate(runs):
        await backend.store.register_agent(one)
        if turn % 2 == 0:
            await backend.store.deregister_agent("agent-1", one.incarnation)
    for over in runs[1:]:
        with pytest.raises(AgentSuperseded):
            await backend.store.register_agent(over)


async def test_the_last_eight_replaced_incarnations_are_remembered(backend: Backend) -> None:
    incarnations = [info(backend) for _ in range(9)]
    for one in incarnations:
        await backend.store.register_agent(one)
    for replaced in incarnations[:-1]:
        with pytest.raises(AgentSuperseded):
            await backend.store.register_agent(replaced)


async def test_a_node_id_is_given_once_and_never_reused(backend: Backend) -> None:
    agents = [await backend.store.register_agent(info(backend, f"agent-{turn}")) for turn in range(3)]
    assert len({agent.node_id for agent in agents}) == 3
    assert all(0 <= agent.node_id < 2**31 for agent in agents)
    for agent in agents:
        assert agent.incarnation is not None
        assert await backend.store.deregister_agent(agent.agent_id, agent.incarnation) is True
    late = await backend.store.register_agent(info(backend, "agent-late"))
    assert late.node_id not in {agent.node_id for agent in agents}
    returned = await backend.store.register_agent(info(backend, "agent-1"))
    assert returned.node_id == agents[1].node_id


async def test_concurrent_first_registrations_get_node_ids_of_their_own(backend: Backend) -> None:
    other = await backend.open_another()
    agents = await asyncio.gather(
        *((backend.store, other)[turn % 2].register_agent(info(backend, f"agent-{turn}")) for turn in range(12))
    )
    assert len({agent.node_id for agent in agents}) == 12


async def test_of_concurrent_incarnations_one_remains(backend: Backend) -> None:
    other = await backend.open_another()
    answers = await asyncio.gather(
        *((backend.store, other)[turn % 2].register_agent(info(backend)) for turn in range(6))
    )
    (agent,) = await backend.store.list_agents()
    assert agent.incarnation in {one.incarnation for one in answers}
    assert agent.incarnation is not None
    await backend.store.heartbeat("agent-1", agent.incarnation)


async def test_s1_9_a_heartbeat_is_stamped_and_answered_by_the_store_s_clock(backend: Backend) -> None:
    asked = info(backend)
    await backend.store.register_agent(asked)
    await backend.advance(1234)
    assert await backend.store.heartbeat("agent-1", asked.incarnation) == backend.now_ms
    (agent,) = await backend.store.list_agents()
    assert agent.last_heartbeat_ms == backend.now_ms
    assert agent.started_at_ms == backend.now_ms - 1234


async def test_a_deregistered_agent_has_no_heartbeat(backend: Backend) -> None:
    asked = info(backend)
    with pytest.raises(AgentNotFound):
        await backend.store.heartbeat("agent-1", asked.incarnation)
    await backend.store.register_agent(asked)
    assert await backend.store.deregister_agent("agent-1", asked.incarnation) is True
    assert await backend.store.deregister_agent("agent-1", asked.incarnation) is False
    with pytest.raises(AgentNotFound):
        await backend.store.heartbeat("agent-1", asked.incarnation)
    assert await backend.store.list_agents() == []


async def test_deregistering_leaves_the_leases(backend: Backend) -> None:
    holder = backend.holder()
    await backend.register(holder)
    await backend.led(holder=holder)
    await backend.store.deregister_agent(holder.agent_id, holder.incarnation)
    (lease,) = await backend.store.list_leases()
    assert (lease.agent_id, lease.expired, lease.expires_at_ms) == ("agent-1", False, backend.now_ms + TTL_MS)


async def test_s1_10_alive_means_a_heartbeat_within_the_time_out(backend: Backend) -> None:
    early, late = info(backend, "early"), info(backend, "late")
    await backend.store.register_agent(early)
    await backend.advance(10_000)
    await backend.store.register_agent(late)

    async def alive(within_ms: int) -> list[str]:
        return [agent.agent_id for agent in await backend.store.list_agents(alive_within_ms=within_ms)]

    assert await alive(20_000) == ["early", "late"]
    assert await alive(9_999) == ["late"]
    await backend.store.heartbeat("early", early.incarnation)
    assert await alive(9_999) == ["early", "late"]
    await backend.advance(100_000)
    assert await alive(20_000) == []


async def test_s3_5_agents_are_listed_by_id_and_by_group(backend: Backend) -> None:
    for name, group in (("c", "ingest"), ("a", "serve"), ("b", "ingest")):
        await backend.store.register_agent(info(backend, name, agent_group=group))
    assert [agent.agent_id for agent in await backend.store.list_agents()] == ["a", "b", "c"]
    assert [agent.agent_id for agent in await backend.store.list_agents(agent_group="ingest")] == ["b", "c"]
    assert await backend.store.list_agents(agent_group="none", alive_within_ms=1000) == []


async def test_an_agent_that_cannot_be_stored_is_refused(backend: Backend) -> None:
    for changes, error in (
        ({"agent_id": ""}, InvalidRequest),
        ({"agent_id": "a\0"}, InvalidRequest),
        ({"agent_id": "x" * (MAX_AGENT_ID_BYTES + 1)}, LimitExceeded),
        ({"listeners": {"kafka": "a\ud800"}}, InvalidRequest),
        ({"listeners": {"": "a:1"}}, InvalidRequest),
        ({"listeners": {f"l{n}": "a:1" for n in range(MAX_LISTENERS_PER_AGENT + 1)}}, LimitExceeded),
        ({"metadata": {"note": "a\0b"}}, InvalidRequest),
        ({"metadata": {"load": float("nan")}}, InvalidRequest),
        ({"metadata": {"note": "x" * MAX_JSON_METADATA_BYTES}}, LimitExceeded),
    ):
        with pytest.raises(error):
            await backend.store.register_agent(info(backend, **changes))
    with pytest.raises(InvalidRequest):
        await backend.store.list_agents(alive_within_ms=-1)
    assert await backend.store.list_agents() == []


# Agents that ended without signing off.

DAY_MS = 86_400_000


async def test_r22_agents_that_have_been_silent_for_long_go(backend: Backend) -> None:
    silent, alive, slow = info(backend, "silent"), info(backend, "alive"), info(backend, "slow")
    for one in (silent, alive, slow):
        await backend.store.register_agent(one)
    await backend.advance(DAY_MS)
    await backend.store.heartbeat("slow", slow.incarnation)
    await backend.advance(1)
    await backend.store.heartbeat("alive", alive.incarnation)
    assert await backend.store.expire_agents(silent_ms=DAY_MS + 1, limit=10) == []
    assert await backend.store.expire_agents(silent_ms=DAY_MS, limit=10) == ["silent"]
    assert [agent.agent_id for agent in await backend.store.list_agents()] == ["alive", "slow"]
    with pytest.raises(AgentNotFound):
        await backend.store.heartbeat("silent", silent.incarnation)


async def test_r22_an_expired_agent_comes_back_in_the_same_incarnation_under_its_number(backend: Backend) -> None:
    """A clock that jumps ahead makes every agent silent for a moment: none of them may have to start again."""
    asked = info(backend)
    first = await backend.store.register_agent(asked)
    await backend.advance(DAY_MS)
    assert await backend.store.expire_agents(silent_ms=1, limit=10) == ["agent-1"]
    again = await backend.store.register_agent(asked)
    assert (again.node_id, again.started_at_ms) == (first.node_id, backend.now_ms)
    holder = dataclasses.replace(backend.holder(), incarnation=asked.incarnation)
    await backend.led(holder=holder)


async def test_r22_an_agent_with_a_live_lease_stays(backend: Backend) -> None:
    """Where the WAL is the durability a lease never expires, and its agent may be away for weeks."""
    leader, coordinator, ended = (backend.holder(name) for name in ("leader", "coordinator", "ended"))
    for holder in (leader, coordinator, ended):
        await backend.register(holder)
    led = await backend.led("kept", holder=leader)
    await backend.lead(SlotKey(3), coordinator)
    gone = await backend.led("gone", holder=ended)
    await backend.store.delete_topic(gone.key.topic_id)
    await backend.advance(TTL_MS - 1)
    assert await backend.store.expire_agents(silent_ms=1, limit=10) == ["ended"]
    await backend.store.release_leases(leader, [HeldLease(key=led.key, epoch=led.epoch)])
    assert await backend.store.expire_agents(silent_ms=1, limit=10) == ["leader"]
    await backend.advance(1)
    assert await backend.store.expire_agents(silent_ms=1, limit=10) == ["coordinator"]


async def test_r22_expiring_agents_has_bounds(backend: Backend) -> None:
    for turn in range(5):
        await backend.store.register_agent(info(backend, f"agent-{turn}"))
    await backend.advance(10)
    assert [len(await backend.store.expire_agents(silent_ms=1, limit=2)) for _ in range(4)] == [2, 2, 1, 0]
    for limit in (0, -1):
        with pytest.raises(InvalidRequest):
            await backend.store.expire_agents(silent_ms=1, limit=limit)
    with pytest.raises(InvalidRequest):
        await backend.store.expire_agents(silent_ms=-1, limit=1)


async def test_r22_a_registration_at_the_time_of_the_sweep_is_not_lost(backend: Backend) -> None:
    runs = [info(backend, f"agent-{turn}") for turn in range(8)]
    stores = [backend.store, await backend.open_another(), await backend.open_another()]
    for _ in range(5):
        await asyncio.gather(*(backend.store.register_agent(one) for one in runs))
        await backend.advance(DAY_MS)
        calls = [store.expire_agents(silent_ms=1, limit=3) for store in stores * 2]
        await asyncio.gather(*calls, *(stores[1].register_agent(one) for one in runs))
        assert len(await backend.store.list_agents(alive_within_ms=1)) == len(runs)
