"""`streamhouse spark compact`, `key-compact`, `retain`, `vacuum` and `verify`: one pass of maintenance each, on Spark.

Flags, questions, output and exit codes are those of the commands without `spark` (maintenance.py); a pass here has the
same steps, and Spark does the heavy ones. A plan needs no Spark: it is made in this process.

PySpark is imported when a pass begins, after the stores were opened: what is wrong with the settings shows at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import typer

from streamhouse.app.maintenance_passes import MaintenancePasses, compaction_rules
from streamhouse.cli.commands.definitions import Conf, spark_config
from streamhouse.cli.commands.maintenance import PlanOption, Topics, _run
from streamhouse.cli.commands.maintenance_steps import (
    CompactPass,
    Pass,
    RetainPass,
    VacuumPass,
)
from streamhouse.cli.commands.spark_runner import open_application
from streamhouse.cli.commands.verify_step import VerifyPass
from streamhouse.cli.conventions import YesOption, consent
from streamhouse.cli.output import Output, OutputOption, SetProgress
from streamhouse.cli.setting_flags import ChosenSettings, takes_settings
from streamhouse.core.errors import InvalidRequest, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.settings import Settings
from streamhouse.core.units import format_duration, parse_duration, parse_size
from streamhouse.core.urls import mask_url
from streamhouse.maintenance.compaction.compactor import Compactor
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.compaction.policy import compacted_logs
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import OnProgress, Vacuum
from streamhouse.maintenance.verify import Tell, TellDamaged, Verifier, VerifyDepth, VerifyOptions
from streamhouse.metadata.contract import Topic
from streamhouse.spark.definitions.service import place_of
from streamhouse.spark.maintenance.compaction import SparkCompactor
from streamhouse.spark.maintenance.jobs import SparkTasks, check_master, reason_of, task_cluster
from streamhouse.spark.maintenance.key_compaction import SHUFFLE_ABOVE_BYTES, SparkKeyCompactor
from streamhouse.spark.maintenance.retention import SparkRetention
from streamhouse.spark.maintenance.vacuum import SparkVacuum
from streamhouse.spark.maintenance.verify import SparkVerifier

_RULES: Final = CompactionRules()
_KEY_RULES: Final = KeyRules()

Master = Annotated[
    str, typer.Option("--master", help="Where Spark runs: local[*], spark://host:7077, yarn or k8s://….")
]


def add_commands(group: typer.Typer) -> None:
    commands: dict[str, Callable[..., None]] = {
        "compact": compact,
        "key-compact": key_compact,
        "retain": retain,
        "vacuum": vacuum,
        "verify": verify,
    }
    for name, command in commands.items():
        group.command(name)(takes_settings(command))


def compact(
    chosen: ChosenSettings,
    topics: Topics = None,
    plan: PlanOption = False,
    min_entries: Annotated[
        int, typer.Option("--min-entries", help="From this many on, small entries in a row become one object.")
    ] = _RULES.min_entries,
    max_age: Annotated[
        str, typer.Option("--max-age", metavar="TIME", help="Fewer become one once the oldest is older than this.")
    ] = format_duration(_RULES.max_age_ms),
    master: Master = "local[*]",
    conf: Conf = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy small objects of the log into large ones, once; a Spark task for each new object.

    Consumers see the same records at the same offsets. The small objects stay until a vacuum deletes them. Topics with
    `compact` in cleanup.policy are compacted by key, a task for each partition.
    """
    settings = chosen.load().settings
    rules = replace(compaction_rules(settings), min_entries=min_entries, max_age_ms=parse_duration(max_age))
    step = CompactOnSpark(plan_only=plan, rules=rules)
    _run(step.on(_where(settings, master, conf)), settings, topics, output)


def key_compact(
    chosen: ChosenSettings,
    topics: Topics = None,
    plan: PlanOption = False,
    map_size: Annotated[
        str,
        typer.Option("--map-size", metavar="SIZE", help="Memory of a task for its map of keys; 32 bytes a key."),
    ] = "64MiB",
    shuffle_above: Annotated[
        str,
        typer.Option("--shuffle-above", metavar="SIZE", help="Tasks share a partition with more bytes than this."),
    ] = "1GiB",
    master: Master = "local[*]",
    conf: Conf = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Drop records that have a newer one of their key, once; a Spark task for each partition, many for a large one.

    Of what `compact` does, only topics with `compact` in cleanup.policy, and with a memory of your choice.
    """
    settings = chosen.load().settings
    step = KeyCompactOnSpark(plan_only=plan, rules=compaction_rules(settings))
    where = replace(
        _where(settings, master, conf),
        key_rules=KeyRules(map_bytes=parse_size(map_size)),
        shuffle_above_bytes=parse_size(shuffle_above),
    )
    _run(step.on(where), settings, topics, output)


def retain(
    chosen: ChosenSettings,
    topics: Topics = None,
    plan: PlanOption = False,
    master: Master = "local[*]",
    conf: Conf = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete the records that retention.ms and retention.bytes no longer keep, once; a Spark task for each partition.

    Only topics with `delete` in cleanup.policy lose records. The objects stay until a vacuum deletes them.
    """
    settings = chosen.load().settings
    _run(RetainOnSpark(plan_only=plan).on(_where(settings, master, conf)), settings, topics, output)


def vacuum(
    chosen: ChosenSettings,
    topics: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    plan: PlanOption = False,
    writer_grace: Annotated[
        str | None,
        typer.Option(
            "--writer-grace", metavar="TIME", help="Keep what was uploaded since; else maintenance.writer_grace."
        ),
    ] = None,
    reader_grace: Annotated[
        str | None,
        typer.Option(
            "--reader-grace", metavar="TIME", help="Keep what was in the log since; else maintenance.reader_grace."
        ),
    ] = None,
    yes: YesOption = False,
    master: Master = "local[*]",
    conf: Conf = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete for ever the objects that no record of the log is in, once; a Spark task for each 1,000 listed objects.

    It takes no TOPIC: an object may hold records of many topics, and an upload that failed belongs to none.
    """
    if topics:
        raise InvalidRequest(
            f"vacuum takes no topic ({', '.join(topics)[:200]}): an object may hold records of many topics",
            hint="run it without one; --plan shows what it would delete",
        )
    settings = chosen.load().settings
    graces = settings.maintenance
    options = VacuumOptions(
        writer_grace_ms=graces.writer_grace_ms if writer_grace is None else parse_duration(writer_grace),
        reader_grace_ms=graces.reader_grace_ms if reader_grace is None else parse_duration(reader_grace),
    )
    where = _where(settings, master, conf)
    if not plan:
        uploaded, left = format_duration(options.writer_grace_ms), format_duration(options.reader_grace_ms)
        what = (
            f"deletes for ever from {mask_url(settings.store.url)}: uploads older than {uploaded} that were not"
            f" committed, and objects whose last record left the log more than {left} ago"
        )
        consent([what], yes=yes)
    _run(VacuumOnSpark(plan_only=plan, options=options).on(where), settings, None, output)


def verify(
    chosen: ChosenSettings,
    topics: Topics = None,
    plan: PlanOption = False,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every record too: ten times the CPU.")] = False,
    master: Master = "local[*]",
    conf: Conf = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Prove that every record of the log is there and whole; a Spark task for each partition. Repairs nothing.

    It reads all bytes of the log. Exit code 11 when it finds damage; `streamhouse verify --repair` repairs what it can.
    """
    settings = chosen.load().settings
    options = VerifyOptions(depth=VerifyDepth.DEEP if deep else VerifyDepth.BYTES)
    step = VerifyOnSpark(plan_only=plan, options=options)
    _run(step.on(_where(settings, master, conf)), settings, topics, output)


# Where the tasks run.


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPlace:
    master: str
    config: Mapping[str, str]
    settings: Settings = field(repr=False)
    key_rules: KeyRules = _KEY_RULES
    shuffle_above_bytes: int = SHUFFLE_ABOVE_BYTES


def _where(settings: Settings, master: str, conf: list[str] | None) -> SparkPlace:
    return SparkPlace(master=master, config=spark_config(conf), settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPasses(MaintenancePasses):
    """The same passes, each with its heavy step in tasks."""

    tasks: SparkTasks
    key_rules: KeyRules = _KEY_RULES
    shuffle_above_bytes: int = SHUFFLE_ABOVE_BYTES

    def retention(self) -> Retention:

        return SparkRetention(metadata=self.stores.metadata, tasks=self.tasks)

    def compactor(self, rules: CompactionRules) -> Compactor:

        return SparkCompactor(
            metadata=self.stores.metadata,
            store=self.stores.objects,
            offload=self.offload,
            clock=self.clock,
            randomness=self.randomness,
            owner=_owner(self),
            rules=rules,
            tasks=self.tasks,
        )

    def key_compactor(self) -> KeyCompactor:

        return SparkKeyCompactor(
            metadata=self.stores.metadata,
            store=self.stores.objects,
            offload=self.offload,
            clock=self.clock,
            randomness=self.randomness,
            owner=_owner(self),
            rules=self.key_rules,
            tasks=self.tasks,
            shuffle_above_bytes=self.shuffle_above_bytes,
        )

    def vacuum(self, options: VacuumOptions, *, on_progress: OnProgress | None = None) -> Vacuum:

        return SparkVacuum(
            metadata=self.stores.metadata,
            objects=self.stores.objects,
            options=options,
            tasks=self.tasks,
            on_progress=on_progress,
        )

    def verifier(self, options: VerifyOptions, *, tell: Tell, tell_damaged: TellDamaged | None = None) -> Verifier:
        """``tell_damaged`` is not called: tasks name findings, and nothing is repaired from here."""

        return SparkVerifier(
            metadata=self.stores.metadata,
            store=self.stores.objects,
            randomness=self.randomness,
            tell=tell,
            options=options,
            offload=self.offload,
            tasks=self.tasks,
        )

    async def finish_compactions(self, keys: Collection[PartitionKey]) -> int:
        """Spark stops first, so that no task begins a compaction afterwards."""
        await asyncio.to_thread(self.tasks.stop_spark)
        return await MaintenancePasses.finish_compactions(self, keys)


def _owner(maintenance: MaintenancePasses) -> str:
    return f"spark-{maintenance.randomness.uuid().hex[:12]}"


@asynccontextmanager
async def spark_passes(
    place: SparkPlace, maintenance: MaintenancePasses, tell: SetProgress
) -> AsyncIterator[SparkPasses]:
    """Start Spark, and stop it at the end. Raises StreamHouseError when it does not start."""

    address = place_of(place.settings).address
    check_master(place.master, address)
    stores = maintenance.stores
    cluster = await task_cluster(address, stores.metadata, stores.objects)
    tell("starting Spark", done=0, total=None)
    starting = asyncio.create_task(asyncio.to_thread(_start, place))
    try:
        application = await asyncio.shield(starting)
    except asyncio.CancelledError:
        with suppress(StreamHouseError):
            (await starting).stop()
        raise
    try:
        spark = application.session_for("maintenance")
        async with SparkTasks(spark, cluster, meter=stores.meter, randomness=maintenance.randomness) as tasks:
            yield SparkPasses(
                stores=stores,
                offload=maintenance.offload,
                clock=maintenance.clock,
                randomness=maintenance.randomness,
                tasks=tasks,
                key_rules=place.key_rules,
                shuffle_above_bytes=place.shuffle_above_bytes,
            )
    finally:
        await asyncio.to_thread(application.stop)


def _start(place: SparkPlace) -> Any:
    try:
        return open_application(
            place.master, name="streamhouse maintenance", config=dict(place.config), fast_start=False, says_so=False
        )
    except (StreamHouseError, ModuleNotFoundError):
        raise
    except Exception as error:  # Py4J has no common class for what a start may fail with
        raise StreamHouseError(
            f"Spark did not start on {place.master[:80]}: {reason_of(str(error))}", hint="check --master and --conf"
        ) from error


# The passes.


class OnSpark(Pass):
    """Mixed into a pass: its work goes to Spark, unless it is only to be planned."""

    place: SparkPlace

    def on(self, place: SparkPlace) -> OnSpark:
        self.place = place
        return self

    async def work(self, maintenance: MaintenancePasses, topics: list[Topic], tell: SetProgress) -> None:
        if self.plan_only:
            await super().work(maintenance, topics, tell)  # type: ignore[safe-super]  # the pass that it is mixed into
            return
        async with spark_passes(self.place, maintenance, tell) as passes:
            await super().work(passes, topics, tell)  # type: ignore[safe-super]


class CompactOnSpark(OnSpark, CompactPass):
    pass


class RetainOnSpark(OnSpark, RetainPass):
    pass


class VacuumOnSpark(OnSpark, VacuumPass):
    pass


class VerifyOnSpark(OnSpark, VerifyPass):
    pass


class KeyCompactOnSpark(OnSpark, CompactPass):
    """Key compaction alone, without the compaction of small objects."""

    name = "key-compact"
    doing = "looking for superseded records"

    async def work(self, maintenance: MaintenancePasses, topics: list[Topic], tell: SetProgress) -> None:
        by_key = [topic for topic in topics if compacted_logs([topic])]
        left = len(topics) - len(by_key)
        if left:
            self.notes.append(f"{left} topics are left alone: their cleanup.policy has no compact, or cannot be read")
        await super().work(maintenance, by_key, tell)
