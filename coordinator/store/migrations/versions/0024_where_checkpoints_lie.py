"""Where a checkpoint lies follows from its step and the run's directory, which may be another one tomorrow

Revision: 0024; follows 0023.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    with op.batch_alter_table("checkpoints") as table:
        table.drop_column("path")


def downgrade() -> None:
    op.add_column("checkpoints", sa.Column("path", sa.Text(), nullable=True))
    checkpoints = sa.table("checkpoints", sa.column("step", sa.Integer()), sa.column("path", sa.Text()))
    connection = op.get_bind()
    for step in connection.scalars(sa.select(checkpoints.c.step)).all():
        # The folder's name alone: in which directory the run lies the database does not know.
        name = f"step-{step:08d}"
        connection.execute(sa.update(checkpoints).where(checkpoints.c.step == step).values(path=name))
    with op.batch_alter_table("checkpoints") as table:
        table.alter_column("path", existing_type=sa.Text(), nullable=False)
