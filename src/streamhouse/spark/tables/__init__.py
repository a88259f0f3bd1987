"""Topics as tables: Parquet, Iceberg and Delta, kept up to date, each record once, readable by other engines.

values.py      a record's value → the columns of its row, or the reason why not (json_values, avro_values, coercion)
files.py       a task's rows → Parquet files, by time
stores         what a format's commit is: parquet_store, iceberg_store, delta_store
sink.py        the stream sink that joins them; shim.py carries it to the executors
target.py      the table as a pipeline's target
catalog.py     what people have defined; queries.py runs it
"""
