"""The database: tables, engine, migrations."""
