"""The ring: what one tick of the assigner costs."""

from __future__ import annotations

from collections import Counter

from report import heading, measure, row
from streamhouse.cluster.ring import assign


def main() -> None:
    heading("Ring: assign partitions to agents")
    for agents, partitions in ((3, 100), (10, 1_000), (100, 10_000)):
        names = [f"agent-{number}" for number in range(agents)]
        keys = [(f"topic-{number % 100}", number // 100) for number in range(partitions)]
        took = measure(lambda names=names, keys=keys: assign(names, keys))
        largest = max(Counter(assign(names, keys).values()).values())
        row(
            f"{partitions:,} partitions, {agents} agents",
            f"{took.cpu_s * 1e3:,.1f} ms",
            ratio=f"fullest agent {largest * agents / partitions:.2f} of the average",
        )


if __name__ == "__main__":
    main()
