"""An auxiliary peer in a real run: it averages with the trainer, trains nothing, and is credited for bytes."""

from __future__ import annotations

import time

from coordinator.ledger.reading import Contribution
from coordinator.ledger.sessions import online_sessions
from tests.support.commands import HOST, Site


def test_a_volunteer_assists_by_command(site: Site) -> None:
    """`manyhands assist` is counted by bytes, not by samples, and leaves in order."""
    serve = site.serve()
    options = ["--state-dir", str(site.base / "bob"), "--listen", f"/ip4/{HOST}/tcp/0", "--no-panel"]
    [invite] = site.membership.invite("bob", role="auxiliary")
    assistant = site.start("bob", "assist", str(site.run.join_link), *options, invite=invite)
    site.wait_until(
        "a device assists",
        lambda: any(stay.state == "assisting" for stay in online_sessions(site.database, time.time())),
    )
    # a line far slower than the other trainers' reduces nothing: bob's may be measured while this machine is busy
    trainer = site.join("ada", True, "--max-upload-rate", "2")
    given: dict[str, Contribution] = {}

    def both_are_counted() -> bool:
        given.update({row.member: row for row in site.ledger.contributions()})
        return {"ada", "bob"} <= given.keys() and given["ada"].samples > 0 and given["bob"].averaged_bytes > 0

    site.wait_until("both devices' samples are counted", both_are_counted)
    assert given["bob"].samples == 0
    for command in (assistant, trainer, serve):
        code, left = command.terminate()
        assert (code, left) == (0, [])
    log = (site.base / "bob.log").read_text()
    assert "Averaging for the others from global step" in log
    assert "Traceback" not in log
