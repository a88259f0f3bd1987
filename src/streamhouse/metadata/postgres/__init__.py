"""The PostgreSQL backend. ``store.PostgresMetadata`` is the whole contract; one module per area holds its SQL.

Commits, leases and offset commits are functions of the database (migrations/*.sql), so each is one statement and one
round trip. A change of a function is a new numbered migration, like a change of a table: old and new processes never
fight over who re-creates it, and a schema version says which functions there are.
"""
