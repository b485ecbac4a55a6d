"""Shell commands that install or update this software, or add an optional part.

The software is on no package index: users install it from a checkout or a coordinator's wheel.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION = "manyhands-swarm"  # name of the distribution; the command and the packages have other names
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"  # file that pins exact versions of dependencies
INSTALLER = "peer/installer"  # path of the installer in the wheel
_ADDRESS = re.compile(
    r"https?://[A-Za-z0-9._~:/\[\]%-]{1,400}/software/manyhands_swarm-[0-9A-Za-z._+]{1,64}-py3-none-any\.whl#sha256=[0-9a-f]{64}"
)
IMAGE = "MANYHANDS_IMAGE"  # set in our container images, where installed packages do not persist
FOLDER = "manyhands"  # default folder of the environment


def install_commands(address: str, folder: str = FOLDER) -> tuple[str, str]:
    """Return two commands: download a wheel, then check its digest and run its installer.

    The wheel is stored in the environment's folder, so that no files remain elsewhere.
    """
    place, _, digest = address.partition("#sha256=")
    wheel = f"{folder}/{place.rpartition('/')[2]}"
    check = f"echo {shlex.quote(f'{digest}  {wheel}')} | sha256sum -c"
    run = f"python3 {shlex.quote(f'{wheel}/{INSTALLER}')}" + ("" if folder == FOLDER else f" {shlex.quote(folder)}")
    return f"curl -fsSL --create-dirs -o {shlex.quote(wheel)} {shlex.quote(place)}", f"{check} && {run}"


def image_command() -> str | None:
    """Return the command that rebuilds this container's image, or None outside our images."""
    image = os.environ.get(IMAGE)
    if not image:
        return None
    file = f"docker/{image.removeprefix('manyhands-')}.Dockerfile"
    build = f"git pull && docker build --pull -f {file} -t {image} . && docker stop CONTAINER && docker rm CONTAINER"
    return f"{build}, and start it again with the same volume"


def update_command(address: str) -> str | None:
    """Return the command that installs the run's version, or None for an invalid wheel address.

    In a container, the command rebuilds the image. It never changes the system's Python.
    """
    if command := image_command():
        return command
    folder = FOLDER if sys.prefix == sys.base_prefix else sys.prefix
    return " && ".join(install_commands(address, folder)) if _ADDRESS.fullmatch(address) else None


def how_to_add(extra: str) -> str:
    """Return a clause for error messages: the command that adds an optional part to this installation."""
    if os.environ.get(IMAGE):
        return f"build the image again with `{extra}` among its EXTRAS (`MANYHANDS_EXTRAS` of compose.yaml)"
    try:
        origin = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        origin = None
    return command_to_add(extra, origin)


def command_to_add(extra: str, direct_url_json: str | None) -> str:
    """Return a clause with the command that adds an optional part to the installation (PEP 610)."""
    origin = json.loads(direct_url_json or "{}")
    address = str(origin.get("url", ""))
    place = Path(url2pathname(urlsplit(address).path))
    if not address or (address.startswith("file:") and not place.exists()):
        return f"install this software again, with its extra `{extra}`"
    if origin.get("dir_info", {}).get("editable"):
        wanted = ["--editable", f"{place}[{extra}]"]
    else:
        digest = origin.get("archive_info", {}).get("hashes", {}).get("sha256")
        wanted = [f"{DISTRIBUTION}[{extra}] @ {address}" + (f"#sha256={digest}" if digest else "")]
    words = ["pip", "--python", sys.executable, "install", "-c", str(CONSTRAINTS), *wanted]
    return f"run {shlex.join(words)}"
