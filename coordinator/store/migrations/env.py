"""The Alembic entry point, which runs migrations on the connection of `store.engine`."""

from alembic import context

from coordinator.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # on SQLite, altering a table requires copying it
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
