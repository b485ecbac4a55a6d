"""The devices' keys for receipts; what was signed before with the key that is a libp2p identity is published no more

Revision: 0026; follows 0025.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("devices", sa.Column("receipt_key", sa.String(64), nullable=True))
    op.create_index("ix_devices_receipt_key", "devices", ["receipt_key"], unique=True)
    with op.batch_alter_table("receipts") as table:
        table.alter_column("signature", existing_type=sa.LargeBinary(512), nullable=True)
    op.execute("UPDATE receipts SET signature = NULL")


def downgrade() -> None:
    op.execute("DELETE FROM receipts")  # none has a signature that an older version could check
    with op.batch_alter_table("receipts") as table:
        table.alter_column("signature", existing_type=sa.LargeBinary(512), nullable=False)
    op.drop_index("ix_devices_receipt_key", "devices")
    op.drop_column("devices", "receipt_key")  # not by a new table: others refer to this one
