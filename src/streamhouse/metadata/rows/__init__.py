"""The row layer: the calls of the contract that are the same statements on every SQL store, written once.

Topics, agents, groups, definitions, intents, flush requests, compactions, object references, pins and claims are plain
rows. Each area is one class here; SQLite and PostgreSQL both inherit it. Commits, leases and transfers are not here:
there the two stores differ on purpose (PostgreSQL runs functions inside the database, SQLite gathers many commits into
one transaction).

How one piece of code serves both stores:

**One dialect.** Statements are written in PostgreSQL's SQL. ``sqlite/dialect.py`` translates the few spellings that
SQLite does not know. A statement here may only use what that translation covers.

**One kind of step.** A *step* is an ``async`` function that takes a ``RowTx`` and awaits nothing else. On PostgreSQL it
runs on the event loop and waits for the network. SQLite runs it to its end inside the thread of its connection, where
no ``await`` ever has to wait.

**Three ways to run a step.** ``_query``: one statement that only reads. ``_statement``: one statement that writes.
``_transact``: several statements, all or none. PostgreSQL needs one round trip for the first two and at least three for
the third; SQLite runs the last two alike.

A step may run again from its start, after a lost reply or a deadlock. It must change nothing but the database.
Locks (``FOR UPDATE``, ``FOR SHARE``) matter on PostgreSQL only: SQLite has one writer at a time.
"""
