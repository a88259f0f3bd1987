"""Writes of a group's state, on a real store: what waits for them, and what happens when they fail."""

from __future__ import annotations

import asyncio
import gc

from group_stage import GROUP, SLOT, Stage, code

from streamhouse.core.errors import MetadataUnavailable, StaleEpoch
from streamhouse.metadata.contract import Group


async def test_a_store_that_is_away_makes_members_ask_again_and_loses_nothing(stage: Stage) -> None:
    await stage.first.lead()
    save_group = stage.first.store.save_group
    failures = 0

    async def fail_twice(*args: object, **kwargs: object) -> Group:
        nonlocal failures
        failures += 1
        if failures <= 2:
            raise MetadataUnavailable("away")
        return await save_group(*args, **kwargs)  # type: ignore[arg-type]

    stage.first.store.save_group = fail_twice  # type: ignore[method-assign]
    assert await code(stage.first.join()) == 15
    (member,) = stage.first.groups.registry.find(GROUP).machine.roster  # type: ignore[union-attr]
    group = stage.first.groups.registry.find(GROUP)
    assert group is not None
    assert group.saving is not None  # it goes on trying
    await group.saving
    assert await code(stage.first.join(member.member_id)) == 0
    (row,) = await stage.first.store.list_groups(SLOT)
    assert (row.generation, row.member_count) == (1, 1)


async def test_an_answer_waits_until_the_state_that_it_tells_of_is_saved(stage: Stage) -> None:
    await stage.first.lead()
    save_group, go_on = stage.first.store.save_group, asyncio.Event()

    async def slowly(*args: object, **kwargs: object) -> Group:
        await go_on.wait()
        return await save_group(*args, **kwargs)  # type: ignore[arg-type]

    stage.first.store.save_group = slowly  # type: ignore[method-assign]
    joining = asyncio.create_task(stage.first.join())
    await asyncio.sleep(0.01)
    group = stage.first.groups.registry.find(GROUP)
    assert group is not None
    assert group.machine.generation == 1  # decided, and not told
    assert not joining.done()
    go_on.set()
    assert (await joining).generation == 1
    assert group.saved_version == group.version


async def test_one_write_covers_all_changes_before_it(stage: Stage) -> None:
    await stage.topic()
    await stage.first.lead()
    save_group, go_on, writes = stage.first.store.save_group, asyncio.Event(), 0

    async def slowly(*args: object, **kwargs: object) -> Group:
        nonlocal writes
        writes += 1
        await go_on.wait()
        return await save_group(*args, **kwargs)  # type: ignore[arg-type]

    stage.first.store.save_group = slowly  # type: ignore[method-assign]
    joining = [asyncio.create_task(stage.first.consumer(f"m{number}", 0)) for number in range(5)]
    await asyncio.sleep(0.01)
    go_on.set()
    epochs = [(await task).member_epoch for task in joining]
    assert sorted(epochs) == [1, 2, 3, 4, 5]
    assert writes <= 2
    (row,) = await stage.first.store.list_groups(SLOT)
    assert (row.generation, row.member_count) == (5, 5)


async def test_a_write_that_fails_after_its_slot_was_lost_is_not_logged_as_a_bug(stage: Stage) -> None:
    await stage.first.lead()
    begun, complaints = asyncio.Event(), []

    async def refused_when_cancelled(*_: object, **__: object) -> Group:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise StaleEpoch("epoch 1 of slot 0 is stale; it is at epoch 2") from None
        raise AssertionError

    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    stage.first.store.save_group = refused_when_cancelled  # type: ignore[method-assign]
    joining = asyncio.create_task(stage.first.join())
    await begun.wait()
    group = stage.first.groups.registry.find(GROUP)
    assert group is not None
    assert group.saving is not None
    group.saving.cancel()
    await asyncio.wait({group.saving})
    await asyncio.sleep(0)
    del group
    joining.cancel()
    await asyncio.wait({joining})
    gc.collect()
    assert complaints == []
