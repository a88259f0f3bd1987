"""The PostgreSQL backend. ``store.PostgresMetadata`` is the whole contract; plain areas come from ``metadata/rows``.

Commits, leases and offset commits are functions of the database (migrations/*.sql), so each is one statement and one
round trip. A change of a function is a new numbered migration, like a change of a table. So the schema version says
which functions there are, and a process never replaces a function that another version still uses.
"""
