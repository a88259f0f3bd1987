"""A shop's afternoon: orders, clicks and metrics in topics, pipelines over them, and a plot of what came out.

    python examples/shop.py                  everything in a temporary directory; ends by itself
    python examples/shop.py --keep ./shop    keeps the data, to look at with `streamhouse … --data-dir ./shop`

Needs `pip install 'streamhouse[spark]'` and Java 17. Writes shop.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from streamhouse import StreamHouse
from streamhouse.spark import read_topic
from streamhouse.spark.pipelines.applications import Application
from streamhouse.spark.pipelines.place import Place
from streamhouse.spark.pipelines.service import Pipelines, run
from streamhouse.spark.pipelines.yaml_file import read_pipelines

HERE = Path(__file__).parent
NOON = datetime(2024, 5, 17, 12, 0, tzinfo=UTC)
PRODUCTS = {"espresso": 3.2, "filter": 2.6, "beans": 14.9, "mug": 11.0}
COLOURS = ("#3366cc", "#dc3912", "#ff9900", "#109618")


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
        created = await shop.create_topic(topic, 2)
        await shop.agent.wait_leading(created.partition_keys(), timeout_s=30)
    count = 0
    for topic, key, value in afternoon(minutes):
        await shop.produce(topic, json.dumps(value).encode(), key=key.encode())
        count += 1
    return count


def run_pipelines(data_dir: str) -> Application:
    """As `streamhouse apply` and `streamhouse pipeline run --until-idle` do."""
    place = Place(address_options={"dataDir": data_dir}, checkpoints=f"{data_dir}/checkpoints")
    pipelines = Pipelines(place)
    file = HERE / "pipelines.yaml"
    for applied in pipelines.apply(read_pipelines(file.read_text(), file=str(file)), dry_run=False):
        say(f"{applied.action} {applied.name}")
    application = Application.open("local[*]", fast_start=True, config={"spark.sql.shuffle.partitions": "2"})
    run(pipelines, application, threading.Event(), until_idle=True)
    return application


def look(application: Application, data_dir: str) -> dict[str, list[tuple[datetime, float]]]:
    """The results, as anyone would read them: topics as DataFrames."""
    spark = application.session_for("look")
    revenue = spark.createDataFrame([], "product STRING, minute TIMESTAMP, orders BIGINT, revenue DOUBLE").schema
    from pyspark.sql import functions as fn

    rows = read_topic(spark, "revenue", text=True, dataDir=data_dir)
    parsed = rows.select(fn.from_json("value", revenue).alias("r")).select("r.*")
    say(f"\n{read_topic(spark, 'conversions', dataDir=data_dir).count()} clicks became orders within ten minutes")
    say(f"{read_topic(spark, 'alerts', dataDir=data_dir).count()} requests took longer than half a second")
    series: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for row in parsed.orderBy("minute").collect():
        series[row.product].append((row.minute, row.revenue))
    return series


def plot(series: dict[str, list[tuple[datetime, float]]], target: Path) -> None:
    """Revenue by minute and product, as a drawing that every browser opens."""
    width, height, margin = 900, 360, 50
    first = min(at for points in series.values() for at, _ in points)
    last = max(at for points in series.values() for at, _ in points)
    top = max(value for points in series.values() for _, value in points)

    def place(at: datetime, value: float) -> str:
        along = (at - first) / max(last - first, timedelta(minutes=1))
        return (
            f"{margin + along * (width - 2 * margin):.1f},{height - margin - value / top * (height - 2 * margin):.1f}"
        )

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{margin}" y="24" font-size="16">Revenue per minute</text>',
        f'<text x="6" y="{margin}" font-size="11">{top:.0f}</text>',
        f'<text x="6" y="{height - margin}" font-size="11">0</text>',
        f'<text x="{margin}" y="{height - 28}" font-size="11">{first:%H:%M}</text>',
        f'<text x="{width - margin - 30}" y="{height - 28}" font-size="11">{last:%H:%M}</text>',
    ]
    for number, (product, points) in enumerate(sorted(series.items())):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(place(at, value) for at, value in points)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn.append(f'<text x="{250 + number * 110}" y="24" font-size="13" fill="{colour}">{product}</text>')
    target.write_text("\n".join([*drawn, "</svg>\n"]))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="A shop's afternoon in topics, pipelines and a plot.")
    parser.add_argument("--keep", metavar="DIR", help="where the data stays")
    parser.add_argument("--minutes", type=int, default=60, help="how long the afternoon is")
    parser.add_argument("--plot", default="shop.svg", help="where the plot goes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data_dir = given.keep or f"{scratch}/shop"
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()

        def wait(call: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(call, loop).result()

        opened = StreamHouse.open(data_dir=data_dir)
        shop = wait(opened.__aenter__())
        try:
            say(f"{wait(fill(shop, given.minutes))} records in orders, clicks and metrics")
            application = run_pipelines(data_dir)
            plot(look(application, data_dir), Path(given.plot))
            say(f"the plot is in {given.plot}")
            application.stop()
        finally:
            wait(opened.__aexit__(None, None, None))


if __name__ == "__main__":
    main()
