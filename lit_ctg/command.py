"""The grammar of the command line: ``key=value`` words, read into the dataclass that declares a command's options.

A command is a subclass of ``Command``: its docstring is its line of help, its fields are its options, ``function``
names what does the work. A field's annotation gives its type, range and choices (``limits.py``), ``option`` its meaning
and default. Hydra's words (``train``, and what composes a configuration) are collected in a field ``overrides``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, dataclass_transform

from omegaconf import OmegaConf

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.limits import check_value, kinds_of
from lit_ctg.terminal import printable

# taken by every command, used by the command line itself
GLOBAL = ("debug",)


def option(meaning: str, default: Any = dataclasses.MISSING) -> Any:
    """Return the field of one option; without a default it is required, and a list or mapping starts empty."""
    if default in ([], {}):
        return dataclasses.field(default_factory=type(default), metadata={"meaning": meaning})
    return dataclasses.field(default=default, metadata={"meaning": meaning})


class Names(Collection[str]):
    """Choices that are read when they are needed."""

    def __init__(self, read: Callable[[], Collection[str]]) -> None:
        self.read = read

    def __contains__(self, name: object) -> bool:
        return name in self.read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
class Command:
    """One command of ``lit-ctg``.

    Attributes:
        words: that call it, such as ``memory build``.
        function: what does the work, ``<module>:<name>`` below ``lit_ctg``, unless the command has its own ``execute``.
        hydra: options of the configuration that deserve a line of help, with their meanings.
        examples: whole command lines without ``lit-ctg``.
    """

    words: ClassVar[str]
    function: ClassVar[str] = ""
    hydra: ClassVar[Mapping[str, str]] = {}
    notes: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(kw_only=True)(cls)

    def execute(self) -> int | None:
        """Call ``function`` with the fields by name, and print its lines if it returns some; return the exit code."""
        module, _, name = self.function.partition(":")
        found = getattr(importlib.import_module(f"lit_ctg.{module}"), name)(**vars(self))
        for line in found if isinstance(found, list) else []:
            print(printable(str(line)))
        return found if isinstance(found, int) else None

    @classmethod
    def summary(cls) -> str:
        return (inspect.getdoc(cls) or "").split("\n\n")[0].rstrip(".").replace("\n", " ")

    @classmethod
    def options(cls) -> dict[str, dataclasses.Field[Any]]:
        # those that several commands share come last
        own = inspect.get_annotations(cls)
        every = dataclasses.fields(cls)  # type: ignore[arg-type]  # a subclass is a dataclass
        fields = sorted(every, key=lambda field: field.name not in own)
        return {field.name: field for field in fields if "meaning" in field.metadata}

    @classmethod
    def help(cls) -> str:
        meanings = dict(cls.hydra)
        for name, field in cls.options().items():
            needed = field.default is field.default_factory is dataclasses.MISSING
            known = field.default not in (dataclasses.MISSING, None, False, "")
            note = " (required)" if needed else f" (default: {field.default})" if known else ""
            meanings[name] = field.metadata["meaning"] + note
        width = max(map(len, meanings), default=0) + 1
        lines = [f"lit-ctg {cls.words}: {cls.summary()}"]
        lines += [f"  {name + '=':{width}}  {meaning}" for name, meaning in meanings.items()]
        lines += [f"  {note}" for note in cls.notes]
        if cls.takes_overrides():
            lines.append("  Every other key=value is an override of the configuration: lit-ctg list experiments")
        lines.append("  trust=<package>  checkpoints, records and manifests may name classes of this package")
        lines += [f"example: lit-ctg {example}" for example in cls.examples]
        return "\n".join(lines)

    @classmethod
    def takes_overrides(cls) -> bool:
        """Return whether words that are no options go to Hydra."""
        return "overrides" in (field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]  # see options

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """Read the words after the command's name.

        A bare first word is the first option (``lit-ctg table nslm``); ``--key value`` and ``--key=value`` mean
        ``key=value``, ``--key`` means ``key=true``. A list is ``a,b`` or ``[a,b]``; a repeated list is extended.

        Raises:
            UserError: an unknown option, one that is given twice, missing or without a value, a value that does not
                fit, a second bare word.
        """
        known, found, overrides = cls.options(), dict[str, Any](), list[str]()
        hints = typing.get_type_hints(cls, include_extras=True)
        rest = list(words)
        while rest:
            word = rest.pop(0)
            key, equals, text = word.lstrip("-").partition("=")
            dashed = word.startswith("-") and (key := key.replace("-", "_")) != ""
            prefix, _, inner = key.partition(".")
            mapping = bool(inner) and prefix in known and Mapping in kinds_of(hints[prefix])
            ours = key in known or mapping
            if not dashed and cls.takes_overrides() and not (ours and equals):
                overrides.append(word)
                continue
            if key in GLOBAL:
                continue
            if (dashed or equals) and not ours:
                there = f"; one of {', '.join(known)}" if known else ""
                raise UserError(f"{cls.words}: no option '{word.partition('=')[0]}'{did_you_mean(key, known)}{there}")
            if dashed and not equals:
                flag = bool in kinds_of(hints[key]) and rest[:1] not in (["true"], ["false"])
                text = "true" if flag else cls._next(rest, word)
            elif not equals:
                if found or not known:
                    raise UserError(f"{cls.words}: cannot read '{word}': options are key=value")
                key, text = next(iter(known)), word
            cls._add(found, key, text, hints[prefix if mapping else key], mapping)
        for name, field in known.items():
            if name in found:
                check_value(f"{cls.words}: {name}", found[name], hints[name])
            elif field.default is field.default_factory is dataclasses.MISSING:
                raise UserError(f"{cls.words}: give {name}=..., {field.metadata['meaning']}")
        return cls(**found, **({"overrides": overrides} if cls.takes_overrides() else {}))

    @classmethod
    def _next(cls, rest: list[str], word: str) -> str:
        if not rest:
            raise UserError(f"{cls.words}: {word} needs a value")
        return rest.pop(0)

    @classmethod
    def _add(cls, found: dict[str, Any], key: str, text: str, hint: Any, mapping: bool) -> None:
        """Add the value of one word to those before it."""
        if mapping:
            prefix, _, inner = key.partition(".")
            found.setdefault(prefix, {})[inner] = read_value(key, text)
        elif Sequence in kinds_of(hint):
            found[key] = found.get(key, []) + listed(text)
        elif key in found:
            raise UserError(f"{cls.words}: {key}= is given twice: leave one out")
        else:
            kinds = kinds_of(hint)
            verbatim = str in kinds or kinds <= {typing.Literal, type(None)}
            found[key] = None if text == "null" and type(None) in kinds else text if verbatim else read_value(key, text)


def read_value(key: str, text: str) -> Any:
    """Read a number, a truth value, a list or a mapping as Hydra's configurations write them; other words stay text."""
    try:
        value = OmegaConf.from_dotlist([f"value={text}"])
        return OmegaConf.to_container(value, resolve=False)["value"]  # type: ignore[index,call-overload]  # a mapping
    except Exception as error:  # of the YAML reader, of many kinds
        raise UserError(f"{key}={text[:80]}: cannot be read as a number, a word or a list [a,b]") from error


def listed(text: str) -> list[str]:
    """Return the words of ``[a,b]`` or ``a,b``."""
    return [
        part.strip().strip("'\"")
        for part in text.strip().removeprefix("[").removesuffix("]").split(",")
        if part.strip()
    ]
