"""What downstream tasks said of checkpoints, and who may report it

Revision: 0022; follows 0021.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.create_table(
        "evaluations",
        sa.Column("manifest_sha256", sa.String(64), nullable=False),
        sa.Column("task", sa.String(40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("evaluator", sa.String(40), nullable=False),
        sa.Column("task_sha256", sa.String(64), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("evaluated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("manifest_sha256", "task"),
    )
    op.create_table(
        "evaluators",
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("public_key", sa.LargeBinary(32), nullable=False),
        sa.Column("added_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("public_key"),
    )


def downgrade() -> None:
    op.drop_table("evaluators")
    op.drop_table("evaluations")
