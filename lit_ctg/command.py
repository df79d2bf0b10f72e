"""The one grammar of the command line: ``key=value`` words, checked against what a command takes.

``lit-ctg train|evaluate|generate|data`` pass their words to Hydra, of whose grammar this is a subset; the other
commands take the settings that they declare here, from which their help and the shell's completion are also made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lit_ctg.errors import UserError, did_you_mean

# accepted by every command, used only by the command line itself
_GLOBAL = ("debug",)


@dataclass(frozen=True)
class Setting:
    """One ``name=value`` of a command.

    Attributes:
        name, meaning: of the setting, one line.
        choices: returns the accepted words; None: any word.
        required: the command needs it.
    """

    name: str
    meaning: str
    choices: Callable[[], Sequence[str]] | None = None
    required: bool = False


@dataclass(frozen=True)
class Command:
    """One command of ``lit-ctg``.

    Attributes:
        name, summary: of the command, one line.
        run: takes the words after the name, returns the exit code.
        settings: what it takes; for a command that takes Hydra's overrides, those worth a line of help.
        overrides: other ``key=value`` words go to Hydra.
        notes: more lines of help.
        examples: whole command lines without ``lit-ctg``.
    """

    name: str
    summary: str
    run: Callable[[list[str]], int]
    settings: tuple[Setting, ...] = ()
    overrides: bool = False
    notes: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()

    def help(self) -> str:
        """Return the help of this command."""
        width = max((len(setting.name) for setting in self.settings), default=0) + 1
        lines = [f"lit-ctg {self.name}: {self.summary}"]
        for setting in self.settings:
            meaning = setting.meaning + (" (required)" if setting.required else "")
            lines.append(f"  {setting.name + '=':{width}}  {meaning}")
        lines += [f"  {note}" for note in self.notes]
        if self.overrides:
            lines.append("  Every other key=value is an override of the configuration: lit-ctg list what=experiments")
        lines.append("  trust=<package>  checkpoints, records and manifests may name classes of this package")
        lines += [f"example: lit-ctg {example}" for example in self.examples]
        return "\n".join(lines)

    def parse(self, words: Sequence[str]) -> dict[str, str]:
        """Return the settings of a command that takes no overrides.

        Raises:
            UserError: see ``settings``; a word that is not among the choices, a required setting that is missing.
        """
        return self._checked(settings(words, self.name, [setting.name for setting in self.settings]))

    def split(self, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Split words into the settings of a command and overrides of the configuration.

        Raises:
            UserError: see ``parse``; an option ``--name`` that is not a setting.
        """
        known = {setting.name for setting in self.settings}
        own: list[str] = []
        overrides: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            key, equals, _ = word.lstrip("-").partition("=")
            if word.startswith("--"):
                own += [word] if equals else [word, *rest[:1]]
                rest = rest if equals else rest[1:]
            elif equals and key in known:
                own.append(word)
            else:
                overrides.append(word)
        return self._checked(settings(own, self.name, [setting.name for setting in self.settings])), overrides

    def whole(self, found: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
        """Return a setting as a whole number, or ``default`` where it was not given.

        Raises:
            UserError: see ``whole_number``.
        """
        return whole_number(self.name, name, found[name], least) if name in found else default

    def _checked(self, found: dict[str, str]) -> dict[str, str]:
        for setting in self.settings:
            value = found.get(setting.name)
            if value is None and setting.required:
                known = f" one of {', '.join(setting.choices())}" if setting.choices else ""
                raise UserError(f"lit-ctg {self.name}: give {setting.name}=...{known}")
            if value is not None and setting.choices and value not in (choices := setting.choices()):
                hint = did_you_mean(value, choices)
                raise UserError(f"lit-ctg {self.name}: {setting.name}={value}{hint}; one of {', '.join(choices)}")
        return found


def settings(words: Sequence[str], command: str, known: Sequence[str]) -> dict[str, str]:
    """Return ``{key: value}`` of words such as ``paper=nslm``.

    A bare first word stands for the first key that the command knows (``lit-ctg table nslm``); ``--key value`` and
    ``--key=value`` for ``key=value``, ``--dry-run`` for ``dry_run=true``. The values of a repeated key are joined by a
    comma.

    Raises:
        UserError: an unknown key, a key without a value, a second bare word.
    """
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.lstrip("-").partition("=")
        if word.startswith("--") and not equals:
            if key == "dry-run":
                value = "true"
            elif rest:
                value = rest.pop(0)
            else:
                raise UserError(f"lit-ctg {command}: {word} needs a value")
        elif not equals:
            if found or not known or word.startswith("-"):
                raise UserError(f"lit-ctg {command}: cannot read '{word}': settings are key=value")
            key, value = known[0], word
        key = key.replace("-", "_")
        if key in _GLOBAL:
            continue
        if key not in known:
            raise UserError(
                f"lit-ctg {command}: no setting '{key}'{did_you_mean(key, known)}; one of {', '.join(known)}"
            )
        found[key] = f"{found[key]},{value}" if key in found else value
    return found


def whole_number(command: str, name: str, text: str, least: int) -> int:
    """Read a setting of a command as a whole number.

    Raises:
        UserError: it is not a whole number, or less than ``least``.
    """
    if not text.isdecimal() or int(text) < least:
        raise UserError(f"lit-ctg {command}: {name}={text}: give a whole number from {least}")
    return int(text)


def folders(value: str | None) -> list[str] | None:
    """Return the folders of ``records=one,two``; None where nothing is given."""
    return [part for part in value.split(",") if part] if value else None
