"""The agents, the topics, and which agent leads what, as this agent knows it. Requests read it without waiting.

    own leases       told by the owner of the leases, when they begin and end
    others' leases   from the store, when it says that they changed, and now and then unasked
    agents           asked for now and then: no agent announces its own death

Keeps itself fresh, and says when something changed; what is known of leases is in known_leases.py.

What is wrong here for a moment costs a client one more round: the log and the metadata commit decide, never this. Must
not take part in any decision about leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar
from uuid import UUID

from streamhouse.broker.doubt import Doubt
from streamhouse.broker.known_leases import KnownLeases
from streamhouse.broker.nodes import Endpoint, Leader, Node, cluster_id_text, node_of
from streamhouse.broker.placement import leaders_to_be
from streamhouse.core.errors import StreamHouseError, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import COORDINATOR_SLOTS
from streamhouse.core.tasks import retrieve
from streamhouse.metadata.contract import (
    Change,
    ChangeKind,
    Lease,
    LeaseKey,
    MetadataStore,
    RegisteredAgent,
    SlotKey,
    Topic,
    WriteMode,
)

__all__ = ["ClusterView", "Endpoint", "Leader", "Node"]

E = TypeVar("E", bound=StreamHouseError)

TopicRef = str | UUID
"""A topic's name or its id, as a caller gives it."""

_FULL_LOOK_S: Final = 60.0
"""Notifications may be lost; this bounds for how long that matters."""
_LONGEST_AGENT_POLL_S: Final = 5.0
_PAUSE_S: Final = 0.02
"""The rest after a look: leases change by the hundred when an agent comes or goes."""
NO_LEADER: Final = (-1, -1)
_FIND_LEADERS_S: Final = 0.5
_MOST_LOOKED_AT: Final = 5_000  # partitions of one look that a caller waits for
_ALL_SLOTS: Final = tuple(SlotKey(number) for number in range(COORDINATOR_SLOTS))


class ClusterView:
    """Made before the agent joins the cluster, because it hears of every lease; ``start`` once it has joined."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        agent_id: str,
        liveness_timeout_ms: int,
        heartbeat_interval_ms: int,
        alone: bool = False,
    ) -> None:
        """``alone``: no other agent can be there."""
        self.cluster_id = ""
        self.node_id = -1
        self._metadata = metadata
        self._liveness_timeout_ms = liveness_timeout_ms
        self._poll_s = min(heartbeat_interval_ms / 1000, _LONGEST_AGENT_POLL_S)
        self._alone = alone
        self._endpoints: Mapping[str, Endpoint] = {}
        self.me: Node | None = None
        """This agent as a broker; None before ``start``, and in a process without an agent."""
        self._nodes: tuple[Node, ...] = ()
        """Those that clients can connect to."""
        self._by_agent: dict[str, Node] = {}
        """All that live."""
        self._names: dict[str, Topic] = {}
        self._ids: dict[TopicId, Topic] = {}
        self._leases = KnownLeases(agent_id)
        self._generations: dict[TopicId, int] = {}
        self._generation = self._nodes_generation = 0
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()
        self._doubt = Doubt()
        self._next_look: asyncio.Task[None] | None = None
        """A look at leases that callers wait for and that has not begun."""
        self._next_keys: set[LeaseKey] = set()
        """What it will look at."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, me: RegisteredAgent | None, endpoints: Mapping[str, Endpoint] | None = None) -> None:
        """Everything is known when it returns.

        ``me``: this agent as registered; None in a process without an agent. ``endpoints``: the address of this agent
        for the clients of each listener.
        """
        self._endpoints = dict(endpoints or {})
        self.cluster_id = cluster_id_text((await self._metadata.cluster_info()).cluster_id.bytes)
        if me is not None:
            self.node_id = me.node_id
            self.me = node_of(me)
            self._take_agents([me])
        listening = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._listen(listening), name="view-listen"),
            asyncio.create_task(self._keep_fresh(), name="view-refresh"),
        ]
        await listening.wait()
        await self.refresh()

    async def close(self) -> None:
        tasks = [*self._tasks, *([] if self._next_look is None else [self._next_look])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Agents.

    @property
    def has_agents(self) -> bool:
        """Whether any agent lives, as far as is known here."""
        return bool(self._by_agent)

    def nodes(self) -> Sequence[Node]:
        """Live agents that clients can connect to, by node id."""
        return self._nodes

    def controller(self) -> Node | None:
        """The controller for clients: the live broker with the smallest id. Any agent can serve admin requests."""
        return self._nodes[0] if self._nodes else None

    def endpoint(self, node: Node, listener: str) -> Endpoint:
        """Where a client of ``listener`` finds ``node``: this agent under that listener's own advertised address."""
        if node.node_id == self.node_id and listener in self._endpoints:
            return self._endpoints[listener]
        return Endpoint(host=node.host, port=node.port)

    # Leaders.

    def leader(self, key: PartitionKey) -> Leader | None:
        """None when no agent leads it now, as far as is known here."""
        held = self._leases.holding(key)
        if held is None:
            return self._leaderless(key)
        agent_id, epoch = held
        node = self._by_agent.get(agent_id)
        return None if node is None else Leader(node=node, epoch=epoch)

    def leaders_of(self, topic: Topic) -> list[tuple[int, int]]:
        """Node id and epoch of every partition's leader that clients can connect to; (-1, -1) without one."""
        if topic.write_mode is WriteMode.LEADERLESS:
            found = map(self.leader, topic.partition_keys())
            return [NO_LEADER if leader is None else (leader.node.node_id, leader.epoch) for leader in found]
        own, others = self._leases.of_topic(topic.topic_id)
        ids = {node.agent_id: node.node_id for node in self._nodes}
        listens = self.node_id in ids.values()
        leaders: list[tuple[int, int]] = []
        for partition in range(topic.partition_count):
            if partition in own and listens:
                leaders.append((self.node_id, own[partition]))
            elif partition in others and others[partition][0] in ids:
                leaders.append((ids[others[partition][0]], others[partition][1]))
            else:
                leaders.append(NO_LEADER)
        return leaders

    def coordinator(self, slot: SlotKey) -> Node | None:
        """None if no agent that clients can connect to holds it, as far as is known here."""
        held = self._leases.holding(slot)
        node = None if held is None else self._by_agent.get(held[0])
        return node if node is not None and node.listens else None

    def generation(self, topic_id: TopicId) -> tuple[int, int]:
        """Changes whenever the leader of one of the topic's partitions may have changed."""
        return self._nodes_generation, self._generations.get(topic_id, 0)

    async def wait_led(self, keys: Iterable[PartitionKey], *, timeout_s: float) -> bool:
        """Whether each of these partitions has had a leader before the time is up."""
        waiting = list(keys)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while waiting:
                    if self.leader(waiting[-1]) is not None:
                        waiting.pop()
                        continue
                    await self._changed.wait()
        return not waiting

    async def leaders_to_be(self, topic: Topic) -> list[int | None]:
        """The node id of the agent that should lead each partition of a topic as it will be; None without one."""
        if topic.write_mode is WriteMode.LEADERLESS:
            nodes = self._nodes
            return [nodes[number % len(nodes)].node_id if nodes else None for number in range(topic.partition_count)]
        if self._alone:
            return [self.node_id] * topic.partition_count
        agents = await self._metadata.list_agents(alive_within_ms=self._liveness_timeout_ms)
        # In a thread: the ring of a hundred thousand partitions takes a second.
        return await asyncio.to_thread(leaders_to_be, agents, await self.all_topics(), topic)

    def leaving_epoch(self, key: LeaseKey) -> int | None:
        """The epoch of a lease that this agent hands over, until the store names another holder or none."""
        return self._leases.leaving_epoch(key)

    async def wait_changed(self, timeout_s: float) -> None:
        """Returns when something that is known here has changed, or when the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def _leaderless(self, key: PartitionKey) -> Leader | None:
        """Any agent serves a leaderless partition; all name the same one, at epoch 0."""
        topic = self._ids.get(key.topic_id)
        if topic is None or topic.write_mode is not WriteMode.LEADERLESS or not self._nodes:
            return None
        return Leader(node=self._nodes[key.partition % len(self._nodes)], epoch=0)

    # Topics.

    def topic(self, name: str) -> Topic | None:
        return self._names.get(name)

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        return self._ids.get(topic_id)

    def name_of(self, key: PartitionKey) -> str:
        """A partition as people call it, for messages: its topic's id is shown only if the topic is not known."""
        topic = self._ids.get(key.topic_id)
        return str(key) if topic is None else f"{topic.name}/{key.partition}"

    def with_name(self, error: E, key: PartitionKey) -> E:
        """The same error with the partition's name in its message: lower layers know only the topic's id."""
        if (name := self.name_of(key)) != str(key):
            error.message = error.message.replace(str(key), name)
        return error

    def find(self, ref: TopicRef) -> Topic | None:
        """The topic with this name or id, if this agent knows it."""
        return self._names.get(ref) if isinstance(ref, str) else self._ids.get(TopicId(ref))

    def topics(self) -> list[Topic]:
        """All that are known here, by name."""
        return [self._names[name] for name in sorted(self._names)]

    async def look_up(self, ref: TopicRef) -> Topic | None:
        """The topic with this name or id. Reads the store if this agent does not know it."""
        return await (self.find_topic(ref) if isinstance(ref, str) else self.find_topic_by_id(TopicId(ref)))

    async def find_topic(self, name: str) -> Topic | None:
        """The topic with this name. Reads the store if this agent does not know it: another agent may have just
        created it."""
        known = self._names.get(name)
        if known is None:
            with suppress(TopicNotFound):
                known = await self._metadata.get_topic(name)
                self.learned(known)
        return known

    async def find_topic_by_id(self, topic_id: TopicId) -> Topic | None:
        known = self._ids.get(topic_id)
        if known is None:
            with suppress(TopicNotFound):
                known = await self._metadata.get_topic_by_id(topic_id)
                self.learned(known)
        return known

    async def all_topics(self) -> list[Topic]:
        """Fresh from the store, by name."""
        before = set(self._ids)
        topics = await self._metadata.list_topics()
        self._take_topics(topics, before)
        return topics

    def learned(self, topic: Topic) -> None:
        """Take note of a topic that a caller has just read from the store."""
        known = self._ids.get(topic.topic_id)
        if known is not None and known.version >= topic.version:
            return
        namesake = self._names.get(topic.name)
        if namesake is not None and namesake.topic_id != topic.topic_id:
            self.forgot(namesake)
        self._ids[topic.topic_id] = self._names[topic.name] = topic
        self._bump(topic.topic_id)

    def forgot(self, topic: Topic) -> None:
        """It was deleted."""
        known = self._ids.pop(topic.topic_id, None)
        if known is None:
            return
        if self._names[known.name].topic_id == topic.topic_id:
            del self._names[known.name]
        self._leases.forget_topic(topic.topic_id)
        self._generations.pop(topic.topic_id, None)
        self._announce()

    # What the owner of this agent's leases tells.

    def gained(self, lease: Lease) -> None:
        """It is open here: clients may come."""
        self._leases.gained(lease)
        self._bump_key(lease.key)
        self._doubt_topics_of([lease])

    def leaving(self, key: LeaseKey) -> None:
        """It is being handed over. Clients are better off here, where they wait, than without any agent to go to."""
        if not self._alone and self._leases.leave(key):
            self._doubt.add([key])
        else:
            self.ended(key)

    def ended(self, key: LeaseKey) -> None:
        """This agent has lost the lease, or has given it up without handing it over."""
        if self._leases.ended(key):
            self._doubt.add([key])
            self._bump_key(key)

    # Keeping fresh.

    async def refresh(self) -> None:
        """Look at everything."""
        async with self._looking:
            self._doubt.clear()
            await self._look_at_agents()
            await self.all_topics()
            if not self._alone:
                self._take_leases(await self._metadata.list_leases())

    async def look_at_slots(self) -> None:
        """Read from the store which agents hold the coordinator slots."""
        await self._look_at(_ALL_SLOTS)

    async def find_leaders(self, topics: Iterable[Topic], *, timeout_s: float = _FIND_LEADERS_S) -> None:
        """Read from the store the leaders of these topics' partitions that have none as far as is known here.

        Another agent may have taken a lease a moment ago, and this one has not been told yet. Returns after
        ``timeout_s`` at the latest; what is known here then has to do.
        """
        missing = [
            PartitionKey(topic.topic_id, partition)
            for topic in topics
            for partition, leader in enumerate(self.leaders_of(topic))
            if leader == NO_LEADER
        ]
        if missing:
            with suppress(TimeoutError, StreamHouseError):
                async with asyncio.timeout(timeout_s):
                    await self._look_at(missing[:_MOST_LOOKED_AT])

    async def _look_at(self, keys: Iterable[LeaseKey]) -> None:
        """Callers that come during a look share the next one."""
        if self._alone:
            return
        self._next_keys.update(keys)
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_at_next(), name="view-look")
            self._next_look.add_done_callback(retrieve)
        await asyncio.shield(self._next_look)

    async def _look_at_next(self) -> None:
        try:
            await self._looking.acquire()
        finally:
            # From here on, what is read may be older than a new caller's question.
            keys, self._next_keys, self._next_look = list(self._next_keys), set(), None
        try:
            self._take_leases(await self._metadata.list_leases(keys=keys), asked=keys)
            if any((held := self._leases.holding(key)) is not None and held[0] not in self._by_agent for key in keys):
                await self._look_at_agents()  # an agent may have joined a moment ago
        finally:
            self._looking.release()

    async def _listen(self, listening: asyncio.Event) -> None:
        while True:
            with suppress(StreamHouseError):
                async with self._metadata.subscribe() as changes:
                    listening.set()
                    async for change in changes:
                        self._heard(change)
                    return  # the store was closed
            listening.set()
            self._doubt.everything()
            await asyncio.sleep(self._poll_s)

    def _heard(self, change: Change) -> None:
        match change.kind:
            case ChangeKind.LEASES if not self._alone:
                others = [key for key in change.keys if not self._leases.is_own(key)]
                self._doubt.add(others if change.keys else _ALL_SLOTS)
            case ChangeKind.TOPICS:
                self._doubt.add_name(change.name)
            case ChangeKind.ANY:
                self._doubt.everything()

    async def _keep_fresh(self) -> None:
        loop = asyncio.get_running_loop()
        next_full_s = loop.time() + _FULL_LOOK_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FULL_LOOK_S if self._alone else self._poll_s):
                    await self._doubt.wait()
            try:
                if loop.time() >= next_full_s:
                    next_full_s = loop.time() + _FULL_LOOK_S
                    await self.refresh()
                else:
                    await self._look_again()
            except StreamHouseError:
                self._doubt.everything()  # the store is away: what is known stays, and is looked at again
                await asyncio.sleep(self._poll_s)
            await asyncio.sleep(_PAUSE_S)

    async def _look_again(self) -> None:
        """Read again from the store what may have changed."""
        if self._doubt.of_everything:
            await self.refresh()
            return
        async with self._looking:
            names, keys = sorted(self._doubt.names), list({*self._doubt.keys, *self._leases.leaving()})
            self._doubt.clear()
            for name in names:
                await self._look_at_topic(name)
            if keys and not self._alone:
                self._take_leases(await self._metadata.list_leases(keys=keys), asked=keys)
            if not self._alone:
                await self._look_at_agents()

    async def _look_at_agents(self) -> None:
        if not self._alone:
            self._take_agents(await self._metadata.list_agents(alive_within_ms=self._liveness_timeout_ms))

    async def _look_at_topic(self, name: str) -> None:
        try:
            self.learned(await self._metadata.get_topic(name))
        except TopicNotFound:
            gone = self._names.get(name)
            if gone is not None:
                self.forgot(gone)

    def _take_agents(self, agents: Iterable[RegisteredAgent]) -> None:
        found = {agent.agent_id: node_of(agent) for agent in agents}
        if self.me is not None:
            found[self.me.agent_id] = self.me
        if found != self._by_agent:
            nodes = sorted(found.values(), key=lambda node: node.node_id)
            self._by_agent, self._nodes = found, tuple(node for node in nodes if node.listens)
            self._nodes_generation += 1
            self._announce()

    def _take_topics(self, topics: Sequence[Topic], before: set[TopicId]) -> None:
        """``before``: what was known when the store was asked. What came or went meanwhile is newer than its answer."""
        for topic_id in before.difference(topic.topic_id for topic in topics):
            if topic_id in self._ids:
                self.forgot(self._ids[topic_id])
        for topic in topics:
            if topic.topic_id in self._ids or topic.topic_id not in before:
                self.learned(topic)

    def _take_leases(self, leases: Sequence[Lease], *, asked: Sequence[LeaseKey] | None = None) -> None:
        changed = set(self._leases.take(leases, asked=asked))
        for key in changed:
            self._bump_key(key)
        self._doubt_topics_of([lease for lease in leases if lease.key in changed])

    def _doubt_topics_of(self, leases: Iterable[Lease]) -> None:
        """A lease on a topic that is not known here: it was created, and the notice of that was lost or is late."""
        for lease in leases:
            if isinstance(lease.key, PartitionKey) and lease.topic and lease.key.topic_id not in self._ids:
                self._doubt.add_name(lease.topic)

    def _bump_key(self, key: LeaseKey) -> None:
        if isinstance(key, PartitionKey):
            self._bump(key.topic_id)
        else:
            self._announce()

    def _bump(self, topic_id: TopicId) -> None:
        self._generation += 1  # one count for all: a topic that is forgotten and learned again must not look the same
        self._generations[topic_id] = self._generation
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
