"""`lit-ctg play`: a local page on which sliders change a text (gradio; the extra ``play``).

It listens on this machine only by default, makes no network requests and runs no script.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lit_ctg.control.shipped import bundles
from lit_ctg.core.generation import ControlSetting
from lit_ctg.errors import UserError, refuse
from lit_ctg.limits import check_value
from lit_ctg.network.pretrained import PLAIN, Loading, cached
from lit_ctg.results.gather import OUTPUTS
from lit_ctg.results.spec import experiments_root, papers
from lit_ctg.run.jobs import start_job
from lit_ctg.run.play import (
    Draft,
    Example,
    Player,
    Session,
    curve_svg,
    failure,
    read_weights,
    runs,
    smoke_group,
    table_html,
    tokens_html,
)
from lit_ctg.run.reproduce import Group, load_groups
from lit_ctg.terminal import Console
from lit_ctg.trust import words_from_file

REAL = "smollm2"
HOST, PORT = "127.0.0.1", 7860
# names by which a browser on this machine can call the page
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# bytes of a request; the page sends a prompt and some numbers
LARGEST_REQUEST = 2**20
NONE = "(not set)"
WRITING = '<p class="legend" role="status">writing ...</p>'
HEAD = "# lit-ctg play\nOne prompt with and without controls, from the same draws."
STYLE = """
.gradio-container { max-width: 1100px !important; width: 100% !important; margin: 0 auto !important; }
.tokens, .draft { font-size: 1.05rem; line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
.given { opacity: .7; } .token { border-radius: 3px; padding: 1px 0; }
.token.up, .token.down { --half: calc(var(--share) * .45); }
.token.up { background: color-mix(in srgb, #3d85cc var(--half), transparent); }
.token.down { background: color-mix(in srgb, #c9761c var(--half), transparent); }
.legend { font-size: .85rem; opacity: .85; }
.wrong { border-left: 4px solid #d6584c; padding: 6px 12px; margin: 0; }
.scroll { overflow-x: auto; } table.effects { font-size: .9rem; font-variant-numeric: tabular-nums; }
table.effects caption { text-align: left; opacity: .85; padding: 4px 0; }
table.effects th, table.effects td { text-align: left; padding: 2px 10px 2px 0; }
#curve svg { max-width: 640px; height: auto; }
.switched { flex-direction: column !important; } .switched > * { width: 100% !important; }
#command .empty, #python .empty { min-height: 3rem !important; height: 3rem; }
@media (max-width: 700px) {
  .shown { display: contents !important; } .texts { order: -1; } .more { order: 1; }
  button.lg { padding: 8px 2px; white-space: nowrap; font-size: .85rem; }
}
"""


def gradio() -> Any:
    """Return gradio with its telemetry off.

    Raises:
        UserError: it is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        with no_proxy():
            import gradio as found
    except ImportError as error:
        if error.name != "gradio":
            raise
        raise UserError("lit-ctg play needs gradio: pip install 'lit-ctg[play]'") from error
    return found


@contextlib.contextmanager
def no_proxy() -> Iterator[None]:
    """Keep gradio from calling its own server through the proxy of ``HTTP_PROXY``, ``ALL_PROXY``, ..."""
    before = os.environ.get("no_proxy")
    os.environ["no_proxy"] = "*"
    try:
        yield
    finally:
        if before is None:
            del os.environ["no_proxy"]
        else:
            os.environ["no_proxy"] = before


class OwnRequests:
    """ASGI middleware: answer only what the page itself can ask for.

    A page of another site reaches a local server by a name that it resolves to this machine (``Host`` then is its own
    name) or across origins (``Origin`` then is its own). The page uploads nothing.

    Args:
        app: the application behind it.
        names: names of this server, lower case, without port and brackets.
        behind: those among them that a tunnel or proxy has, which may pass on another ``Host``.
    """

    def __init__(self, app: Any, names: Sequence[str], behind: Sequence[str]) -> None:
        self.app, self.names, self.behind = app, {*names, *behind}, set(behind)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import PlainTextResponse

        refused = self.refusal(scope) if scope["type"] in ("http", "websocket") else None
        answer = self.app if refused is None else PlainTextResponse(refused[1] + "\n", status_code=refused[0])
        await answer(scope, receive, send)

    def refusal(self, scope: Any) -> tuple[int, str] | None:
        """Return the status and the reason with which a request is refused, or None."""
        from starlette.datastructures import Headers

        headers = Headers(scope=scope)
        hosts, origins, length = headers.getlist("host"), headers.getlist("origin"), headers.get("content-length", "0")
        # a server on all addresses is also called by the one that the connection came in at
        if len(hosts) != 1 or host_name(hosts[0]) not in {*self.names, str((scope.get("server") or [""])[0])}:
            return 403, f"Host {', '.join(hosts)} is not this page: lit-ctg play allow_host=<name> accepts a name"
        for origin in origins:
            calling = origin.partition("://")[2]
            if calling != hosts[0] and host_name(calling) not in self.behind:
                return 403, f"Origin {origin} is not this page: lit-ctg play allow_host=<name> accepts a name"
        if headers.get("content-type", "").lower().startswith("multipart/"):
            return 415, "This page takes no files"
        # what has no length may have no end
        if "transfer-encoding" in headers or not length.isdecimal() or int(length) > LARGEST_REQUEST:
            return 413, f"A request has at most {LARGEST_REQUEST} bytes and says how many"
        return None


def host_name(text: str) -> str | None:
    """Return the name in ``name:port`` or ``[address]:port``, lower case, or None for anything else."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d+)?", text.lower(), re.ASCII)
    return (found[1] or found[2]) if found else None


def is_cached(name: str) -> bool:
    """Return whether a model of ``lit-ctg model list`` is there, whole."""
    with contextlib.suppress(UserError):
        return cached(name) is not None
    return False


def wrong(words: str) -> str:
    """Return a message in place of a text; screen readers read it at once."""
    return f'<p class="wrong" role="alert">{escape(words)}</p>' if words else ""


def draft(text: str) -> str:
    """Return a text of the page."""
    return f'<p class="draft">{escape(text)}</p>'


@functools.lru_cache(maxsize=2)
def opened(folder: str) -> Player:
    """Return an opened run; the last two are cached."""
    return Player.open(folder)


def control_of(settings: Sequence[ControlSetting], values: Sequence[Any]) -> dict[str, Any]:
    """Return the controls set by the widgets of ``settings`` (see ``widgets``); unset ones are left out.

    Raises:
        UserError: weights that cannot be read.
    """
    left, control = iter(values), {}
    for setting in settings:
        if setting.choices:
            if (value := next(left)) != NONE:
                control[setting.name] = value
        elif setting.of_names:
            if weights := read_weights(next(left) or ""):
                control[setting.name] = weights
        elif setting.default is None:
            on, value = next(left), next(left)
            if on:
                control[setting.name] = value
        else:
            control[setting.name] = next(left)
    return control


def values_of(player: Player, example: Example | None) -> list[Any]:
    """Return the values of ``widgets`` for an example's settings, the others as they are by default."""
    chosen = {} if example is None else example.settings
    found: list[Any] = []
    for setting in player.generator.controls:
        if setting.choices:
            found.append(NONE if setting.default is None else setting.default)
        elif setting.of_names:
            found.append("")
        elif setting.default is None:
            once_on = player.works(setting) or player.range_of(setting)[1]
            found += [setting.name in chosen, chosen.get(setting.name, once_on)]
        else:
            found.append(float(chosen.get(setting.name, setting.default)))
    return found


def widgets(gr: Any, player: Player) -> list[Any]:
    """Build the widgets of a run's controls in order: a switch precedes the slider of an optional one."""
    found: list[Any] = []
    values = iter(values_of(player, next(iter(player.examples), None)))
    for setting in player.generator.controls:
        label, info = setting.name, setting.meaning
        if setting.choices:
            choices = [*setting.choices] if setting.default is not None else [NONE, *setting.choices]
            found.append(gr.Dropdown(choices, value=next(values), label=label, info=info))
        elif setting.of_names:
            names = "name=0.5, other=0.5"
            found.append(gr.Textbox(next(values), label=label, info=f"{info}: {names}", placeholder=names))
        else:
            low, high = player.range_of(setting)
            whole = {"minimum": low, "maximum": high, "step": (high - low) / 100, "label": label, "info": info}
            if setting.default is None:
                with gr.Row(elem_classes="switched"):
                    found.append(gr.Checkbox(next(values), label=f"{label} on", scale=0, min_width=170))
                    found.append(gr.Slider(value=next(values), **whole))
            else:
                found.append(gr.Slider(value=next(values), **whole))
    return found


def next_example(player: Player, number: int) -> list[Any]:
    """Return what "Surprise me" sets: the number of the next example, its prompt, and the values of ``widgets``."""
    number = (number + 1) % len(player.examples)
    example = player.examples[number]
    return [number, example.prompt, *values_of(player, example)]


def answers(player: Player, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield what the page shows, (message, controlled, bare, tokens, table, command, python, session), as it becomes
    known; a bad setting becomes a message.

    Args:
        player: the run.
        values: prompt, seed, tokens, routes (only where the paper has several), then those of ``widgets``.
    """
    prompt, seed, length, *rest = values
    routes = list(rest.pop(0)) if player.generator.routes else None
    nothing = ("", "", "", "", None)
    try:
        control = control_of(player.generator.controls, rest)
        seed, length = whole("seed", seed), whole("tokens", length)
        for item in player.stream(prompt or "", control, seed=seed, routes=routes, new_tokens=length):
            if isinstance(item, Draft):
                yield (WRITING, draft(item.controlled), draft(item.bare), *nothing)
            else:
                found = item.comparison
                effects = f'<div class="scroll">{table_html(item)}</div>'
                texts = (draft(found.controlled.text), draft(found.bare.text))
                yield ("", *texts, tokens_html(item), effects, item.command, item.python, item)
    except Exception as error:
        # any error is shown in place of the text; the page goes on working
        yield (wrong(failure(error)), "", "", *nothing)


def whole(name: str, value: Any) -> int:
    """Return a number from the page as a whole number.

    Raises:
        UserError: it is not whole.
    """
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    check_value(name, value, int)
    return int(value)


def drawn(player: Player, session: Session | None, name: str) -> str:
    """Return the curve over one control, which also extends the session."""
    if session is None:
        return wrong("generate a text first")
    try:
        curve = player.curve(session, name)
    except Exception as error:
        return wrong(failure(error))
    # in place: the page may have another session by now, which must not be replaced
    session.curves[name] = curve
    return curve_svg(name, curve)


def to_vary(settings: Sequence[ControlSetting], session: Session | None, now: str) -> str:
    """Return the control to draw a curve over: ``now`` if the text was written under it, else the first that was.

    Of a bundle with a strength and switches (``<bundle>.<setting>``) that is the strength: a lone switch has no grades.
    """
    if session is None:
        return now
    found = []
    for _, group in itertools.groupby(settings, lambda setting: setting.name.rpartition(".")[0]):
        numeric = [s for s in group if not s.choices and not s.of_names]
        switches = [s.name for s in numeric if s.default is None]
        steady = [s.name for s in numeric if s.default is not None and session.control.get(s.name, s.default)]
        on = [name for name in switches if name in session.control]
        found += steady + on if on or not switches else []
    return now if now in found or not found else found[0]


@functools.cache
def _downloads() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of what the page offers for download; it is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="lit_ctg_play_")


def saved(session: Session | None) -> str | None:
    """Write a session as JSON where the page can offer it for download; return the file."""
    if session is None:
        return None
    path = Path(tempfile.mkdtemp(dir=_downloads().name)) / "session.json"
    path.write_text(json.dumps(session.export(), ensure_ascii=False, indent=1), encoding="utf-8")
    return str(path)


# --- training what is not there -------------------------------------------------------------------------------------


def smoke_groups() -> list[Group]:
    """Return one smoke run per paper that lists any."""
    root = experiments_root(None)
    found = []
    for paper in papers(root):
        try:
            group = smoke_group(load_groups(root, paper, "smoke"))
        except UserError:
            group = None  # the paper has no smoke runs
        found += [group] if group is not None else []
    return found


def train_smoke(root: str, groups: Sequence[Group] | None = None) -> Iterator[str]:
    """Train the smoke runs one after the other, with a line before and after each; a run dies with this process."""
    lines: list[str] = []
    for group in smoke_groups() if groups is None else groups:
        lines.append(f"{group.paper}/{group.name}: training ...")
        yield "\n".join(lines)
        with tempfile.TemporaryFile() as log:
            with words_from_file():
                job = start_job([*group.command(), f"output_root={root}"], log)
            with job:
                code = job.wait()
            log.seek(0)
            last = (log.read().decode(errors="replace").strip() or "no word").splitlines()[-1]
        lines[-1] = f"{group.paper}/{group.name}: " + ("trained" if code == 0 else f"failed: {last}")
        yield "\n".join(lines)


# --- the page -------------------------------------------------------------------------------------------------------


def label(folder: Path, root: Path) -> str:
    """Return the name of a run in the list."""
    return str(folder.relative_to(root)) if folder.is_relative_to(root) else str(folder)


def build(root: Path, run: Path | None = None, player: Player | None = None) -> Any:
    """Return the page (``gradio.Blocks``).

    Args:
        root: the folder of runs.
        run: the run directory shown first; None: none, until somebody picks one (opening a run builds its model).
        player: the only thing to show, instead of runs.
    """
    gr = gradio()
    if player is not None:
        with gr.Blocks(title="lit-ctg play", analytics_enabled=False) as page:
            gr.Markdown(HEAD)
            _run_page(gr, player)
        return page

    def listed() -> list[tuple[str, str]]:
        found = runs(root) if root.is_dir() else []
        found = found if run is None or run in found else [run, *found]
        return [(label(folder, root), str(folder)) for folder in found]

    first = listed()
    with gr.Blocks(title="lit-ctg play", analytics_enabled=False) as page:
        gr.Markdown(HEAD)
        with gr.Row():
            chosen = gr.Dropdown(first, value=None if run is None else str(run), label="run", elem_id="run", scale=4)
            again = gr.Button("Look for runs again", scale=1, elem_id="again")
        with gr.Accordion("No run of your own yet? Train the smoke models", open=not first):
            gr.Markdown(
                "A small model of each paper, seconds of training each: their texts show what controls do, they are no "
                "good prose. The same from a terminal: `lit-ctg train experiment=semantic_fusion/main size=smoke`; "
                "`size=small` takes minutes and reads better."
            )
            train = gr.Button("Train the smoke models", elem_id="train")
            progress = gr.Textbox(label="training", lines=5, interactive=False, elem_id="training")

        def refreshed(now: str | None) -> Any:
            found = listed()
            values = [value for _, value in found]
            return gr.Dropdown(choices=found, value=now if now in values else None)

        again.click(refreshed, chosen, chosen, api_visibility="private")
        train.click(lambda: (yield from train_smoke(str(root))), None, progress, api_visibility="private").then(
            refreshed, chosen, chosen, api_visibility="private"
        )

        @gr.render(inputs=chosen)
        def show(folder: str | None) -> None:
            known = [path for _, path in listed()]
            if folder not in known:
                gr.Markdown("Pick a run above." if known else "No finished run in this folder yet.", elem_id="none")
                return
            try:
                player = opened(folder)
            except Exception as error:
                gr.HTML(wrong(failure(error)))
                return
            _run_page(gr, player)

    return page


def _run_page(gr: Any, player: Player) -> None:
    """Lay out one run."""
    gr.Markdown(f"## {player.title}")
    prompt = gr.Textbox(label="prompt", value=player.prompt, elem_id="prompt")
    with gr.Row():
        go = gr.Button("Generate", variant="primary", elem_id="go", min_width=100)
        stop = gr.Button("Stop", elem_id="stop", min_width=70)
        several = len(player.examples) > 1
        another = gr.Button("Surprise me", elem_id="another", min_width=100) if several else None
    with gr.Row(elem_classes="play"):
        with gr.Column(scale=2, min_width=320):
            with gr.Row():
                seed = gr.Number(0, label="seed", precision=0, elem_id="seed", min_width=100)
                longest = player.new_tokens
                length = gr.Slider(1, longest, value=min(longest, 40), step=1, label="tokens", elem_id="tokens")
            routes = []
            if player.generator.routes:
                info = "the ways the controls take"
                on = list(player.generator.checked_routes(None))
                routes = [gr.CheckboxGroup(list(player.generator.routes), value=on, label="path", info=info)]
            controls = widgets(gr, player)
            if not controls:
                gr.Markdown("This model follows no control (a baseline): both texts are the same.")
        with gr.Column(scale=3, min_width=320, elem_classes="shown"):
            with gr.Column(elem_classes="texts"):
                message = gr.HTML(elem_id="message")
                with gr.Row():
                    with gr.Column(min_width=200):
                        gr.Markdown("### With controls")
                        controlled = gr.HTML(elem_id="controlled")
                    with gr.Column(min_width=200):
                        gr.Markdown("### Bare")
                        bare = gr.HTML(elem_id="bare")
            with gr.Column(elem_classes="more"):
                gr.Markdown("### What the controls did, token by token")
                tokens = gr.HTML(elem_id="effects")
                with gr.Accordion("In numbers", open=False):
                    table = gr.HTML(elem_id="table")
                session = gr.State(None)
                names = [s.name for s in player.generator.controls if not s.choices and not s.of_names]
                over = None
                if names:
                    gr.Markdown("### Over the strength of one control")
                    with gr.Row():
                        over = gr.Dropdown(names, value=names[0], label="control", elem_id="over", scale=3)
                        draw = gr.Button("Draw", elem_id="draw", scale=1, interactive=False)
                    curve = gr.HTML(elem_id="curve")
                gr.Markdown("### The same elsewhere")
                if player.model is not None and player.model.loading.dtype != "float32":
                    gr.Markdown("In half precision a text written alone can differ: use `dtype=float32` for both.")
                # gradio makes a box `lines` times as high as its first line is when wrapped
                code = functools.partial(gr.Code, lines=1, interactive=False, wrap_lines=True)
                command = code(label="command line", language="shell", elem_id="command")
                python = code(label="Python", language="python", elem_id="python")
                export = gr.DownloadButton("Save this session as JSON", elem_id="export")
    outputs = [message, controlled, bare, tokens, table, command, python, session]
    inputs = [prompt, seed, length, *routes, *controls]

    def respond(*values: Any) -> Iterator[tuple[Any, ...]]:
        yield from answers(player, values)

    def respond_and_offer(now: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        # with the text itself: a curve could otherwise be asked for before the control that was set is the one offered
        for found in answers(player, values):
            name = gr.skip() if found[-1] is None else to_vary(player.generator.controls, found[-1], now)
            yield (*found, name, gr.Button(interactive=found[-1] is not None), "")

    wanted: tuple[Any, ...] = (respond, inputs, outputs)
    if over is not None:
        wanted = (respond_and_offer, [over, *inputs], [*outputs, over, draw, curve])
        done = draw.click(functools.partial(drawn, player), [session, over], curve, api_visibility="private")
        done.then(saved, session, export, api_visibility="private")
    events, running = [go.click, prompt.submit], []
    if another is not None:
        shown = gr.State(0)
        change = functools.partial(next_example, player)
        events.append(another.click(change, shown, [shown, prompt, *controls], api_visibility="private").then)
    for event in events:
        # gradio's sign of work would lie over both texts while they grow
        done = event(*wanted, api_visibility="private", show_progress_on=message)
        done.then(saved, session, export, api_visibility="private")
        running.append(done)
    stop.click(lambda: "", None, message, cancels=running, api_visibility="private")


def main(
    run: str | None = None,
    model: str | None = None,
    controls: Sequence[str] = (),
    host: str = HOST,
    port: int = PORT,
    allow_host: Sequence[str] = (),
    output_root: str | None = None,
    open: bool = False,
    console: Console | None = None,
    wait: bool = True,
    opened_at: Callable[[str, Any], None] | None = None,
    loading: Loading = PLAIN,
    chat: bool = False,
    system: str | None = None,
    url: str | None = None,
) -> int:
    """Serve the page until it is interrupted.

    Args:
        run: the initial run directory; default: none, the page lists those of ``output_root``.
        model: instead of runs: a Hugging Face model, folder or hub name. Without any of the three, SmolLM2 under the
            controls that come with the package, if it is in the cache.
        controls: folders of the bundles that steer it.
        host: the address to listen on; 127.0.0.1 is this machine only.
        port: of the address.
        allow_host: the names that a tunnel or proxy has, from which browsers call the page.
        output_root: where to look for runs, and where the smoke models are trained; by default ``outputs``.
        open: true opens a browser.
        console: where to print the address.
        wait: False returns at once.
        opened_at: called with the address and the page once it is served.
        loading: device and precision of the model.
        chat: a prompt is a message, which the model answers; ``system`` the message before it.
        url: of a server that has the model and the controls.

    Raises:
        UserError: gradio is missing, there is no such run, or the port is taken.
    """
    folder = None if run is None else Path(run)
    behind = [name.lower() for name in allow_host]
    no_run = folder is not None and not (folder / "checkpoints").is_dir()
    cases: dict[str, object] = {
        f"run={run}: no run directory with a checkpoint; lit-ctg train leaves one in {OUTPUTS}": no_run,
        f"host={host}: give an address, {HOST} for this machine only": not re.fullmatch(r"\S+", host),
        "controls= are for model=<folder or hub name>; a run brings its controls": model is None and controls,
        "chat=true is for model=, and system= for chat=true": (chat or system is not None) and (not model or not chat),
        "url= needs the model= and controls= that the server was given": url is not None and model is None,
        "model= and run= are two things to play: leave one out": model is not None and run is not None,
    }
    for name in behind:
        wanted = f"allow_host={name}: give names without scheme and port, such as play.example.org"
        cases[wanted] = host_name(name) != name
    refuse(cases)
    gr = gradio()
    from starlette.middleware import Middleware

    if run is None and model is None and output_root is None and is_cached(REAL):
        model, controls = REAL, list(bundles())
    player = None if model is None else Player.of_model(model, controls, loading, chat=chat, system=system, url=url)
    page = build(Path(output_root or OUTPUTS), folder, player)
    theme = gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    bare = host.strip("[]").lower()
    try:
        with no_proxy():
            _, address, _ = page.launch(
                server_name=f"[{bare}]" if ":" in bare else host,
                server_port=port,
                inbrowser=open,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                enable_monitoring=False,
                footer_links=[],
                ssr_mode=False,
                theme=theme,
                css=STYLE,
                app_kwargs={"middleware": [Middleware(OwnRequests, names=[*LOOPBACK, bare], behind=behind)]},
            )
    except OSError as error:
        raise UserError(f"port={port}: {' '.join(str(error).split())[:200]}; give another port=") from error
    shown = console or Console()
    shown.print(f"play: {address} (Ctrl+C ends it)", markup=False, highlight=False, soft_wrap=True)
    if bare not in LOOPBACK:
        words = (
            f"play: listening on {host}: everybody who can reach it can use this page and train smoke models with it"
        )
        shown.print(words, markup=False, highlight=False, soft_wrap=True)
    if opened_at is not None:
        opened_at(address, page)
    if wait:
        page.block_thread()
    return 0
