"""Preemption notices of cloud machines, read from the cloud's metadata service.

The service is queried only if the firmware or `MANYHANDS_METADATA` names a known cloud, so that
machines at home send no stray requests. See the providers' documentation of Compute Engine's
`instance/preempted`, EC2's `spot/instance-action` (IMDSv2), and Azure's scheduled events.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from auth.errors import ConfigError

VARIABLE = "MANYHANDS_METADATA"  # "none" or CLOUD@HOST:PORT
DMI = Path("/sys/class/dmi/id")
ADDRESS = "169.254.169.254:80"  # metadata service of all three clouds; a link-local address
AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"  # distinguishes Azure from other Hyper-V hosts
TIMEOUT_S = 2.0
MAX_BYTES = 1 << 16


@dataclass(frozen=True)
class Metadata:
    """A cloud's metadata service, which machines query about themselves."""

    address: str  # HOST:PORT

    def ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
        """Send a request without proxy or redirects; return the response body, or None on failure."""
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
    """Return whether this Google spot machine or TPU VM is being preempted (about 30 s notice)."""
    return metadata.ask("/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}) == "TRUE"


def amazon_takes_back(metadata: Metadata) -> bool:
    """Return whether this EC2 spot instance will be interrupted (two minutes' notice)."""
    token = metadata.ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    if token is None:
        return False
    found = _parsed(metadata.ask("/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}))
    return isinstance(found, dict) and found.get("action") in {"terminate", "stop", "hibernate"}


def azure_takes_back(metadata: Metadata) -> bool:
    """Return whether this Azure spot machine will be preempted (about 30 s notice)."""
    headers = {"Metadata": "true"}
    found = _parsed(metadata.ask("/metadata/scheduledevents?api-version=2020-07-01", headers))
    events = found.get("Events") if isinstance(found, dict) else None
    preempted = [e for e in events or () if isinstance(e, dict) and e.get("EventType") in {"Preempt", "Terminate"}]
    if not preempted:
        return False
    name = metadata.ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers)
    return any(name in (event.get("Resources") or ()) for event in preempted)  # an event may be for other machines


CLOUDS: dict[str, tuple[str, Callable[[Metadata], bool]]] = {
    "google": ("Google Cloud", google_takes_back),
    "amazon": ("Amazon EC2", amazon_takes_back),
    "azure": ("Azure", azure_takes_back),
}


@dataclass(frozen=True)
class Cloud:
    """The cloud that hosts this machine, if any."""

    name: str = ""  # a key of `CLOUDS`, or "" if unknown
    metadata: Metadata = field(default=Metadata(ADDRESS))

    @classmethod
    def find(cls, setting: str, dmi: Path = DMI) -> Cloud:
        """Return the cloud named by `setting` or, if empty, by the firmware. Raises `ConfigError`."""
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
        """Return the reason to leave if the cloud is about to preempt this machine, else ""."""
        if not self.name:
            return ""
        title, asks = CLOUDS[self.name]
        return f"{title} takes this machine back" if asks(self.metadata) else ""


def name_of_cloud(dmi: Path = DMI) -> str:
    """Return the `CLOUDS` key of the cloud named by the firmware, or "" if there is none."""

    def says(name: str) -> str:
        try:
            return (dmi / name).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return ""

    if says("product_name") == "Google Compute Engine":  # the vendor's name would match laptops, too
        return "google"
    if says("sys_vendor") == "Amazon EC2":
        return "amazon"
    return "azure" if says("chassis_asset_tag") == AZURE_ASSET_TAG else ""


def _parsed(body: str | None) -> object:
    try:
        return json.loads(body or "null")
    except (ValueError, RecursionError):
        return None
