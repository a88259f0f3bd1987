"""What a seed decides: the size of the world, its options, which faults happen and how often.

Every seed draws only some kinds of fault and leaves the others out: a run in which everything fails at once spends its
time recovering and meets few of the rare orders of events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from simulator.dice import Dice
from simulator.maintenance_plan import MaintenancePlan, draw_plan
from streamhouse.cluster.contract import Timings
from streamhouse.log.flush_policy import FlushPace
from streamhouse.log.leased.options import LeasedOptions
from streamhouse.log.leased.plan import FlushRules
from streamhouse.log.wal import WalOptions
from streamhouse.metadata.contract import Durability
from streamhouse.objectstore.retries import RetryPolicy


class Mischief(StrEnum):
    """What the nemesis does to one agent, or to all that agents share."""

    KILL = "kill"
    POWER_CUT = "power cut"
    PAUSE = "pause longer than a lease"
    CUT_METADATA = "cut off from metadata"
    CUT_OBJECTS = "cut off from objects"
    CUT_BOTH = "cut off from both"
    METADATA_OUTAGE = "metadata outage"
    OBJECTS_OUTAGE = "objects outage"
    STOP = "stop in order"
    WALL_CLOCK = "wall clock set"
    STORE_CLOCK = "metadata clock set"
    LOSSY_METADATA = "metadata loses its last commits"
    SLOW_DISK = "slow disk"
    SYNC_ERROR = "sync error"
    WRITE_ERROR = "write error"
    FULL_DISK = "full disk"
    DISK_LOST = "disk lost"
    BIT_ROT = "bit rot"


class Errand(StrEnum):
    """What operators and maintenance do meanwhile."""

    RECREATE_TOPIC = "recreate a topic"
    TRIM = "trim"
    VACUUM = "vacuum"
    FLUSH = "flush request"
    EXPIRE_COMMITS = "expire commits"
    EXPIRE_PRODUCERS = "expire producers"


# How often each is drawn, for a fleet and for a single node. The first ones move leaderships or lose unsynced data,
# which is where most rules are needed.
_WEIGHTS: Final[dict[Mischief, tuple[float, float]]] = {
    Mischief.KILL: (4, 4),
    Mischief.POWER_CUT: (3, 6),
    Mischief.PAUSE: (4, 1),
    Mischief.CUT_METADATA: (5, 0),
    Mischief.CUT_OBJECTS: (1, 0),
    Mischief.CUT_BOTH: (2, 0),
    Mischief.METADATA_OUTAGE: (1, 1),
    Mischief.OBJECTS_OUTAGE: (1, 1),
    Mischief.STOP: (2, 1),
    Mischief.WALL_CLOCK: (1, 1),
    Mischief.STORE_CLOCK: (1, 0),
    Mischief.LOSSY_METADATA: (1, 0),
    Mischief.SLOW_DISK: (1, 2),
    Mischief.SYNC_ERROR: (1, 1),
    Mischief.WRITE_ERROR: (1, 1),
    Mischief.FULL_DISK: (1, 1),
    Mischief.DISK_LOST: (1, 0),
    Mischief.BIT_ROT: (1, 0),
}
_FLEET_MISCHIEF: Final = tuple((fleet, mischief) for mischief, (fleet, _) in _WEIGHTS.items())
_SINGLE_MISCHIEF: Final = tuple((single, mischief) for mischief, (_, single) in _WEIGHTS.items() if single)

PRODUCER_IDLE_MS: Final = 4000
"""Longer than a client of such a scenario can have a batch in doubt."""
_EXPIRING: Final = 0.1
"""How many of the seeds expire producers. They are drawn apart, because their clients are other ones."""
_LOSING: Final = 0.15
"""How many of the fleets have metadata that loses commits again and again, beside those that draw it by chance."""
_STARVED: Final = 0.25
"""How many of the fleets have busy machines, of those that neither expire producers nor lose commits."""
_MAINTAINED: Final = 0.25
"""How many of the seeds have maintenance, of those that neither expire producers nor lose commits."""
_AGELESS_MS: Final = 365 * 86_400_000
"""Where hours pass, no held frame becomes too old to come back (R4)."""
_LOST_LEASES: Final = (Mischief.CUT_METADATA, Mischief.CUT_METADATA, Mischief.METADATA_OUTAGE)
"""What happens on busy machines beside what was drawn: leases run out while clients wait for answers."""
_LOSSES: Final = (Mischief.LOSSY_METADATA, Mischief.LOSSY_METADATA, Mischief.KILL)
_ERRANDS: Final = tuple(errand for errand in Errand if errand is not Errand.EXPIRE_PRODUCERS)

LARGE_BYTES: Final = (2000, 6500, 6500, 9000)
LEASE_TTL_MS: Final = 1000
FLEET_TIMINGS: Final = Timings(
    heartbeat_interval_ms=300,
    liveness_timeout_ms=800,
    lease_ttl_ms=LEASE_TTL_MS,
    renew_interval_ms=400,
    assign_interval_ms=250,
    transfer_timeout_ms=800,
    margin_ms=30,
)
SINGLE_TIMINGS: Final = Timings(
    heartbeat_interval_ms=1000,
    liveness_timeout_ms=3000,
    lease_ttl_ms=None,
    renew_interval_ms=1000,
    assign_interval_ms=500,
    transfer_timeout_ms=1000,
    margin_ms=150,
)


class ClientKind(StrEnum):
    """The client library that a producer behaves like. The last two are idempotent."""

    PLAIN = "plain"
    JAVA = "java"
    LIBRDKAFKA = "librdkafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPlan:
    kind: ClientKind
    acks: int
    writes: int
    session_writes: int
    """How many of them one producer object makes, before the application makes a new one."""
    dies: float
    """How likely a producer ends without waiting for its answers."""
    burst: int
    """How many writes it makes in a row, at most."""
    gap_ms: float
    """The longest pause between two writes of a burst."""
    rest_ms: float
    """The longest pause between two bursts; a change of leaders or a mischief ends it."""
    attempts: int
    """How often a plain producer sends a batch before it gives up."""
    in_flight: int
    """Requests on a connection, of a plain producer; the others have five."""
    timeout_ms: float
    """How long the agent has for its answer."""
    wait_factor: float
    """The client waits for the answer this many times as long."""
    delivery_timeout_ms: float | None
    """When an idempotent client gives a batch up; None for never."""
    silence_ms: float = 0.0
    """How long it sometimes writes nothing, whatever happens; 0 for never."""

    @property
    def idempotent(self) -> bool:
        return self.kind is not ClientKind.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    durability: Durability
    agents: int
    late_agents: int
    """How many of ``agents`` join in the middle of the run."""
    topics: tuple[int, ...]
    """Partitions of each."""
    compacted: bool
    """The topics are compacted by key: what was overtaken may not come back (R4)."""
    run_ms: float
    """How long faults happen; then they all end."""
    producers: tuple[ProducerPlan, ...]
    readers: int
    sinks: int
    """Spark queries that write, beside the producers."""
    sink_batches: int
    mischief: tuple[Mischief, ...]
    mischief_every_ms: float
    errands: tuple[Errand, ...]
    lost_request: float
    lost_reply: float
    delayed: float
    repeated: float
    store_faults: float
    starved_ms: float
    """The longest time for which an agent's process gets no CPU, again and again; 0 on idle machines."""
    lost_answers: float
    """How often a connection breaks when an agent answers."""
    stalls: float
    """How often a request of a client, and all behind it, arrive late."""
    large_batches: float
    """How often a producer writes a batch that needs much of the room there is, or more than all of it."""
    batch_records: int
    """How many records a batch has at most."""
    value_bytes: int
    """The size of every record, so that WAL frames of different files often end at the same byte."""
    timings: Timings
    leased: LeasedOptions
    wal: WalOptions
    tail_bytes: int
    store_retries: RetryPolicy
    maintenance: MaintenancePlan | None = None
    """What maintenance does; None where it does not run."""


def draw_scenario(seed: int) -> Scenario:
    scenario = _draw(seed)
    dice = Dice(seed).child("expiry")
    if dice.chance(_EXPIRING):
        return _expiring(scenario, dice)
    if scenario.durability is Durability.OBJECT and Dice(seed).child("losses").chance(_LOSING):
        return replace(scenario, mischief=(*scenario.mischief[:1], *_LOSSES))
    starving = Dice(seed).child("starving")
    if scenario.durability is Durability.OBJECT and starving.chance(_STARVED):
        scenario = on_busy_machines(scenario, starving)
    maintenance = Dice(seed).child("maintenance")
    if can_be_maintained(scenario) and maintenance.chance(_MAINTAINED):
        return with_maintenance(scenario, maintenance)
    return scenario


def with_maintenance(scenario: Scenario, dice: Dice) -> Scenario:
    """Maintenance runs beside everything else. The errands that it replaces are left out, and those that hours end:
    requests for a flush, and commits that are kept for some minutes."""
    plan = draw_plan(dice, single=scenario.durability is Durability.WAL)
    return replace(
        scenario,
        maintenance=plan,
        compacted=plan.rules.compacts,
        leased=replace(scenario.leased, resubmit_max_age_ms=_AGELESS_MS),
        sinks=0,
        errands=tuple(errand for errand in scenario.errands if errand is Errand.RECREATE_TOPIC),
    )


def can_be_maintained(scenario: Scenario) -> bool:
    """Not where producers expire, because no batch may be in doubt for long there; nor where the metadata loses
    commits, because a vacuum relies on what it has read."""
    return Errand.EXPIRE_PRODUCERS not in scenario.errands and Mischief.LOSSY_METADATA not in scenario.mischief


_WHOLE_CHUNKS = 100_000


def on_busy_machines(scenario: Scenario, dice: Dice) -> Scenario:
    """The machines are busy, and answers come late: about when their time-outs are over.

    A flush takes all that waits. If it took one batch in 200 ms, clients that give up after 300 ms and send again would
    add more than it takes, and none of them would ever get an answer (seed 706496).
    """
    return replace(
        scenario,
        leased=replace(scenario.leased, max_chunk_bytes=_WHOLE_CHUNKS),
        starved_ms=dice.uniform(20, 200),
        mischief=(*scenario.mischief[:2], *_LOST_LEASES),
        producers=tuple(_with_short_timeout(plan, dice) for plan in scenario.producers),
    )


def _with_short_timeout(plan: ProducerPlan, dice: Dice) -> ProducerPlan:
    """A client that gives the agent little time, and waits for the answer for longer than that, as many clients do."""
    return replace(plan, timeout_ms=dice.pick((300.0, 800.0)), wait_factor=plan.wait_factor if plan.idempotent else 2.0)


def _expiring(scenario: Scenario, dice: Dice) -> Scenario:
    """Producers are silent for so long that they are forgotten, and go on. None has a batch in doubt for so long: their
    clients give up early, requests do not stall, agents are not paused, and the clock of the store is not set."""
    mischief = tuple(
        Mischief.KILL if each in (Mischief.PAUSE, Mischief.STORE_CLOCK) else each for each in scenario.mischief
    )
    return replace(
        scenario,
        run_ms=max(scenario.run_ms, 2.5 * PRODUCER_IDLE_MS),
        producers=tuple(_silent(plan, dice) if plan.idempotent else plan for plan in scenario.producers),
        mischief=mischief,
        errands=(*scenario.errands, Errand.EXPIRE_PRODUCERS, Errand.EXPIRE_PRODUCERS),
        stalls=0.0,
        leased=replace(scenario.leased, producer_expiration_ms=PRODUCER_IDLE_MS),
    )


def _silent(plan: ProducerPlan, dice: Dice) -> ProducerPlan:
    return replace(
        plan,
        session_writes=20,
        dies=0.0,
        burst=dice.pick((1, 1, 3)),
        timeout_ms=dice.pick((300.0, 800.0)),
        delivery_timeout_ms=1500.0,
        silence_ms=1.3 * PRODUCER_IDLE_MS,
    )


def _draw(seed: int) -> Scenario:
    dice = Dice(seed).child("scenario")
    sink_dice = Dice(seed).child("sinks")
    clients = Dice(seed).child("clients")
    single = dice.chance(0.3)
    durability = Durability.WAL if single else Durability.OBJECT
    agents = 1 if single else dice.pick((2, 3, 3, 3, 4))

    def rate(most: float) -> float:
        return dice.uniform(most / 10, most) if dice.chance(0.5) else 0.0

    large = clients.uniform(0.1, 0.5) if clients.chance(0.35) else 0.0
    possible = _SINGLE_MISCHIEF if single else _FLEET_MISCHIEF
    mischief = tuple(dice.weighted(possible) for _ in range(dice.between(1, 4)))
    return Scenario(
        durability=durability,
        agents=agents,
        late_agents=0 if single else dice.below(2),
        topics=dice.pick(((1,), (1,), (2,), (1, 1), (2, 1))),
        compacted=dice.chance(0.15),
        run_ms=dice.uniform(3000, 9000),
        producers=tuple(_producer(clients) for _ in range(clients.between(2, 3))),
        readers=dice.between(1, 2),
        sinks=sink_dice.between(1, 2) if sink_dice.chance(0.35) else 0,
        sink_batches=sink_dice.between(3, 8),
        mischief=mischief,
        mischief_every_ms=dice.uniform(300, 1500),
        errands=tuple(dice.pick(_ERRANDS) for _ in range(dice.between(0, 2))),
        lost_request=rate(0.1),
        lost_reply=rate(0.2),
        delayed=rate(0.1),
        repeated=rate(0.1),
        store_faults=rate(0.4),
        starved_ms=0.0,
        lost_answers=rate(0.1),
        stalls=clients.uniform(0.005, 0.05) if clients.chance(0.5) else 0.0,
        large_batches=large,
        batch_records=dice.pick((1, 1, 3)),
        value_bytes=dice.pick((24, 24, 300)),
        timings=SINGLE_TIMINGS if single else FLEET_TIMINGS,
        leased=LeasedOptions(
            durability=durability,
            rules=FlushRules(
                segment_max_bytes=dice.pick((250, 1000, 100_000)),
                segment_max_age_ms=dice.pick((100, 500, 2000, 60_000)),
                flush_interval_ms=dice.pick((0, 20, 200)),
                busy_segment_bytes=dice.pick((0, 2000)) if durability is Durability.WAL else 0,
                pace=None if durability is Durability.WAL else _pace(Dice(seed).child("pace")),
            ),
            max_buffer_bytes=dice.pick((8_000, 100_000)),
            max_flushes_in_flight=dice.pick((1, 2, 4)),
            max_chunk_bytes=dice.pick((300, 100_000)),
        ),
        wal=WalOptions(
            file_bytes=4096 + dice.pick((600, 1500, 6000)) + (LARGE_BYTES[-1] + 2000 if large else 0),
            max_bytes=dice.pick((60_000, 400_000)),
            max_spare_files=dice.pick((0, 1, 3)),
        ),
        tail_bytes=dice.pick((500, 100_000)),
        store_retries=RetryPolicy(
            deadline_ms=dice.pick((600, 3000)), attempt_timeout_ms=500, first_pause_ms=20, longest_pause_ms=200
        ),
    )


def _pace(dice: Dice) -> FlushPace:
    return FlushPace(
        puts_per_second=dice.pick((5, 50, 1000)),
        longest_wait_ms=dice.pick((0, 20, 200)),
        enough_bytes=dice.pick((1000, 10_000, 100_000)),
        unbudgeted_bytes=dice.pick((500, 5000, 1_000_000)),
    )


def _producer(dice: Dice) -> ProducerPlan:
    kind = dice.weighted([(2, ClientKind.PLAIN), (1, ClientKind.JAVA), (1, ClientKind.LIBRDKAFKA)])
    plain = kind is ClientKind.PLAIN
    return ProducerPlan(
        kind=kind,
        acks=dice.weighted([(4, -1), (4, 1), (1, 0)]) if plain else dice.weighted([(5, -1), (1, 1)]),
        writes=dice.between(15, 50),
        session_writes=1000 if plain else dice.pick((3, 8, 20)),
        dies=0.0 if plain else dice.pick((0.0, 0.0, 0.2)),
        burst=dice.pick((1, 3, 8, 16)),
        gap_ms=dice.pick((10.0, 10.0, 200.0)),
        rest_ms=dice.pick((150.0, 500.0, 2000.0)),
        attempts=dice.pick((1, 4, 20)),
        in_flight=dice.pick((1, 3, 5)),
        timeout_ms=dice.pick((300.0, 800.0, 2500.0)),
        wait_factor=2.0 if kind is ClientKind.LIBRDKAFKA else 1.0,
        delivery_timeout_ms=dice.pick((None, None, 1500.0, 4000.0)),
    )
