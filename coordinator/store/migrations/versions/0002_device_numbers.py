"""Devices are numbered, so that each reads another part of the data

Revision: 0002; follows 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("devices", sa.Column("number", sa.Integer(), nullable=True))
    devices = sa.table("devices", sa.column("id"), sa.column("number"), sa.column("created_at"))
    connection = op.get_bind()
    known = connection.scalars(sa.select(devices.c.id).order_by(devices.c.created_at, devices.c.id)).all()
    for number, device_id in enumerate(known):
        connection.execute(sa.update(devices).where(devices.c.id == device_id).values(number=number))
    with op.batch_alter_table("devices") as table:
        table.alter_column("number", existing_type=sa.Integer(), nullable=False)
        table.create_unique_constraint("uq_devices_number", ["number"])


def downgrade() -> None:
    with op.batch_alter_table("devices") as table:
        table.drop_constraint("uq_devices_number", type_="unique")
        table.drop_column("number")
