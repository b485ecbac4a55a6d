"""The newest published checkpoint as joining peers are offered it: where it lies, and the digests of its state."""

from __future__ import annotations

from pathlib import Path

from auth.errors import StorageError
from coordinator.checkpoints.manifest import verify
from coordinator.context.services import RunServices
from coordinator.ledger.presence import checkpoints, read_swarm_status
from peer.protocol import STATE_FILES, control_pb2


def offered_checkpoint(services: RunServices) -> control_pb2.CheckpointReply:
    """The offer; without an address where there is nothing to offer."""
    status = read_swarm_status(services.database)
    newest = next((row for row in checkpoints(services.database) if not row.withheld), None)
    if status is None or newest is None:
        return control_pb2.CheckpointReply()
    try:
        files = _state_files(services.checkpoint_dir(newest.step), newest.manifest_sha256)
    except (StorageError, KeyError):  # removed just now, or of another kind of optimizer's
        return control_pb2.CheckpointReply()
    address = f"{services.web_address}/api/v1/checkpoints/{newest.step}"
    return control_pb2.CheckpointReply(address=address, step=newest.step, swarm_step=status.step, files=files)


def _state_files(folder: Path, manifest_sha256: str) -> list[control_pb2.RunFile]:
    stored = verify(folder, files=())
    if stored.manifest_sha256 != manifest_sha256:
        raise StorageError(f"{folder.name}: another checkpoint of that step has taken its place.")
    entries = ((name, stored.manifest.files[name]) for name in STATE_FILES)
    return [
        control_pb2.RunFile(name=name, size_bytes=entry.size_bytes, sha256=bytes.fromhex(entry.sha256))
        for name, entry in entries
    ]
