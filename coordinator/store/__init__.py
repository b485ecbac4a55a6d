"""The database layer: engine, locks, migrations and table definitions.

Other coordinator packages import the tables and `engine`, and write their own SQL statements.
"""
