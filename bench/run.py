"""Run the benchmarks: every ``bench_*.py`` beside this file, or those named on the command line.

python bench/run.py            all of them
python bench/run.py wire       bench_wire.py only
"""

from __future__ import annotations

import importlib
import platform
import sys
from pathlib import Path


def main(names: list[str]) -> None:
    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here))
    found = sorted(path.stem.removeprefix("bench_") for path in here.glob("bench_*.py"))
    unknown = [name for name in names if name not in found]
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(found)}")
    print(f"Python {platform.python_version()} on {platform.machine()}")
    for name in names or found:
        importlib.import_module(f"bench_{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
