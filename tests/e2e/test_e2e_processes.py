"""The installed commands in a fleet: `agent` joins and leaves, `server` may do without one, a name has one bearer."""

from __future__ import annotations

import signal
from pathlib import Path

from e2e_fleet import SHORT_LEASES, Stage, as_environment, fleet_stage, stop_in_order
from e2e_processes import Process, eventually

from streamhouse.testing.services import S3Service


def installed(stage: Stage, name: str, *argv: str, **variables: str) -> Process:
    environment = as_environment({**stage.settings, "data_dir": str(stage.directory / name)})
    return stage.command(name, *argv, environment={**environment, **variables})


async def registered(stage: Stage) -> set[str]:
    return {agent.agent_id for agent in await stage.stores.metadata.list_agents()}


async def test_s3_6_an_installed_agent_joins_and_leaves_and_a_server_without_one_leads_nothing(
    tmp_path: Path, postgres_database: str, s3_service: S3Service
) -> None:
    async with fleet_stage(tmp_path, postgres_database, s3_service, SHORT_LEASES) as stage:
        server = installed(stage, "server", "server", DISABLE_EMBEDDED_AGENT="1")
        flags = ("--agent-id", "agent-1", "--agent-zone", "zone-a", "--kafka-listen", "127.0.0.1:0")
        agent = installed(stage, "agent", "agent", *flags)
        server.start()
        agent.start()
        await eventually("the server is ready", lambda: "\nready; " in server.output())
        await eventually("the agent is ready", lambda: "\nready; " in agent.output())

        async def leads_everything() -> bool:
            leases = await stage.stores.metadata.list_leases(agent_id="agent-1")
            return len(leases) == 50 and not any(lease.expired for lease in leases)

        await eventually("the agent leads every coordinator slot", leads_everything)
        assert await registered(stage) == {"agent-1"}
        for process in (server, agent):
            assert await process.stopped_by(signal.SIGTERM) == 0, process.log_tail()
        assert await registered(stage) == set()
        assert all(lease.expired for lease in await stage.stores.metadata.list_leases()), (
            "released, not left to run out"
        )


async def test_a_second_process_under_one_agent_id_ends_the_first_and_loses_nothing(
    tmp_path: Path, postgres_database: str, s3_service: S3Service
) -> None:
    """This happens when a supervisor starts a replacement while the old process still runs."""
    async with fleet_stage(tmp_path, postgres_database, s3_service, SHORT_LEASES) as stage:
        first = stage.agent("agent-1")
        await first.up()
        (key,) = await stage.create_topics(first, {"orders": 1})
        await stage.all_led_by([first])
        assert await stage.write(first, key, "from the first") == 0

        second = stage.agent("agent-1", data_dir=str(tmp_path / "elsewhere"))
        await second.up()
        assert await first.exited() == 1
        assert "AgentSuperseded" in first.output()
        await stage.all_led_by([second])
        assert await stage.write(second, key, "from the second") == 1
        await stop_in_order([second])
        assert (await stage.logs())[key].values == ("from the first", "from the second")
