"""Found by PySpark itself: it imports every module ``pyspark_*`` and registers its ``DefaultSource``.

So ``spark.read.format("streamhouse")`` works as soon as StreamHouse is installed, in any session.
"""

from __future__ import annotations

from streamhouse.spark.shim import make_source

DefaultSource = make_source()
