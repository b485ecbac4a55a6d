"""`manyhands coordinator doctor`: checks of a run's directory and machine, in stages.

The checks are read-only, so they may run while the run is served. `peer.doctor` is for volunteers.
"""

from __future__ import annotations

import ctypes
import ipaddress
import shutil
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from cryptography import x509
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import InstrumentedAttribute

from auth.errors import ConfigError, FingerprintError, UnreachableError
from coordinator.run.authority_key import handover_to
from coordinator.run.database_owner import require_database
from coordinator.run.directory import RunDirectory
from coordinator.run.ports import WILDCARDS, Listener, is_free
from coordinator.run.secrets import exposed
from coordinator.service.descriptors import descriptors_needed, most_descriptors
from coordinator.service.preparation import chosen_parts, listeners
from coordinator.store.engine import Database, open_engine, own_words, trouble
from coordinator.store.models import Checkpoint, DeviceSession
from coordinator.store.service_models import SwarmFigures
from peer.control.client import find_coordinator
from peer.data.prepare import order_sample, single_sentences
from peer.doctor.stages import CheckResult, Conclusion, Stage, failed, ok, skipped, warning

GIB = 1 << 30
LEAST_DISK_BYTES = GIB
NOTABLE_FUTURE_S = 60.0
TIME_ERROR = 5  # return value of adjtimex(2) for an unsynchronized clock


def stages(now: float) -> tuple[Stage[RunDirectory], ...]:
    """Return the stages of checks, in order; `now` is the Unix time in seconds."""
    return (
        Stage("configuration", check_configuration),
        Stage("permissions", check_permissions),
        Stage("keys", partial(check_keys, now=now)),
        Stage("database", check_database),
        Stage("ports", check_ports),
        Stage("clock", partial(check_clock, now=now)),
        Stage("disk", check_disk),
        Stage("descriptors", check_descriptors),
        Stage("address", check_address),
        Stage("lines", check_lines),
        Stage("sentences", check_sentences),
    )


def conclude(_: RunDirectory) -> Conclusion:
    """Return the conclusion after all stages have passed."""
    return Conclusion(True, "Nothing stands in the way of serving this run.")


def check_configuration(directory: RunDirectory) -> CheckResult:
    """Check that the run file and the settings can be read."""
    settings = directory.settings
    local = [address for address in settings.trusted_proxies if ipaddress.ip_address(address).is_loopback]
    if local:
        return warning(
            f"`trusted_proxies` names this machine ({', '.join(local)}): its users can claim any address.",
            "Remove the addresses from settings.yaml unless a proxy of yours on this machine serves the dashboard.",
        )
    return ok(f"`{directory.config.run.name}` is served on {settings.bind_host}.", run=directory.config.run.name)


def check_permissions(directory: RunDirectory) -> CheckResult:
    """Check that only the owner can read the secrets."""
    complaints = list(exposed(directory))
    if complaints:
        found, _, remedy = complaints[0].partition(": ")
        return failed(f"{found}.", f"{remedy[:1].upper()}{remedy[1:]}", log=complaints[1:])
    return ok("Keys and settings are their owner's alone.")


def check_keys(directory: RunDirectory, now: float) -> CheckResult:
    """Check the authority's key, and that the certificate is valid now and matches the TLS key."""
    rotated = _rotation(directory, now)
    backup = "Restore `keys` from the backup; new ones would make another run of it."
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(directory.tls_cert_path, directory.tls_key_path)
        certificate = x509.load_pem_x509_certificate(directory.tls_cert_path.read_bytes())
    except (OSError, ValueError) as error:  # `ssl.SSLError` is an OSError
        return failed(f"Certificate and TLS key cannot be used together ({error}).", backup)
    moment = datetime.fromtimestamp(now, timezone.utc)
    if not certificate.not_valid_before_utc <= moment <= certificate.not_valid_after_utc:
        return failed("The certificate is not valid today.", "Set this machine's clock right.")
    return ok(f"Authority key, TLS key and certificate are good.{rotated}", fingerprint=directory.join_link.fingerprint)


def _rotation(directory: RunDirectory, now: float) -> str:
    """Describe the last rotation of the authority's key, if any, and the old key's validity."""
    handover = handover_to(directory.authority, directory.config.run.name)
    if handover is None:
        return ""
    replaced = f" The authority's key was replaced {(now - handover.issued_at) / 3600:.1f} hours ago"
    remaining_h = (handover.until - now) / 3600
    return f"{replaced}; the old one counts for {remaining_h:.1f} hours more." if remaining_h > 0 else f"{replaced}."


def check_database(directory: RunDirectory) -> CheckResult:
    """Check that the database is reachable, and that a SQLite file is not corrupt."""
    engine = open_engine(directory.database_url)
    try:
        require_database(engine, directory)
        with engine.connect() as connection:
            sqlite = engine.dialect.name == "sqlite"
            verdict = str(connection.scalar(text("PRAGMA quick_check(1)" if sqlite else "SELECT 'ok'")))
    except DBAPIError as error:
        return failed(str(trouble(error) or own_words(error)))
    finally:
        engine.dispose()
    if verdict != "ok":
        return failed(f"The database is damaged ({verdict:.200}).", "Restore it from the backup.")
    return ok("The database answers.", kind=engine.dialect.name)


async def check_ports(directory: RunDirectory) -> CheckResult:
    """Check that all three ports are free or in use by this run's own service."""
    needed = listeners(directory, chosen_parts(directory.config, service_only=False, keeper_only=False))
    taken = [listener for listener in needed if not is_free(listener.host, listener.port)]
    if not taken:
        return ok("All three ports are free.", served=False)
    if not await _is_this_run(directory, "127.0.0.1", directory.settings.bind_host):
        remedy = "Stop the programs that use them, or change the ports in settings.yaml."
        return failed(f"Taken: {_names(taken)}.", remedy)
    free = [listener for listener in needed if listener not in taken]
    if free:
        found = f"This run is being served, but nothing listens on {_names(free)}."
        remedy = (
            "If that part was started just now, look again in a minute; else the log of `serve` says why it is away."
        )
        return warning(found, remedy, served=True)
    return ok("This run is being served on its ports.", served=True)


def _names(ports: Sequence[Listener]) -> str:
    return ", ".join(f"{listener.port} ({listener.purpose})" for listener in ports)


def check_clock(directory: RunDirectory, now: float) -> CheckResult:
    """Check that the clock has not gone backwards, and that NTP synchronizes it."""
    newest = _highest(directory, DeviceSession.last_seen_at) or 0.0
    remedy = "Set this machine's clock, and let it be kept right (NTP): tokens live by it."
    if newest - now > NOTABLE_FUTURE_S:
        return failed(f"The database knows of a time {newest - now:.0f} s ahead of this clock.", remedy)
    kept = _clock_is_kept()
    if kept is None:
        return skipped("This system does not tell whether its clock is kept right.")
    return ok("The clock is kept right.") if kept else warning("Nothing keeps this machine's clock right.", remedy)


def check_disk(directory: RunDirectory) -> CheckResult:
    """Check that the disk has room for the next checkpoints."""
    free = shutil.disk_usage(directory.path).free
    needed = max(LEAST_DISK_BYTES, 2 * round(_highest(directory, Checkpoint.size_bytes) or 0))
    found = f"{free / GIB:.1f} GiB are free."
    if free < needed:
        return failed(found, f"Make room for {needed / GIB:.1f} GiB: two checkpoints, or 1 GiB.", free_bytes=free)
    return ok(found, free_bytes=free)


def check_descriptors(directory: RunDirectory) -> CheckResult:
    """Check that the limit on open files covers the service's maximum number of connections."""
    allowed, needed = most_descriptors(), descriptors_needed(directory.settings)
    found = f"The service may open {allowed} files and connections."
    if 0 <= allowed < needed:
        return warning(found, f"Allow {needed} (`ulimit -Hn`), or a flood of connections shuts others out.")
    return ok(found, allowed=allowed)


async def check_address(directory: RunDirectory) -> CheckResult:
    """Check that the public address can be resolved and, if the run is served, that it responds."""
    host = directory.settings.public_host
    try:
        found = {
            str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        }
    except OSError as error:
        return failed(f"`public_host` ({host}) cannot be resolved ({error}).", "Correct it, or its DNS entry.")
    addresses = sorted(found)
    places = [ipaddress.ip_address(address) for address in addresses]
    remedy = "Set `public_host` in settings.yaml to what volunteers reach, and hand out the new link."
    if all(place.is_loopback for place in places):
        return warning(f"`public_host` ({host}) is this machine: nobody else can join.", remedy, addresses=addresses)
    served = not is_free(directory.settings.bind_host, directory.settings.control_port)
    if served and not await _is_this_run(directory, host):
        return failed(
            f"This run does not answer at {host}.", "Open its ports in firewall and router.", addresses=addresses
        )
    for fallback in directory.join_link.others:
        try:
            socket.getaddrinfo(*fallback, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            return warning(
                f"The join link's address {fallback} cannot be resolved ({error}).",
                "Correct `fallback_addresses` in settings.yaml, or the DNS entry.",
                addresses=addresses,
            )
    if all(place.is_private for place in places):
        return warning(f"`public_host` ({host}) is reached from its own network only.", remedy, addresses=addresses)
    return ok(f"`public_host` is {host}.", addresses=addresses, answers=served or None)


def check_lines(directory: RunDirectory) -> CheckResult:
    """Check that the peers' connections in the latest round are fast enough for averaging."""
    missing = _highest(directory, SwarmFigures.missing_auxiliaries)
    if missing is None:
        return skipped("No round of averaging has shown the peers' lines yet.")
    if missing == 0:
        return ok("Auxiliary peers would not shorten the rounds.", missing_auxiliaries=0)
    found = f"{missing:.0f} auxiliary {'peers' if missing > 1 else 'peer'} more would shorten the rounds notably."
    remedy = "Run `manyhands assist` on machines with an open port and lines of 100 Mbit/s, such as rented servers."
    return warning(found, remedy, missing_auxiliaries=round(missing))


def check_sentences(directory: RunDirectory) -> CheckResult:
    """Check that documents contain several sentences, as a sentence-order objective requires."""
    try:
        single = single_sentences(directory.config, order_sample(directory.config))
    except (ConfigError, UnreachableError) as error:  # the coordinator itself need not have access to the sources
        return skipped(str(error))
    if single is None:
        return skipped("The run's objective and sources need no look at their sentences.")
    if single.remedy:
        return warning(single.found, single.remedy, single_sentences=single.share)
    return ok(single.found, single_sentences=single.share)


async def _is_this_run(directory: RunDirectory, *hosts: str) -> bool:
    """Return whether one of these hosts presents this run's certificate on the control port."""
    links = [replace(directory.join_link, host=host, others=()) for host in hosts if host not in WILDCARDS]
    with suppress(FingerprintError, UnreachableError):
        await find_coordinator(links)
        return True
    return False


def _highest(directory: RunDirectory, column: InstrumentedAttribute[Any]) -> float | None:
    """Return the largest value in a database column, or None if the table is empty or missing."""
    engine = open_engine(directory.database_url)
    try:
        with Database(engine)() as session:
            found = session.scalar(select(func.max(column)))
            return None if found is None else float(found)
    except SQLAlchemyError:
        return None
    finally:
        engine.dispose()


def _clock_is_kept() -> bool | None:
    """Return whether the Linux kernel reports a clock synchronized by NTP; None on other systems."""
    try:
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))  # all zero: read the clock only
    except (AttributeError, OSError):
        return None
    return None if state < 0 else state != TIME_ERROR
