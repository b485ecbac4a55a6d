"""Word from a cloud that it is about to take this machine back, from the metadata service that its machines can ask.

Nothing is asked unless the machine's firmware says that it belongs to one of these clouds (or the person does, in
`MANYHANDS_METADATA`), so that no stray request leaves a machine at home. The sources are the providers' documentation:
Compute Engine's `instance/preempted`, EC2's `spot/instance-action` (IMDSv2), Azure's scheduled events.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from auth.errors import ConfigError

VARIABLE = "MANYHANDS_METADATA"  # "none", or CLOUD@HOST:PORT
DMI = Path("/sys/class/dmi/id")
ADDRESS = "169.254.169.254:80"  # of the metadata service in all three; link-local: no router passes it on
AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"  # tells Azure from Hyper-V on somebody's desk
TIMEOUT_S = 2.0
MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class Metadata:
    """A cloud's metadata service."""

    address: str  # HOST:PORT

    def ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
        """The body of its answer; None where there is none. No proxy and no redirection is followed."""
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.read(MAX_BYTES).decode() if answer.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException, UnicodeDecodeError):
            return None
        finally:
            connection.close()


def google_takes_back(metadata: Metadata) -> bool:
    """Return whether this spot or preemptible machine, or TPU VM, has been preempted: half a minute is left."""
    return metadata.ask("/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}) == "TRUE"


def amazon_takes_back(metadata: Metadata) -> bool:
    """Return whether this spot instance will be interrupted: two minutes are left."""
    token = metadata.ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    if token is None:
        return False
    found = _parsed(metadata.ask("/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}))
    return isinstance(found, dict) and found.get("action") in {"terminate", "stop", "hibernate"}


def azure_takes_back(metadata: Metadata) -> bool:
    """Return whether this spot machine will be preempted: half a minute is left. Azure lists neighbours' events too."""
    headers = {"Metadata": "true"}
    found = _parsed(metadata.ask("/metadata/scheduledevents?api-version=2020-07-01", headers))
    events = found.get("Events") if isinstance(found, dict) else None
    preempted = [e for e in events or () if isinstance(e, dict) and e.get("EventType") in {"Preempt", "Terminate"}]
    if not preempted:
        return False
    name = metadata.ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers)
    return any(name in (event.get("Resources") or ()) for event in preempted)


CLOUDS: dict[str, tuple[str, Callable[[Metadata], bool]]] = {
    "google": ("Google Cloud", google_takes_back),
    "amazon": ("Amazon EC2", amazon_takes_back),
    "azure": ("Azure", azure_takes_back),
}


@dataclass(frozen=True)
class Cloud:
    """The cloud that this machine belongs to, if it does."""

    name: str = ""  # a key of `CLOUDS`; "" for a machine of its owner's
    metadata: Metadata = field(default=Metadata(ADDRESS))

    @classmethod
    def find(cls, setting: str, dmi: Path = DMI) -> Cloud:
        """Find the cloud by `MANYHANDS_METADATA`, else by the firmware. Raises `ConfigError` if that is malformed."""
        if not setting:
            return cls(name_of_cloud(dmi))
        if setting == "none":
            return cls()
        name, _, address = setting.partition("@")
        if name not in CLOUDS or not address:
            raise ConfigError(
                f"`{VARIABLE}` ({setting}) must be none, or {', '.join(CLOUDS)} and an address: google@{ADDRESS}."
            )
        return cls(name, Metadata(address))

    def takes_back(self) -> str:
        """Return the reason why this machine must leave now; "" while it need not."""
        if not self.name:
            return ""
        title, asks = CLOUDS[self.name]
        return f"{title} takes this machine back" if asks(self.metadata) else ""


def name_of_cloud(dmi: Path = DMI) -> str:
    """Return the cloud that the firmware names, "" if it is none of those known here."""

    def says(name: str) -> str:
        try:
            return (dmi / name).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return ""

    if says("product_name") == "Google Compute Engine":  # "Google" alone makes laptops, too
        return "google"
    if says("sys_vendor") == "Amazon EC2":
        return "amazon"
    return "azure" if says("chassis_asset_tag") == AZURE_ASSET_TAG else ""


def _parsed(body: str | None) -> object:
    try:
        return json.loads(body or "null")
    except (ValueError, RecursionError):
        return None
