"""The database: engine, locks, migrations and tables.

Everything above imports the tables and `engine`. Statements are written where their meaning is, not here.
"""
