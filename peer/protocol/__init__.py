"""Three `.proto` files, their generated stubs, and limits that peers and coordinators enforce.

`make protocol` regenerates the stubs. Nothing here imports torch or hivemind. Workers must not
import the control plane's stubs or `errors`, because gRPC does not survive a fork.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 17

NONCE_BYTES: Final = 32
NONCE_LIFETIME_S: Final = 60.0
MAX_CLOCK_SKEW_S: Final = 60.0  # maximum difference between the peer's and the coordinator's clock
MAX_PEER_MESSAGE_BYTES: Final = 64 * 1024  # limit on the size of messages from peers
MAX_COORDINATOR_MESSAGE_BYTES: Final = 8 * 1024 * 1024  # for the coordinator's messages, such as long revocation lists
CHUNK_BYTES: Final = 256 * 1024  # bytes of a file sent in one message
STATE_FILES: Final = ("model.safetensors", "optimizer.safetensors")  # files with a checkpoint's complete state
HELD_AVERAGES: Final = 6  # least number of steps whose averages the keeper holds
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
MAX_RUN_FILES: Final = 32
MAX_PROBE_BYTES: Final = 4 * 1024 * 1024  # bytes to send in each direction to measure bandwidth
PROBE_CHUNK_BYTES: Final = 32 * 1024
WORD_BYTES: Final = 16  # length of the secret sent by the coordinator when connecting back
LOWEST_DIALLED_PORT: Final = 1024
MAX_RELAYS: Final = 3  # maximum number of relays sent to a joining peer
MAX_HARDWARE_CHARS: Final = 200
MAX_VERSION_CHARS: Final = 32
MAX_STEP = 2**40  # of a run's global steps
MAX_ERA = 2**31
