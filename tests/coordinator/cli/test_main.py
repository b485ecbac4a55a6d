"""The operator's commands, each on a real run directory."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
import segno
import yaml

from auth.errors import ConfigError
from auth.join_link import JoinLink
from auth.keys import DeviceKey
from coordinator.checkpoints.validations import record_validation
from coordinator.cli import members
from coordinator.context.open_run import open_run
from coordinator.ledger.keeper_status import write_swarm_status
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.members.quarantine import SuspicionReport, hear
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Policy
from coordinator.run.software import own_software
from coordinator.statistics.alarms import MODEL_KINDS, SPLIT, Alarm, write_alarms
from coordinator.store.ledger_models import SteeringAct
from peer.config.recipes import load_recipe
from peer.data.tokenization.tokenizers import load_tokenizer
from peer.runtime.software import install_commands
from tests.support.ledgers import deliver
from tests.support.operator_commands import call
from tests.support.postgres import PASSWORD, new_database
from tests.support.receipts import keeper_confirms
from tests.support.reports import report
from tests.support.served_page import validation_row
from tests.support.small_run import TARGET_BATCH_SIZE, make_small_run, small_config
from tests.support.web_files import serve_files

NOW = 1_800_000_000.0


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return make_small_run(tmp_path).path


def join_and_report(run_dir: Path, key_path: Path, name: str, samples: int) -> None:
    """A member with a device that has done one global step."""
    key = DeviceKey.load_or_create(key_path)
    with open_run(run_dir, clock=lambda: NOW) as run:
        pseudonym = key.receipt_key(run.directory.config.run.name).pseudonym
        grant = run.membership.join(key.public_key, run.membership.invite(name)[0], receipt_key=pseudonym)
        assert deliver(run.ledger, grant.device_id, None, 1, report(1, samples, 8.5), NOW).accepted
        keeper_confirms(run.database, run.membership, run.ledger, run.directory.config.run.name, 1)


def test_init_makes_a_run_that_is_ready_to_serve(tmp_path: Path) -> None:
    """`init` writes configuration, settings, keys and a trained tokenizer, and prints the link that names them."""
    run_file = tmp_path / "run.yaml"
    run_file.write_text(small_config(tmp_path).to_yaml())
    result = call("init", tmp_path / "new", "--config", run_file, "--host", "example.org", "--web-port", 8181)
    run = RunDirectory.open(tmp_path / "new")
    assert run.config.run.name == "small"
    assert (run.settings.public_host, run.settings.web_port) == ("example.org", 8181)
    assert str(run.join_link) in result.output
    assert "http://example.org:8181/" in result.output
    assert load_tokenizer(run.tokenizer_dir).get_vocab_size() > 50
    assert str(tmp_path / "new") in result.output  # the next command can be pasted


def folder_of_the_hub(path: Path, config_name: str, documents: list[str]) -> None:
    """A folder that `datasets` reads as it reads a data set of the hub by this name."""
    path.mkdir(parents=True)
    (path / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    configs = [{"config_name": config_name, "data_files": "train.jsonl"}, {"config_name": "xx", "data_files": "no"}]
    (path / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")


def test_init_makes_a_run_by_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer is trained on the Wikipedia and the web pages of the recipe's language; `--exact` holds."""
    folder_of_the_hub(tmp_path / "wikimedia" / "wikipedia", "20231101.fi", ["Helsinki on Suomen kaupunki."] * 50)
    folder_of_the_hub(tmp_path / "allenai" / "c4", "fi", ["Turku sijaitsee rannikolla."] * 50)
    monkeypatch.chdir(tmp_path)
    call("init", "new", "--recipe", "modernbert-small", "--language", "fi", "--exact")
    run = RunDirectory.open(tmp_path / "new")
    assert run.config == load_recipe("modernbert-small", "fi", is_exact=True)
    vocabulary = load_tokenizer(run.tokenizer_dir).get_vocab()
    assert {"\u0120kaupunki", "\u0120rannikolla"} <= vocabulary.keys()  # a word of each source, with its space


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--recipe", "roberta-base", "--config", "run.yaml"], "`--recipe` .* and `--config` .* exclude each other"),
        (["--recipe", "roberta-large"], "no recipe `roberta-large`"),
        (["--recipe", "roberta-base", "--language", "tlh"], r"`--language` \(tlh\)"),
        (["--exact"], "`--exact` is for a recipe.*`averaging.delay: false`"),
        (["--language", "fi"], "add `--recipe`"),
        (["--language", "fi", "--config", "run.yaml"], "`run.language`"),
    ],
)
def test_init_refuses_a_recipe_that_there_is_not(tmp_path: Path, options: list[str], words: str) -> None:
    """Options that contradict each other, an unknown recipe and an unknown language are one sentence, and no run."""
    with pytest.raises(ConfigError, match=words):
        call("init", tmp_path / "new", *options)
    assert list(tmp_path.iterdir()) == []


def test_init_makes_a_run_on_postgresql(tmp_path: Path) -> None:
    """The database that a private file names is made this run's; its URL stands in settings.yaml alone."""
    run_file, url_file = tmp_path / "run.yaml", tmp_path / "url"
    run_file.write_text(small_config(tmp_path).to_yaml())
    with new_database("template1") as address:
        url_file.write_text(address)
        url_file.chmod(0o600)
        result = call("init", tmp_path / "new", "--config", run_file, "--database-url-file", url_file)
        assert PASSWORD not in result.output
        assert RunDirectory.open(tmp_path / "new").settings.database_url == address
        assert not (tmp_path / "new" / "manyhands.db").exists()
        assert call("members", tmp_path / "new").exit_code == 0


def test_init_says_when_only_this_machine_can_join(tmp_path: Path) -> None:
    """Without --host the operator is told that nobody else can join."""
    run_file = tmp_path / "run.yaml"
    run_file.write_text(small_config(tmp_path).to_yaml())
    assert "--host" in call("init", tmp_path / "new", "--config", run_file).output


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ({"runn": {}}, [], "runn"),
        ({"data": {"sources": [{"kind": "text", "path": "/does/not/exist"}]}}, [], "/does/not/exist"),
        ({}, ["--web-port", "7443"], "7443"),
        ({}, ["--swarm-port", "0"], "swarm_port"),
        ({}, ["--host", "two words"], "public_host"),
    ],
)
def test_init_leaves_nothing_after_a_mistake(
    tmp_path: Path, content: dict[str, object], options: list[str], words: str
) -> None:
    """A wrong run file or option is one sentence that names it, and no directory is made."""
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=words):
        call("init", tmp_path / "new", "--config", run_file, *options)
    assert sorted(tmp_path.iterdir()) == [run_file]


def test_init_refuses_a_directory_with_a_run(run_dir: Path) -> None:
    """A run is never overwritten."""
    link = RunDirectory.open(run_dir).join_link
    with pytest.raises(ConfigError, match="not empty"):
        call("init", run_dir)
    assert RunDirectory.open(run_dir).join_link == link


def test_invite_prints_codes_that_admit_once_each(run_dir: Path, tmp_path: Path) -> None:
    """Each printed code admits one device under the invited name, and the printed command carries link and code."""
    invited = json.loads(call("invite", run_dir, "ada", "--devices", 2, "--json").output)
    codes = [entry["code"] for entry in invited["invites"]]
    assert len(set(codes)) == 2
    with open_run(run_dir) as run:
        for number, code in enumerate(codes):
            key = DeviceKey.load_or_create(tmp_path / f"{number}.key")
            assert run.membership.join(key.public_key, code).member == "ada"
        link = str(run.directory.join_link)
    assert JoinLink.parse(invited["join_link"]) == JoinLink.parse(link)
    assert invited["invites"][0]["command"] == f"manyhands join '{link}' --invite {codes[0]}"


def test_no_code_is_made_that_nobody_would_see(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the software cannot be packed: a code is shown once and stored nowhere."""

    def refuse() -> None:
        raise ConfigError("It is not installed.")

    monkeypatch.setattr(members, "own_software", refuse)
    with pytest.raises(ConfigError):
        call("invite", run_dir, "ada")
    with open_run(run_dir) as run:
        assert run.membership.members() == []


@pytest.mark.parametrize(
    ("link", "digest", "is_warned"), [("own", "0" * 64, True), ("own", "", False), ("x", "0", False)]
)
def test_an_invitation_to_software_that_is_not_served_is_warned_of(
    run_dir: Path, link: str, digest: str, is_warned: bool
) -> None:
    """After an update without a restart the line's digest would be refused; another run on the port is no matter."""
    served = f"http://x/software/some.whl#sha256={digest or own_software().sha256}"
    with serve_files() as web:
        settings = yaml.safe_load((run_dir / "settings.yaml").read_text())
        settings |= {"web_port": int(web.address.rpartition(":")[2]), "bind_host": "127.0.0.1"}
        (run_dir / "settings.yaml").write_text(yaml.safe_dump(settings))
        own = str(RunDirectory.open(run_dir).join_link)
        told = {"join_link": own if link == "own" else link, "software": {"wheel": served}}
        web.files["api/v1/joining"] = json.dumps(told).encode()
        result = call("invite", run_dir, "ada")
    assert ("Restart it" in result.stderr) == is_warned
    assert "Restart it" not in result.stdout


def test_invite_for_people_shows_the_same_command(run_dir: Path) -> None:
    """Without --json each line to copy stands by itself; the last is the command, which compose.yaml's demo takes."""
    lines = call("invite", run_dir, "ada").output.splitlines()
    software = lines[0].removeprefix("The run's software, which a notebook asks for: ")
    code = lines[1].removeprefix("Invite code: ")
    assert software == own_software().address(RunDirectory.open(run_dir).settings.web_address)
    assert lines[-1].startswith("manyhands join 'manyhands://")
    assert lines[-1].endswith(f" --invite {code}")
    assert " && ".join((*install_commands(software), f"manyhands/bin/{lines[-1]}")) in lines


def test_the_page_of_an_invitation_can_be_drawn(run_dir: Path) -> None:
    """As a QR code of half blocks, without a terminal's colors where none is; the command stays the last line."""
    lines = call("invite", run_dir, "ada", "--qr").output.splitlines()
    address = next(line for line in lines if line.startswith("For the person to open: ")).partition(": ")[2]
    drawn = io.StringIO()
    segno.make(address, micro=False).terminal(drawn, compact=True)
    assert drawn.getvalue() in "\n".join(lines)
    assert lines[-1].startswith("manyhands join 'manyhands://")


def test_members_lists_what_everybody_gave(run_dir: Path, tmp_path: Path) -> None:
    """Names, devices, open invites and samples, for scripts and for people."""
    join_and_report(run_dir, tmp_path / "key", "ada", 20)
    call("invite", run_dir, "[red]bob[/red]")
    (ada, bob) = sorted(json.loads(call("members", run_dir, "--json").output), key=lambda row: -row["samples"])
    assert (ada["name"], ada["devices"], ada["samples"], ada["open_invites"]) == ("ada", 1, 20, 0)
    assert (bob["devices"], bob["samples"], bob["open_invites"]) == (0, 0, 1)
    assert "[red]bob[/red]" in call("members", run_dir).output  # shown, not read as markup


def test_public_names_are_told_to_scripts(run_dir: Path) -> None:
    """`display-name`, `hide-name` and `members` say what the public sees of a member."""
    call("invite", run_dir, "ada")
    shown = [
        json.loads(call(*command, "--json").output)
        for command in (
            ("display-name", run_dir, "ada", "Owl"),
            ("hide-name", run_dir, "ada"),
            ("hide-name", run_dir, "ada", "--show"),
            ("display-name", run_dir, "ada"),
        )
    ]
    names = ("Owl", "Anonymous 1", "Owl", "ada")
    assert shown == [{"member": "ada", "display_name": name} for name in names]
    call("display-name", run_dir, "ada", "Owl")
    [ada] = json.loads(call("members", run_dir, "--json").output)
    assert ada["display_name"] == "Owl"


def test_refusals_are_listed_with_why(run_dir: Path) -> None:
    """The newest first, for people and for scripts."""
    with open_run(run_dir, clock=lambda: NOW) as run:
        for reason in ("[red]wrong[/red] code", "another"):
            run.membership.record_refusal("join", ConfigError(reason))
    assert json.loads(call("refusals", run_dir, "--limit", "1", "--json").output) == [
        {"at": NOW, "kind": "join", "code": "config", "reason": "another", "member": "", "device_id": ""}
    ]
    assert "[red]wrong[/red] code" in call("refusals", run_dir).output


def test_a_device_is_quarantined_and_released(run_dir: Path, tmp_path: Path) -> None:
    """`quarantine` imposes, lists and lifts; `devices` shows it, and every act is on record."""
    join_and_report(run_dir, tmp_path / "key", "ada", 20)
    [device] = json.loads(call("devices", run_dir, "ada", "--json").output)
    device_id, short_id = device["device_id"], device["device_id"][:8]
    imposed = call("quarantine", run_dir, "impose", "ada", "--device", short_id, "--reason", "overheats", "--json")
    assert json.loads(imposed.output) == {"device_quarantined": device_id}
    [row] = json.loads(call("quarantine", run_dir, "list", "--json").output)
    assert (row["device_id"], row["member"], row["reason"], row["words"]) == (device_id, "ada", "overheats", [])
    with open_run(run_dir) as run:
        other = run.membership.join(
            DeviceKey.load_or_create(tmp_path / "other").public_key, run.membership.invite("bob")[0]
        )
        peer_id = DeviceKey.load_or_create(tmp_path / "key").peer_id
        hear(run.database, Policy(), SuspicionReport(peer_id, "step", 7, "claims step 99"), other.device_id, NOW)
    listed = call("quarantine", run_dir).output
    assert short_id in listed
    assert "overheats" in listed
    assert "claims step 99" in listed
    assert "in quarantine" in " ".join(call("devices", run_dir).output.split())
    assert short_id in call("quarantine", run_dir, "lift", "ada").output.replace("\n", "")
    assert json.loads(call("quarantine", run_dir, "--json").output) == []
    with pytest.raises(ConfigError, match="needs the member's name"):
        call("quarantine", run_dir, "lift")
    acts = [entry["act"] for entry in json.loads(call("audit", run_dir, "--json").output)]
    assert acts == ["lift-quarantine", "quarantine"]
    revoked = json.loads(call("revoke", run_dir, "ada", "--reason", "sends garbage", "--json").output)
    assert revoked == {"member": "ada", "devices_revoked": 1}


def test_one_device_is_listed_and_revoked(run_dir: Path, tmp_path: Path) -> None:
    """`devices` shows the id that `revoke --device` takes; the member stays, and both acts are on record."""
    join_and_report(run_dir, tmp_path / "key", "ada", 20)
    [device] = json.loads(call("devices", run_dir, "ada", "--json").output)
    short_id = device["device_id"][:8]
    assert (device["member"], device["role"], device["revoked_at"]) == ("ada", "trainer", None)
    assert short_id in call("devices", run_dir).output
    with pytest.raises(ConfigError, match="No member is called"):
        call("devices", run_dir, "eve")
    with pytest.raises(ConfigError, match="too short"):
        call("revoke", run_dir, "ada", "--device", "")  # a script's empty variable is not the whole member
    result = json.loads(call("revoke", run_dir, "ada", "--device", short_id, "--reason", "stolen", "--json").output)
    assert result == {"member": "ada", "device_revoked": device["device_id"]}
    assert "stolen" in call("devices", run_dir, "ada").output
    assert "ada may bring another" in call("revoke", run_dir, "ada", "--device", short_id).output
    [member] = json.loads(call("members", run_dir, "--json").output)
    assert member["revoked_at"] is None
    acts = [(row["act"], row["subject"], row["detail"]) for row in json.loads(call("audit", run_dir, "--json").output)]
    assert acts[1] == ("revoke-device", "ada", f"{short_id} stolen")
    assert acts[2][2].startswith("refused: The device id")


def test_status_shows_progress_and_checkpoint(run_dir: Path, tmp_path: Path) -> None:
    """Step, loss, what the keeper sees, and the newest checkpoint's path."""
    join_and_report(run_dir, tmp_path / "key", "ada", 20)
    with open_run(run_dir) as run:
        write_swarm_status(
            run.database,
            step=1,
            samples_accumulated=7,
            target_batch_size=TARGET_BATCH_SIZE,
            peers=2,
            samples_per_second=12.5,
            eta_s=2.0,
            addresses=(),
            now=NOW,
        )
        record_checkpoint(run.database, step=1, size_bytes=5, manifest_sha256="0" * 64, now=NOW)
        for step, code in enumerate(("8bit-blockwise", "none")):
            act = {"act": "change", "step": step, "compression": code, "learning_rate_scale": 0.5}
            with run.database.begin() as session:
                session.add(SteeringAct(at=NOW, actor="os:tester", text="", **act))
    status = json.loads(call("status", run_dir, "--json").output)
    expected = {
        "run": "small",
        "step": 1,
        "phase": f"1 of 1, from step 0 on: 32 tokens, {TARGET_BATCH_SIZE} samples a step",
        "loss": 8.5,
        "samples_accumulated": 7,
        "target_batch_size": TARGET_BATCH_SIZE,
        "peers": 2,
        "samples_per_second": 12.5,
        "learning_rate_scale": 0.5,
        "compression": "none",
        "powersgd_rank": 0,
    }
    assert expected.items() <= status.items()
    assert status["checkpoint"] == f"{run_dir}/checkpoints/step-00000001"
    assert status["compression_choice"] is None
    call("change", run_dir, "--compression", "auto")
    assert json.loads(call("status", run_dir, "--json").output)["compression_choice"] == "not made yet"
    assert status["validation_loss"] is None
    with open_run(run_dir) as run:
        for step in (1, 2):
            record_validation(run.database, validation_row(step, mlm_loss=8.0 - step))
    status = json.loads(call("status", run_dir, "--json").output)
    measures = [status[f"validation_{name}"] for name in ("step", "loss", "accuracy", "sop_accuracy")]
    assert measures == [2, 6.5, 0.125, 0.75]
    assert status["validation_perplexity"] == pytest.approx(math.exp(6.0))
    assert f"{run_dir}/checkpoints/step-00000001" in call("status", run_dir).output


def test_status_of_a_new_run_has_no_numbers_yet(run_dir: Path) -> None:
    """Before anything happened, unknown things are unknown, not zero."""
    status = json.loads(call("status", run_dir, "--json").output)
    assert status["step"] == 0
    assert status["loss"] is None
    assert status["peers"] is None
    assert status["online"] == []
    assert status["alarms"] == []


def test_status_names_alarms_and_the_checkpoint_to_return_to(run_dir: Path) -> None:
    """Each with its command, for people and for scripts; an alarm about devices has none."""
    alarm = Alarm("loss_diverges", 45, "the loss is 6.55, and was 6.23 at step 42")
    split = Alarm(SPLIT, 50, "1 of 2 devices train without seeing the keeper (ada)")
    with open_run(run_dir) as run:
        for step in (40, 50):
            record_checkpoint(run.database, step=step, size_bytes=5, manifest_sha256="0" * 64, now=NOW)
        run.database.transact(lambda session: write_alarms(session, [*MODEL_KINDS, SPLIT], [alarm, split], NOW))
    advice = f"Return to step 40: manyhands coordinator rewind {run_dir} 40"
    lines = call("status", run_dir).output.splitlines()
    assert f"Alarm loss_diverges since step 45: {alarm.detail}. {advice}" in lines
    assert f"Alarm swarm_split since step 50: {split.detail}." in lines
    found = json.loads(call("status", run_dir, "--json").output)["alarms"]
    assert [(row["kind"], row["return_to_step"], row["advice"]) for row in found] == [
        ("loss_diverges", 40, advice),
        ("swarm_split", None, None),
    ]


def test_serve_cannot_leave_both_parts_out(run_dir: Path) -> None:
    """--service-only and --keeper-only together are a mistake, not an idle process."""
    with pytest.raises(ConfigError, match="exclude each other"):
        call("serve", run_dir, "--service-only", "--keeper-only")
