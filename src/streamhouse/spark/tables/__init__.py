"""Topics as tables: Parquet, Iceberg and Delta, kept up to date, each record once, readable by other engines.

    spec.py                    what a table is (pure); service.py has what the commands do
    start.py, target.py        the query that fills a table, and the table as a target (also of a pipeline)
    tasks.py                   a task's work; values.py and coercion.py make rows, files.py writes Parquet
    store.py                   what a format must do; parquet_store, iceberg_store and delta_store do it
    columns.py, location.py    schemas as DDL; where a table is
    leftovers.py               which files a vacuum may remove

definitions/ has what tables share with pipelines: catalog, runner, checkpoints, progress.
"""
