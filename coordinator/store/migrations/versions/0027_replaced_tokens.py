"""Held-out results of detecting replaced tokens

Revision: 0027; follows 0026.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"

COLUMNS = ("detection_loss", "detection_accuracy", "detection_f1")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("validations", sa.Column(name, sa.Float(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("validations") as table:
        for name in COLUMNS:
            table.drop_column(name)
