"""A shop's afternoon: orders, clicks and metrics in topics, pipelines over them, and a plot of what came out.

    python examples/shop.py                  everything in a temporary directory; ends by itself
    python examples/shop.py --keep ./shop    keeps the data, to look at with `streamhouse … --data-dir ./shop`

Needs Java 17 and `pip install '.[spark]'` (in a checkout). Writes shop.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from streamhouse import StreamHouse
from streamhouse.spark import read_topic, session

HERE = Path(__file__).parent
NOON = datetime(2024, 5, 17, 12, 0, tzinfo=UTC)
PRODUCTS = {"espresso": 3.2, "filter": 2.6, "beans": 14.9, "mug": 11.0}
COLOURS = ("#0b6fb8", "#c8421f", "#4a8f29", "#8a4fa3")


def afternoon(minutes: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Topic, key and value of everything that happens. Trade swells towards three o'clock; beans sell late."""
    dice = random.Random(17)
    order_id = 0
    for second in range(minutes * 60):
        at = NOON + timedelta(seconds=second)
        swell = 1 + 2 * (second / (minutes * 60)) ** 2
        if dice.random() < 0.5 * swell:
            user, product = f"user-{dice.randrange(400)}", dice.choices(list(PRODUCTS), (5, 3, swell, 1))[0]
            yield "clicks", user, {"user": user, "product": product, "page": "/" + product, "at": stamp(at)}
            if dice.random() < 0.4:
                order_id += 1
                bought = at + timedelta(seconds=dice.randrange(5, 240))
                amount = round(PRODUCTS[product] * dice.randrange(1, 4), 2)
                yield (
                    "orders",
                    user,
                    {"order_id": order_id, "user": user, "product": product, "amount": amount, "at": stamp(bought)},
                )
        host = f"web-{dice.randrange(3)}"
        latency_ms = round(dice.lognormvariate(4 + 0.3 * swell, 0.7), 1)
        yield "metrics", host, {"host": host, "path": "/buy", "latency_ms": latency_ms, "at": stamp(at)}


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def fill(shop: StreamHouse, minutes: int) -> int:
    for topic in ("orders", "clicks", "metrics", "revenue", "conversions", "alerts"):
        await shop.create_topic(topic, 2)
    count = 0
    for topic, key, value in afternoon(minutes):
        await shop.produce(topic, json.dumps(value).encode(), key=key.encode())
        count += 1
    return count


async def command(*words: str) -> None:
    """Run `streamhouse …`, as in a terminal."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "streamhouse", *words)
    if await process.wait() != 0:
        raise SystemExit(f"streamhouse {words[0]} has failed")


def look(data_dir: str) -> dict[str, list[tuple[datetime, float]]]:
    """Read the results as any Spark program would: topics are DataFrames."""
    spark = session(fast_start=True, dataDir=data_dir)
    pairs = read_topic(spark, "conversions").count()
    say(f"\n{pairs} times a click was followed by an order of the same product within ten minutes")
    say(f"{read_topic(spark, 'alerts').count()} requests took longer than half a second")
    revenue = "product STRING, minute TIMESTAMP, orders BIGINT, revenue DOUBLE"
    rows = read_topic(spark, "revenue", text=True).selectExpr(f"from_json(value, '{revenue}') AS r").select("r.*")
    series: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for row in rows.orderBy("minute").collect():
        series[row.product].append((row.minute.astimezone(UTC), row.revenue))  # Spark gives local times
    spark.stop()
    return series


def smooth(points: list[tuple[datetime, float]], first: datetime, last: datetime) -> list[tuple[datetime, float]]:
    """The mean of each five minutes around a minute; one without a sale counts as zero."""
    sold = dict(points)
    minutes = [first + timedelta(minutes=number) for number in range(int((last - first) / timedelta(minutes=1)) + 1)]
    values = [sold.get(minute, 0.0) for minute in minutes]
    around = [values[max(0, number - 2) : number + 3] for number in range(len(values))]
    return [(minute, sum(few) / len(few)) for minute, few in zip(minutes, around, strict=True)]


def nice_step(top: float) -> float:
    """The step of a scale with about five lines: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(top / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= top / 5)


def plot(series: dict[str, list[tuple[datetime, float]]], target: Path) -> None:
    """Revenue by minute and product, as a drawing that every browser opens."""
    width, height, left, right, above, below = 900, 400, 56, 100, 64, 44
    every = [at for points in series.values() for at, _ in points]
    first, last = min(every), max(max(every), min(every) + timedelta(minutes=1))
    lines = {product: smooth(points, first, last) for product, points in series.items()}
    top = max(value for points in lines.values() for _, value in points)
    step = nice_step(top)
    top = math.ceil(top / step) * step

    def x(at: datetime) -> float:
        return left + (at - first) / (last - first) * (width - left - right)

    def y(value: float) -> float:
        return height - below - value / top * (height - above - below)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="12" fill="#444">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="28" font-size="17" fill="#111">Revenue of the shop, € per minute</text>',
        f'<text x="{left}" y="46">mean of five minutes; time in UTC</text>',
    ]
    for number in range(round(top / step) + 1):
        height_of_line = y(number * step)
        drawn.append(f'<path d="M{left} {height_of_line:.1f}H{width - right}" stroke="#ddd"/>')
        drawn.append(f'<text x="{left - 8}" y="{height_of_line + 4:.1f}" text-anchor="end">{number * step:g}</text>')
    tick = first.replace(minute=first.minute // 10 * 10)
    while tick <= last:
        if tick >= first:
            drawn.append(f'<path d="M{x(tick):.1f} {height - below}v5" stroke="#444"/>')
            drawn.append(f'<text x="{x(tick):.1f}" y="{height - below + 20}" text-anchor="middle">{tick:%H:%M}</text>')
        tick += timedelta(minutes=10)
    ends = sorted((y(points[-1][1]), product) for product, points in lines.items())
    label_y = 0.0
    for number, (end, product) in enumerate(ends):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in lines[product])
        drawn.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"/>'
        )
        label_y = max(end + 4, label_y + 16)  # names stand beside their lines, and not on each other
        drawn.append(f'<text x="{width - right + 8}" y="{label_y:.1f}" font-size="14" fill="{colour}">{product}</text>')
    target.write_text("\n".join([*drawn, "</svg>\n"]))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


async def run(data_dir: str, minutes: int, target: Path) -> None:
    async with StreamHouse.open(data_dir=data_dir) as shop:
        say(f"{await fill(shop, minutes)} records in orders, clicks and metrics")
        await command("apply", "--file", str(HERE / "pipelines.yaml"), "--data-dir", data_dir)
        few = ("--conf", "spark.sql.shuffle.partitions=2")
        await command("pipeline", "run", "--until-idle", "--fast-start", *few, "--data-dir", data_dir)
        plot(await asyncio.to_thread(look, data_dir), target)
    say(f"the plot is in {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A shop's afternoon in topics, pipelines and a plot.")
    parser.add_argument("--keep", metavar="DIR", help="where the data stays")
    parser.add_argument("--minutes", type=int, default=60, help="how long the afternoon is")
    parser.add_argument("--plot", default="shop.svg", help="where the plot goes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(run(given.keep or f"{scratch}/shop", given.minutes, Path(given.plot)))


if __name__ == "__main__":
    main()
