"""Objects: written once under a name of their own, never changed, read whole or by range, listed, deleted.

    contract.py     what every store promises; the checks that are the same for all of them
    local.py        a directory, durable          memory.py   a dictionary, for tests and the simulator
    cloud.py        S3, GCS and Azure by obstore  opening.py  from a URL to a store
    retries.py      metering.py      faults.py    wrappers, each of them a store around a store
    keys.py         every object key, built and parsed

Nothing here decides what an object means or who may refer to it.
"""
