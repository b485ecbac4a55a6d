"""Services of systemd's user manager: a command of ours that comes back with the machine.

`manyhands join --service`, `assist --service` and `manyhands coordinator serve --service` write a unit with the options
that they were given, and start it. systemd is asked by its own commands, `systemctl` and `loginctl`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from platformdirs import user_config_path

from auth.errors import ConfigError, ManyhandsError, StorageError
from auth.files import write_private

SERVICE, REMOVE_SERVICE = "service", "remove_service"  # the options' names, which no unit repeats
RESTART_AFTER_S = 60
ASKED_S = 30.0  # systemd answers at once, or does not run
_MARK = "# Written by manyhands for "
_USAGE, _SECOND_INTERRUPT = 2, 130  # exit codes that are nobody's error


@dataclass(frozen=True)
class UserService:
    """A command as a service. `directory`, the device's or the run's, is what tells it from another of its name."""

    name: str  # without .service
    description: str
    directory: Path
    arguments: Sequence[str]  # of `manyhands`
    stop_s: int  # that it may take to end in order
    never_again: Iterable[type[ManyhandsError]]  # errors that another start does not mend

    @property
    def unit(self) -> str:
        """The name by which systemd knows it."""
        return f"{self.name}.service"

    @property
    def path(self) -> Path:
        """The unit's file."""
        return user_config_path() / "systemd" / "user" / self.unit

    def text(self) -> str:
        """The unit."""
        codes = sorted({_USAGE, _SECOND_INTERRUPT, *(error.exit_code for error in self.never_again)})
        return f"""\
{_MARK}{self.directory}
# The same command writes it anew; changes of your own go into `systemctl --user edit {self.unit}`.
[Unit]
Description={_specifiers_escaped(self.description)}
# Where the user's manager knows this target; the program itself waits for the network, too.
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(map(_quoted, (*_program(), *self.arguments)))}
Restart=on-failure
RestartSec={RESTART_AFTER_S}
RestartPreventExitStatus={" ".join(map(str, codes))}
TimeoutStopSec={self.stop_s}
KillMode=mixed
OOMPolicy=continue
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""

    def install(self) -> list[str]:
        """Write the unit, have it started now and with the machine; returns sentences for the person.

        A unit that is there already and says the same goes on undisturbed.
        """
        require_manager()
        self._require_own()
        text = self.text().encode()
        changed = not self.path.exists() or self.path.read_bytes() != text
        if changed:
            self._write(text)
            _systemctl("daemon-reload")
        _systemctl("enable", self.unit)
        _systemctl("restart" if changed else "start", self.unit)
        told = [
            f"{self.unit} runs now and comes back with the machine ({self.path}).",
            f"Its log: journalctl --user --unit {self.unit} --follow",
        ]
        if not _lingers():
            told.append("It begins when you log in; for it to begin without that, type: loginctl enable-linger")
        return told

    def remove(self) -> list[str]:
        """Stop it, in order, and forget it; returns sentences for the person."""
        if not self.path.exists():
            return [f"There is no service {self.unit}."]
        require_manager()
        self._require_own()
        _systemctl("disable", "--now", self.unit)
        self.path.unlink(missing_ok=True)
        _systemctl("daemon-reload")
        return [f"{self.unit} was stopped and removed; {self.directory} stays as it is."]

    def _write(self, text: bytes) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"Cannot make the directory {self.path.parent} ({error.strerror}).") from error
        write_private(self.path, text)

    def _require_own(self) -> None:
        """Raise `ConfigError` if the unit of this name is another device's or run's, or not of ours."""
        if not self.path.exists():
            return
        first = self.path.read_text(errors="replace").partition("\n")[0]
        if first != f"{_MARK}{self.directory}":
            owner = first.removeprefix(_MARK) if first.startswith(_MARK) else "somebody else's program"
            raise ConfigError(
                f"{self.path} is the service of {owner}: remove that one first, by the command that made it and "
                "`--remove-service`."
            )


def require_manager() -> None:
    """Raise `ConfigError` where no systemd manages this user's services."""
    if shutil.which("systemctl") is None:
        raise ConfigError(
            "`--service` needs systemd, which this machine does not have (a container or a Mac, say): have whatever "
            "starts its programs start the same command without `--service`."
        )
    try:
        _systemctl("show-environment")
    except ConfigError as error:
        raise ConfigError(
            f"systemd does not manage your services here ({str(error).rstrip('.')}): log in to the machine by "
            "yourself, not by su or sudo; in a container have its restart policy start the same command without "
            "`--service`."
        ) from error


def kept_arguments(context: typer.Context, *left_out: str) -> list[str]:
    """The command that is running, with the options that it was given; those `left_out` are for this once."""
    words = context.command_path.split()[1:]
    given: list[str] = []
    for parameter in context.command.params:
        name, value = parameter.name or "", context.params.get(parameter.name or "")
        if name in (*left_out, SERVICE, REMOVE_SERVICE) or value is None:
            continue
        source = context.get_parameter_source(name)
        if source is None or source.name.startswith("DEFAULT"):
            continue
        if parameter.param_type_name == "argument":
            words.append(_absolute(value))
        elif isinstance(value, bool):
            given.append(parameter.opts[0] if value else parameter.secondary_opts[0])
        else:
            values = value if isinstance(value, (list, tuple)) else [value]
            given += [word for one in values for word in (parameter.opts[0], _absolute(one))]
    return [*words, *given]


def _absolute(value: object) -> str:
    return str(value.expanduser().absolute()) if isinstance(value, Path) else str(getattr(value, "value", value))


def _program() -> tuple[str, ...]:
    """This installation's `manyhands`, wherever the command was called from."""
    script = Path(sys.executable).absolute().with_name("manyhands")
    return (str(script),) if script.exists() else (str(Path(sys.executable).absolute()), "-m", "manyhands")


def _quoted(word: str) -> str:
    """A word of a unit's command line, which systemd reads as it is."""
    if not word.isprintable():
        raise ConfigError(f"{word!r:.200} cannot stand in a service's command: it has a character that is no text.")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{_specifiers_escaped(escaped)}"'


def _specifiers_escaped(text: str) -> str:
    return text.replace("%", "%%")


def _systemctl(*arguments: str) -> str:
    """Ask the user's manager; raises `ConfigError` with its own words."""
    return _ask("systemctl", "--user", *arguments)


def _lingers() -> bool:
    """Return whether the user's services begin without a login."""
    try:
        return _ask("loginctl", "show-user", "--property=Linger", "--value").strip() == "yes"
    except ConfigError:
        return False


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASKED_S, check=False)  # noqa: S603 - ours
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]} does not answer ({type(error).__name__}).") from error
    if done.returncode:
        reason = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
        raise ConfigError(f"`{' '.join(command)}` failed: {reason.rstrip('.')}.")
    return done.stdout
