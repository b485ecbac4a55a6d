"""Stages at the coordinator: is it the one that the link names, and do we understand each other."""

from __future__ import annotations

from auth.errors import ClockError, FingerprintError, LinkError, ManyhandsError, UnreachableError, VersionError
from peer.control_client import ControlClient
from peer.doctor.context import Context
from peer.doctor.description import RunDescription, read_description
from peer.doctor.findings import Outcome, failed, ok, skipped, warning
from peer.first_contact import check_clock, check_run, check_version, find_coordinator
from peer.protocol import MAX_CLOCK_SKEW_S, PROTOCOL_VERSION

NOTABLE_SKEW_S = MAX_CLOCK_SKEW_S / 4
ASK_OPERATOR = "Ask the operator for the current link, and whether the coordinator is running."


async def check_tls(context: Context) -> Outcome:
    """The server's certificate has the link's fingerprint."""
    try:
        links = dict.fromkeys(context.addresses[address] for address in context.reached)
        context.answering, context.certificate = await find_coordinator([*links])
    except FingerprintError:
        return failed(
            "The server's certificate is not the one that the link names.",
            "Ask the operator for the current link and do not join by this one; a proxy that reads TLS looks the same.",
        )
    except UnreachableError as error:
        return failed(str(error), ASK_OPERATOR)
    return ok("The server's certificate is the one that the link names.")


async def check_protocol(context: Context) -> Outcome:
    """Coordinator and program speak the same version of the protocol."""
    context.client = client = ControlClient(context.link, context.certificate)
    context.resources.push_async_callback(client.close)
    try:
        greeting = await client.greet()
        check_version(greeting)
    except VersionError as error:
        return failed(str(error), "Install the version of manyhands that the operator names.")
    except ManyhandsError as error:
        return failed(str(error), ASK_OPERATOR)
    context.greeting = greeting
    return ok(f"Both speak version {PROTOCOL_VERSION} of the protocol.", version=PROTOCOL_VERSION)


async def check_run_name(context: Context) -> Outcome:
    """The coordinator serves the run of the link."""
    assert context.greeting is not None
    try:
        check_run(context.link, context.greeting)
    except LinkError as error:
        return failed(str(error), ASK_OPERATOR)
    return ok(f"The coordinator serves `{context.link.run}`.", run=context.link.run)


async def check_time(context: Context) -> Outcome:
    """The two clocks agree well enough for tokens to be valid."""
    assert context.greeting is not None
    now = context.clock()
    skew_s = now - context.greeting.server_time
    data, remedy = {"skew_s": round(skew_s, 1)}, "Set this machine's clock, and let it be kept right (NTP)."
    try:
        check_clock(context.greeting, now)
    except ClockError as error:
        return failed(str(error), remedy, **data)
    found = f"The clocks differ by {abs(skew_s):.0f} s."
    return warning(found, remedy, **data) if abs(skew_s) > NOTABLE_SKEW_S else ok(found, **data)


async def check_requirements(context: Context) -> Outcome:
    """What the run asks of a machine; later stages use it."""
    assert context.client is not None
    try:
        context.description = description = read_description(await context.client.describe())
    except ManyhandsError as error:  # an older coordinator, or one that was asked too often
        return skipped(str(error))
    return ok(describe_run(description), **_facts(description))


def describe_run(description: RunDescription) -> str:
    """A run in one sentence."""
    config = description.config
    model, batch = config.model, config.averaging.target_batch_size
    return (
        f"It trains {model.architecture} ({model.num_hidden_layers} layers of {model.hidden_size}); "
        f"a step takes {batch:,} samples of {config.data.sequence_length} tokens."
    )


def _facts(description: RunDescription) -> dict[str, object]:
    config = description.config
    return {
        "architecture": config.model.architecture,
        "hidden_size": config.model.hidden_size,
        "num_hidden_layers": config.model.num_hidden_layers,
        "sequence_length": config.data.sequence_length,
        "target_batch_size": config.averaging.target_batch_size,
        "swarm_addresses": list(description.swarm_addresses),
        "observed_address": str(description.observed_address),
        "swarm_samples_per_second": description.samples_per_second,
    }
