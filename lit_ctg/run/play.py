"""The logic of `lit-ctg play`: open a run, compare its text with the bare model's, and render the comparison.

Nothing here knows about a browser; ``play_page.py`` is the page.
"""

from __future__ import annotations

import contextlib
import math
import queue
import shlex
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from lit_ctg import __version__
from lit_ctg.config import is_free_text, plain, quoted
from lit_ctg.control import Control
from lit_ctg.control.generator import SteeredGenerator
from lit_ctg.core.generation import ControlSetting, Writer
from lit_ctg.core.trace import Comparison, TokenEffect, compare, strength_curve
from lit_ctg.errors import UserError, one_line
from lit_ctg.figure import Line, line_chart
from lit_ctg.limits import check_value
from lit_ctg.network.pretrained import PLAIN, Loading
from lit_ctg.run.directory import CHECKPOINT, RECORD, run_status
from lit_ctg.run.generate import load
from lit_ctg.run.quiet import quiet
from lit_ctg.run.reproduce import Group
from lit_ctg.run.steer import load_steered
from lit_ctg.terminal import printable

# number of values of a control in a curve
CURVE_POINTS = 9
# where a control's range has no end, its slider ends here or at four times its default, whichever is larger
OPEN_END = 5.0
# nats at which a token's colour is fully saturated
FULL_COLOUR = 3.0
# nats by which a control lowers a text before the page says why
NOTED = 1.0
# maximum length of a continuation by a carried model, in tokens
LONGEST = 200
# the largest seed that the page accepts
LARGEST_SEED = 2**31 - 1


def runs(root: Path | str) -> list[Path]:
    """Return the finished run directories below ``root`` that have a checkpoint, the newest first."""
    found = [path.parent for path in Path(root).rglob(RECORD) if (path.parent / CHECKPOINT).is_file()]
    done = [folder for folder in found if run_status(folder / RECORD) == "DONE"]
    return sorted(done, key=lambda folder: (folder / RECORD).stat().st_mtime, reverse=True)


@dataclass(frozen=True)
class Draft:
    """Both texts as they grow."""

    controlled: str
    bare: str


@dataclass(frozen=True)
class Carried:
    """A Hugging Face model and the bundles that steer it.

    Attributes:
        model: folder or hub name.
        controls: folders or hub names of the bundles.
        loading: device and precision.
        chat: whether a prompt is a message; ``system`` the message before it.
    """

    model: str
    controls: tuple[str, ...]
    loading: Loading = PLAIN
    chat: bool = False
    system: str | None = None

    @property
    def words(self) -> list[str]:
        """Their form on the command line."""
        chat = ["chat=true"] * self.chat + ([] if self.system is None else [f"system={self.system}"])
        return [f"model={self.model}", f"controls=[{','.join(self.controls)}]", *self.loading.words, *chat]


@dataclass(frozen=True)
class Session:
    """One comparison, with everything needed to repeat it.

    Attributes:
        run: the run directory, or the model's folder or name.
        prompt, control, routes, seed, new_tokens: as requested.
        comparison: the result.
        curves: control -> values and the mean log P per token, nats, of the controlled and of the bare text under each.
        model: instead of a run: a model with carried controls.
        length_key: of a run: the setting that gives it this number of tokens; None where it has it anyway.
    """

    run: str
    prompt: str
    control: dict[str, Any]
    routes: tuple[str, ...] | None
    seed: int
    new_tokens: int
    comparison: Comparison
    curves: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    model: Carried | None = None
    length_key: str | None = None

    @property
    def command(self) -> str:
        """The command line that prints the controlled text."""
        if self.model is not None:
            words = ["lit-ctg", "generate", *self.model.words, f"seed={self.seed}", f"max_new_tokens={self.new_tokens}"]
            words += [f"prompt={self.prompt}"] if self.prompt else []
        else:
            words = ["lit-ctg", "generate", self.run, f"seed={self.seed}", "n=1"]
            prompt = self.prompt if is_free_text(self.prompt) else quoted(self.prompt)
            words += [f"prompt={prompt}"] if self.prompt else []
            words += [f"{self.length_key}={self.new_tokens}"] if self.length_key else []
        for name, value in self.control.items():
            if isinstance(value, Mapping):
                words += [f"control.{name}.{key}={_number(part)}" for key, part in value.items()]
            else:
                words.append(f"control.{name}={_number(value) if isinstance(value, float) else value}")
        if self.routes is not None:
            words.append(f"path=[{','.join(self.routes)}]")
        return shlex.join(words)

    @property
    def python(self) -> str:
        """The same in Python."""
        routes = "" if self.routes is None else f"\n    routes={list(self.routes)!r},"
        opening, loading = f"Player.open({self.run!r})", ""
        if self.model is not None:
            opening = f"Player.of_model({self.model.model!r}, {list(self.model.controls)!r}"
            opening += "" if self.model.loading == PLAIN else f", {self.model.loading!r}"
            opening += f", chat=True, system={self.model.system!r})" if self.model.chat else ")"
            loading = "from lit_ctg.network.pretrained import Loading\n" * (self.model.loading != PLAIN)
        return (
            f"from lit_ctg.core.trace import compare\n{loading}"
            "from lit_ctg.run.play import Player\n\n"
            f"player = {opening}\n"
            "found = compare(\n"
            "    player.generator,\n"
            f"    {self.prompt!r},\n"
            f"    {self.control!r},\n"
            f"    seed={self.seed},{routes}\n"
            f"    max_new_tokens={self.new_tokens},\n"
            ")\n"
            "print(found.controlled.text)\n"
            "print(found.bare.text)\n"
            "for token in found.tokens:\n"
            "    print(repr(token.text), token.bare, token.controlled, token.by)\n"
        )

    def export(self) -> dict[str, Any]:
        """Return everything as plain values for a JSON file; a log P of -inf becomes null."""
        found = self.comparison
        tokens = [
            {
                "text": token.text,
                "id": token.id,
                "log_p_bare": _finite(token.bare),
                "log_p_controlled": _finite(token.controlled),
                "raised_by": {name: _finite(value) for name, value in token.by.items()},
            }
            for token in found.tokens
        ]
        return {
            "lit_ctg": __version__,
            "run": self.run,
            "prompt": self.prompt,
            "control": self.control,
            "routes": None if self.routes is None else list(self.routes),
            "seed": self.seed,
            "max_new_tokens": self.new_tokens,
            "controlled": {"text": found.controlled.text, "control": dict(found.controlled.control)},
            "bare": {"text": found.bare.text, "control": dict(found.bare.control)},
            "tokens": tokens,
            "curves": {
                name: {key: list(map(_finite, values)) for key, values in curve.items()}
                for name, curve in self.curves.items()
            },
            "command": self.command,
        }


def _number(value: float) -> str:
    """Return a number as short as it can be read again without loss."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Example:
    """A prompt and the settings of all controls, by full names, that show what a control does."""

    prompt: str
    settings: dict[str, float]


def examples_of(controls: Sequence[Control], settings: Sequence[ControlSetting]) -> list[Example]:
    """Return an example for each bundle with a sample (``lit-ctg control build``, ``make``), its control on and the
    others off, and one with all of them; without samples one in which the controls share their default strengths.

    Args:
        controls: in the order of their stages.
        settings: theirs, by full names.
    """
    known = {setting.name: setting for setting in settings}
    # a control that is off until a weight is set keeps its strength
    strengths = [f"{each.name}.{each.strength}" for each in controls if not bool(each.off(each.values({}, 1)).all())]
    samples = [sample for sample in (_sample(control, known) for control in controls) if sample is not None]
    if not samples:
        parts = {name: float(known[name].default or 0.0) / len(controls) for name in strengths}
        return [Example("", parts if len(controls) > 1 else {})]

    def alone(sample: Example) -> dict[str, float]:
        names = {name.partition(".")[0] for name in sample.settings}
        return {name: 0.0 for name in strengths if name.partition(".")[0] not in names} | sample.settings

    found = [Example(sample.prompt, alone(sample)) for sample in samples]
    if len(samples) > 1:
        together = {name: value for sample in samples for name, value in sample.settings.items()}
        found.append(Example(samples[0].prompt, together))
    return found


def _sample(control: Control, known: Mapping[str, ControlSetting]) -> Example | None:
    """Return the sample that a bundle's record holds, None without one; settings of another name are left out."""
    settings, prompt, words = dict[str, float](), "", ""
    with contextlib.suppress(AttributeError, IndexError, KeyError, TypeError):  # a file may hold anything
        record = control.origin.record  # type: ignore[union-attr] # or it has none
        made: Any = record.get("zoo", record)  # type: ignore[union-attr]
        prompt, words = str(made["prompt"]), str(made["sample"][-1][0])
    for word in words.split():
        key, _, value = word.partition("=")
        name = f"{control.name}.{key.rpartition('.')[2]}"
        with contextlib.suppress(UserError, ValueError):
            if name in known:
                settings[name] = float(known[name].checked(float(value)))
    return Example(prompt, settings) if settings else None


class Player:
    """One opened run, or a model with carried controls.

    Args:
        folder: the run directory, or the name of the model.
        title: a description in words.
        generator: of its model.
        prompt: the initial one.
        model: the carried model, where it is not a run.
        length_key: the setting of a run that bounds the number of tokens, if it has one.
        examples: prompts and settings that show its controls; the page begins with the first.
    """

    def __init__(
        self,
        folder: Path | str,
        title: str,
        generator: Writer[Any],
        prompt: str = "",
        model: Carried | None = None,
        length_key: str | None = None,
        examples: Sequence[Example] = (),
    ) -> None:
        self.folder, self.title, self.generator, self.prompt, self.model = folder, title, generator, prompt, model
        self.length_key, self.examples = length_key, tuple(examples)
        # one text at a time: models keep state
        self.lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path | str) -> Player:
        """Build the model of a run directory with its last checkpoint.

        Raises:
            UserError: see ``run.generate.load``.
        """
        folder = Path(folder)
        with quiet():
            cfg, generator = load([str(folder)])
        config = plain(cfg)
        names = [config[key]["name"] if isinstance(config[key], dict) else config[key] for key in ("regime", "size")]
        title = f"{config['paper']}/{config['name']}, {names[0]}, size {names[1]}, seed {config['seed']}"
        return cls(folder, title, generator, str(cfg.get("prompt") or ""), length_key=length_key(config))

    @classmethod
    def of_model(
        cls,
        model: str,
        controls: Sequence[str],
        loading: Loading = PLAIN,
        *,
        chat: bool = False,
        system: str | None = None,
        url: str | None = None,
    ) -> Player:
        """Load a causal language model and bundles, each a folder or a name on the hub, or use those of a server.

        Raises:
            UserError: one is missing or does not fit, or no server is at ``url``.
        """
        options: dict[str, Any] = {"max_new_tokens": LONGEST, "chat": chat, "system": system}
        if url is None:
            generator = SteeredGenerator(load_steered(model, controls, loading=loading), **options)
        else:
            from lit_ctg.serve.client import ServedGenerator

            generator = ServedGenerator(url, model, controls, **options)
        steered = generator.steered
        names = ", ".join(control.name for control in steered.controls) or "no control"
        if chat:
            generator.prompt_ids("")  # a model without a template is refused before there is a page
        examples = examples_of(steered.controls, generator.controls)
        return cls(
            model,
            f"{Path(model).name}: {names}",
            generator,
            "" if chat else examples[0].prompt,
            model=Carried(model, tuple(controls), loading, chat, system),
            examples=examples,
        )

    @property
    def new_tokens(self) -> int:
        """The maximum number of tokens that a text can add."""
        context = self.generator.context
        return self.generator.max_new_tokens if context is None else min(self.generator.max_new_tokens, context)

    def room(self, prompt: str) -> int:
        """The maximum number of tokens that can follow a prompt, at least 1."""
        context = self.generator.context
        if context is None:
            return self.new_tokens
        return max(1, min(self.new_tokens, context + 1 - len(self.generator.prompt_ids(prompt))))

    def range_of(self, setting: ControlSetting) -> tuple[float, float]:
        """Return the ends of a slider for a number; open ends are closed with room above a value that works."""
        works, default = self.works(setting), abs(float(setting.default or 0.0))
        reach = 2 * works if works else max(OPEN_END, 4 * default)
        low = setting.low if math.isfinite(setting.low) else -reach
        return low, setting.high if math.isfinite(setting.high) else reach

    def works(self, setting: ControlSetting) -> float:
        """Return the largest value of a setting in the examples of its control, 0.0 where there is none.

        A setting that they leave out works as it is by default, an optional one as the others of its control do.
        """
        control = f"{setting.name.partition('.')[0]}."
        optional = {each.name for each in self.generator.controls if each.default is None}
        found = [0.0]
        for each in self.examples:
            own = {name: abs(value) for name, value in each.settings.items() if name.startswith(control)}
            if setting.default is not None and any(own.values()):
                found.append(own.get(setting.name, abs(float(setting.default))))
            elif setting.default is None:
                found += [value for name, value in own.items() if name in optional]
        return max(found)

    def play(
        self,
        prompt: str,
        control: Mapping[str, Any],
        *,
        seed: int,
        routes: Collection[str] | None = None,
        new_tokens: int | None = None,
        watch: Callable[[str, str], None] | None = None,
    ) -> Session:
        """Compare one prompt's text with and without controls, of at most ``new_tokens`` (None: as many as there is
        room for).

        Raises:
            UserError: see ``core.trace.compare``; a seed or number of tokens that is not whole.
        """
        length = self.room(prompt) if new_tokens is None else new_tokens
        for name, value, low in (("seed", seed, 0), ("tokens", length, 1)):
            check_value(name, value, Annotated[int, Interval(ge=low, le=LARGEST_SEED)])
        with self.lock:
            options: dict[str, Any] = {"seed": seed, "routes": routes, "max_new_tokens": length, "watch": watch}
            found = compare(self.generator, prompt, control, **options)
        taken = None if routes is None else tuple(routes)
        key = None if length == self.generator.max_new_tokens else self.length_key
        return Session(
            str(self.folder), prompt, dict(control), taken, seed, length, found, model=self.model, length_key=key
        )

    def stream(self, prompt: str, control: Mapping[str, Any], **options: Any) -> Iterator[Draft | Session]:
        """Yield both texts as they grow and then the session; see ``play``. Closing the iterator stops the writing.

        Raises:
            UserError: see ``play``.
        """
        messages: queue.Queue[Draft | Session | BaseException] = queue.Queue()
        left = threading.Event()

        def watch(controlled: str, bare: str) -> None:
            if left.is_set():
                raise UserError("stopped")
            messages.put(Draft(controlled, bare))

        def work() -> None:
            try:
                messages.put(self.play(prompt, control, watch=watch, **options))
            except BaseException as error:
                messages.put(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            while True:
                item = messages.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                if isinstance(item, Session):
                    return
        finally:
            left.set()  # who asked has gone: the next one need not wait

    def curve(self, session: Session, name: str) -> dict[str, list[float]]:
        """Return the values of one control and the mean log P per token of both texts under each (``strength_curve``).

        Raises:
            UserError: no such control, or one that is not a number.
        """
        setting = next((one for one in self.generator.controls if one.name == name), None)
        if setting is None or setting.choices or setting.of_names:
            raise UserError(f"a curve needs a control that is a number, not '{name}'")
        low, high = self.range_of(setting)
        values = [low + (high - low) * step / (CURVE_POINTS - 1) for step in range(CURVE_POINTS)]
        texts = [session.comparison.controlled, session.comparison.bare]
        with self.lock:
            found = strength_curve(self.generator, session.prompt, texts, name, values, routes=session.routes)
        return {"values": values, "controlled": found[0], "bare": found[1]}


def length_key(config: Mapping[str, Any]) -> str | None:
    """Return the setting of a run that bounds the tokens of a text; None where its texts end by themselves."""
    return next((f"decoding.{key}" for key in ("max_new_tokens", "new_tokens") if key in config["decoding"]), None)


def smoke_group(groups: Sequence[Group]) -> Group | None:
    """Return the smoke run of a paper that the page offers to train: corrected, its first seed."""
    group = next((one for one in groups if one.regime == "corrected"), None)
    return None if group is None else Group(**{**group.__dict__, "seeds": group.seeds[:1]})


def failure(error: Exception) -> str:
    """Return an error as one line for the page."""
    return " ".join(str(error).split()) if isinstance(error, UserError) else one_line(error)


def read_weights(text: str) -> dict[str, float]:
    """Read ``news=0.5, blog=0.5``.

    Raises:
        UserError: something else.
    """
    weights: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = part.partition("=")
        try:
            weights[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise UserError(f"'{part}': give weights as name=0.5, other=0.5")
    return weights


# --- pictures of a session ------------------------------------------------------------------------------------------


def effect_words(nats: float) -> str:
    """Return an effect as text: ``x 2.7 (+1.00)``."""
    if not math.isfinite(nats):
        return "only with controls" if nats > 0 else "excluded" if nats < 0 else "undefined"
    if abs(nats) < 0.005:
        return "as likely"
    factor = math.exp(min(abs(nats), 300.0))
    sign = "\N{MULTIPLICATION SIGN}" if nats >= 0 else "\N{DIVISION SIGN}"
    return f"{sign} {factor:,.3g} ({nats:+.2f})"


def shown_token(text: str) -> str:
    """Return a token with spaces and control characters made visible."""
    return printable(text).replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}").replace(" ", "\N{OPEN BOX}") or (
        "\N{EMPTY SET}"
    )


def tokens_html(session: Session) -> str:
    """Return the controlled text with each token coloured by the effect of the controls."""
    spans = [f'<span class="given">{escape(printable(session.prompt))}</span>'] if session.prompt else []
    for token in session.comparison.tokens:
        share = 1.0 if not math.isfinite(token.raised) else min(abs(token.raised) / FULL_COLOUR, 1.0)
        kind = "up" if token.raised > 0 else "down"
        parts = [f"{name} {effect_words(nats)}" for name, nats in token.by.items()] if len(token.by) > 1 else []
        title = escape("; ".join([effect_words(token.raised), *parts]), quote=True)
        style = f"--share:{100 * share:.0f}%"
        spans.append(
            f'<span class="token {kind}" style="{style}" title="{title}">{escape(printable(token.text))}</span>'
        )
    legend = (
        '<p class="legend"><span class="token up" style="--share:100%">raised</span> '
        '<span class="token down" style="--share:100%">lowered</span> by the controls, full colour from '
        f"{FULL_COLOUR:g} nats on</p>"
    )
    notes = "".join(f'<p class="legend">{escape(note)}</p>' for note in lowering(session.comparison.tokens))
    return f'<p class="tokens">{"".join(spans)}</p>{legend}{notes}'


def lowering(tokens: Sequence[TokenEffect]) -> list[str]:
    """Return a line for each control that lowered the words of the text, with the controls that outweighed it."""
    names = list(tokens[0].by) if tokens else []
    sums = {name: sum(token.by[name] for token in tokens) for name in names}
    found = []
    for name, nats in sums.items():
        if nats <= -NOTED:
            stronger = ", ".join(other for other, value in sums.items() if value > 0)
            why = f"{stronger} outweighed it" if stronger else "another seed may draw them"
            found.append(f"{name} made the words above less likely, by {-nats:.1f} nats in all; {why}")
    return found


def table_html(session: Session) -> str:
    """Return a table of the tokens: their probability without and with controls, and the effect of each control."""
    tokens = session.comparison.tokens
    if not tokens:
        return "<p>The text ends with its prompt.</p>"
    names = list(tokens[0].by)
    heads = ["token", "without", "with", "all controls", *(f"{name} alone" for name in names)]
    head = "".join(f'<th scope="col">{escape(words)}</th>' for words in heads)
    caption = (
        "Probability of each token of the controlled text without and with controls; how many times each control made "
        "it likelier (or less likely), the others kept, and in brackets the same in nats"
    )
    return (
        f'<table class="effects"><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(_row(token, names) for token in tokens)}</tbody></table>"
    )


def _row(token: TokenEffect, names: Sequence[str]) -> str:
    cells = [f"{math.exp(token.bare):.3g}", f"{math.exp(token.controlled):.3g}", effect_words(token.raised)]
    cells += [effect_words(token.by[name]) for name in names]
    body = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row"><code>{escape(shown_token(token.text))}</code></th>{body}</tr>'


def curve_svg(name: str, curve: Mapping[str, Sequence[float]]) -> str:
    """Draw the mean log P per token of both texts over the values of a control; excluded texts are left out."""
    lines = [
        Line(kind, [(x, y) for x, y in zip(curve["values"], curve[key], strict=True) if math.isfinite(y)], name=words)
        for kind, key, words in (
            ("series0", "controlled", "the controlled text"),
            ("series1", "bare", "the bare text"),
        )
    ]
    if not any(line.points for line in lines):
        return "<p>Every value of this control excludes a token of both texts.</p>"
    return line_chart(f"How likely both texts are by {name}", lines, x=name, y="mean log P a token, nats").svg
