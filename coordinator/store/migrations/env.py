"""The Alembic entry point, which runs migrations on the connection from `coordinator.store.engine`."""

from alembic import context

from coordinator.store.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
