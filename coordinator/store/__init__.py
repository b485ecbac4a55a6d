"""The database: engine, locks, migrations and tables.

All packages above import the tables and `engine`; each writes its own SQL statements.
"""
