"""The playground's page: its parts by themselves, and in a browser the way from a slider to a changed text."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lit_ctg import trust
from lit_ctg.core.generation import ControlSetting
from lit_ctg.errors import UserError
from lit_ctg.run import play_page
from lit_ctg.run.play import Example, Player, Session
from lit_ctg.run.play_page import (
    NONE,
    _downloads,
    answers,
    control_of,
    drawn,
    main,
    next_example,
    saved,
    smoke_groups,
    to_vary,
    train_smoke,
)
from tests.pages import free_port

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROMPT = "Carol starts the model,"


@pytest.fixture(scope="module")
def player(smoke_run: Path) -> Player:
    return play_page.opened(str(smoke_run))


def values_of(player: Player, **control: float) -> list[Any]:
    """Return what the page's widgets hold: prompt, seed, tokens, routes, then a switch and a slider a control."""
    widgets = [part for s in player.generator.controls for part in (s.name in control, control.get(s.name, 0.5))]
    return [PROMPT, 0, 10, list(player.generator.routes), *widgets]


def test_widgets_become_controls() -> None:
    settings = [ControlSetting("alpha", "", 0.5), ControlSetting("high", "", low=0, high=1),
                ControlSetting("source", "", choices=("a", "b")), ControlSetting("mix", "", of_names=True)]  # fmt: skip
    assert control_of(settings, [0.7, False, 0.9, NONE, ""]) == {"alpha": 0.7}
    given = {"alpha": 0.0, "high": 0.9, "source": "b", "mix": {"a": 1.0}}
    assert control_of(settings, [0.0, True, 0.9, "b", "a=1"]) == given


def test_surprises_go_round_and_fill_all_widgets() -> None:
    settings = [ControlSetting("a.strength", "", 1.0, low=0.0), ControlSetting("a.to_x", "", low=0.0, high=1.0),
                ControlSetting("b.kind", "", choices=("c", "d"))]  # fmt: skip
    generator = SimpleNamespace(controls=settings)
    examples = [Example("one", {"a.to_x": 0.5}), Example("two", {"a.strength": 0.0})]
    player = Player("model", "title", generator, examples=examples)  # type: ignore[arg-type] # stands in
    assert next_example(player, 1) == [0, "one", 1.0, True, 0.5, NONE]
    assert next_example(player, 0) == [1, "two", 0.0, False, 0.5, NONE], "a slider that is off stands where it works"


@pytest.mark.parametrize(
    ("given", "there", "expected"),
    [
        ({}, True, ("smollm2", ["polarity"])),
        ({}, False, None),
        ({"output_root": "outputs"}, True, None),
        ({"model": "mine"}, True, ("mine", ())),
    ],
)
def test_without_a_word_it_opens_on_a_real_model(
    given: dict, there: bool, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(Player, "of_model", lambda model, controls, *_, **__: opened.append((model, controls)))
    monkeypatch.setattr(play_page, "is_cached", lambda name: there)
    monkeypatch.setattr(play_page, "bundles", lambda: {"polarity": Path("polarity")})
    monkeypatch.setattr(play_page, "gradio", lambda: SimpleNamespace())
    monkeypatch.setattr(play_page, "build", lambda *_: opened.append("page") or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(**given)
    assert opened == [*filter(None, [expected]), "page"]


def test_answers_grow_and_end_with_the_session(player: Player) -> None:
    found = list(answers(player, values_of(player, pos_high=0.95)))
    assert len(found) > 2 and {len(each) for each in found} == {8}
    message, controlled, bare, tokens, table, command, python, session = found[-1]
    assert message == "" and PROMPT in controlled and PROMPT in bare and "pos_high alone" in table
    assert 'class="token' in tokens and command.startswith("lit-ctg generate") and "Player.open" in python
    assert isinstance(session, Session)
    assert all(each[-1] is None for each in found[:-1])
    told = json.loads(Path(saved(session) or "").read_text(encoding="utf-8"))
    assert told["control"] == {"pos_high": 0.95}
    # of several, none is written over, and all go with the one folder
    one, other = Path(saved(session) or ""), Path(saved(session) or "")
    assert one != other and one.parent.parent == other.parent.parent == Path(_downloads().name)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [(0, "Klaus <b>", "Klaus &lt;b&gt;"), (1, 0.5, "seed=0.5: pass a whole number"), (2, 0, "tokens=0")],
)
def test_bad_settings_are_told_in_place(player: Player, place: int, value: Any, said: str) -> None:
    given = values_of(player, pos_high=0.9)
    given[place] = value
    ((message, *rest),) = answers(player, given)
    assert said in message and 'role="alert"' in message and set(rest) <= {"", None}


def test_a_curve_needs_a_text_first(player: Player) -> None:
    assert "generate a text first" in drawn(player, None, "pos_high")
    *_, last = answers(player, values_of(player, pos_high=0.95))
    svg, session = drawn(player, last[-1], "pos_high"), last[-1]
    assert svg.startswith("<svg") and session is not None and set(session.curves) == {"pos_high"}
    assert saved(None) is None


def test_the_curve_is_offered_over_a_control_that_was_set(player: Player) -> None:
    settings = player.generator.controls
    assert to_vary(settings, None, "subj_high") == "subj_high"
    *_, last = answers(player, values_of(player))
    assert to_vary(settings, last[-1], "subj_high") == "subj_high"
    *_, last = answers(player, values_of(player, pos_high=0.95, pos_low=0.1))
    first = next(s.name for s in settings if s.name in {"pos_high", "pos_low"})
    offered = [to_vary(settings, last[-1], now) for now in ("subj_high", "pos_high", "pos_low")]
    assert offered == [first, "pos_high", "pos_low"]


def test_the_curve_of_bundles_is_offered_over_the_strength_of_one_that_acts() -> None:
    names = {"codes.strength": 1.0, "codes.good": None, "codes.bad": None, "gate.alpha": 1.0, "memory.strength": 1.0}
    settings = [ControlSetting(name, "", default, low=0.0) for name, default in names.items()]
    off = {"codes.strength": 1.0, "gate.alpha": 0.0, "memory.strength": 0.0}
    for chosen, now, expected in (
        ({"codes.good": 1.0}, "memory.strength", "codes.strength"),
        ({"codes.good": 1.0}, "codes.good", "codes.good"),
        ({"gate.alpha": 1.0}, "memory.strength", "gate.alpha"),
    ):
        session: Any = SimpleNamespace(control=off | chosen)
        assert to_vary(settings, session, now) == expected


def test_the_control_offered_for_a_curve_comes_with_the_text(player: Player) -> None:
    """Draw waits for both, so it cannot be asked for the control before; a new text takes the old curve away."""
    pytest.importorskip("gradio", reason="no gradio here")
    page = play_page.build(Path(), player=player)
    ids = {block.elem_id: block for block in page.blocks.values() if getattr(block, "elem_id", None)}
    over, draw, curve = (ids[name] for name in ("over", "draw", "curve"))
    assert not draw.interactive and over.value != "neg_high"
    found = list(page.fns.values())
    asked = [fn for fn in found if over in fn.outputs]
    assert len(asked) == 2 and all({draw, curve} < set(fn.outputs) for fn in asked), "by the button and by Enter"
    for fn in asked:
        assert fn.inputs[0] is over
        *drafts, last = ({block.elem_id or "session": value for block, value in zip(fn.outputs, told, strict=True)}
                         for told in fn.fn(over.value, *values_of(player, neg_high=0.95)))  # fmt: skip
        assert drafts and not any(told["draw"].interactive or told["curve"] for told in drafts)
        assert all(told["session"] is None and told["over"] == {"__type__": "update"} for told in drafts)
        assert last["over"] == "neg_high" and last["draw"].interactive and last["curve"] == ""
        ((message, *_, active, _),) = fn.fn(over.value, "Klaus", *values_of(player)[1:])
        assert "Klaus" in message and not active.interactive, "there is no text to draw a curve of"
    (drawing,) = (fn for fn in found if curve in fn.outputs and fn not in asked)
    assert drawing.outputs == [curve] and drawing.inputs[1] is over, "it leaves the session of a newer text alone"
    (after,) = (fn for fn in found if fn.trigger_after == drawing._id)
    assert after.outputs == [ids["export"]], "the file has the curve"


@pytest.mark.long
def test_training_tells_what_becomes_of_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = smoke_groups()[:2]
    codes = iter([0, 2])

    def start(words: list[str], log: Any) -> subprocess.Popen[bytes]:
        assert words[-1] == "output_root=here" and trust.from_file(), "a manifest's words choose no code"
        script = f"print('one'); print('lit-ctg: no disk'); raise SystemExit({next(codes)})"
        return subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=log)

    monkeypatch.setattr(play_page, "start_job", start)
    lines = list(train_smoke("here", groups))
    assert "training ..." in lines[0] and len(lines) == 4
    assert lines[-1].splitlines()[0].endswith(": trained")
    assert lines[-1].splitlines()[1].endswith(": failed: lit-ctg: no disk")


def test_without_gradio_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gradio", None)
    with pytest.raises(UserError, match=r"pip install 'lit-ctg\[play\]'"):
        main()


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium here")
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that serves the page of a folder of runs and gives its address."""
    pytest.importorskip("gradio", reason="no gradio here")
    pages: list[Any] = []

    def start(root: Path) -> str:
        addresses: list[str] = []
        main(output_root=str(root), port=free_port(), wait=False,
             opened_at=lambda address, page: (addresses.append(address), pages.append(page)))  # fmt: skip
        return addresses[0]

    yield start
    for page in pages:
        page.close()


def watched(browser: Any, address: str, **options: Any) -> tuple[Any, list[str], list[str]]:
    """Open the page; return it, the requests that left this machine, and what went wrong in it."""
    page = browser.new_page(**options)
    foreign: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: None if _local(request.url) else foreign.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(address)
    return page, foreign, wrong


def pick(page: Any, run: Path) -> None:
    page.locator("#run input").click()
    page.get_by_role("option", name=run.name).click()


def _local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:", "ws://127.0.0.1:"))


def test_a_slider_changes_a_text(browser: Any, serve: Any, smoke_run: Path, tmp_path: Path) -> None:
    address = serve(smoke_run.parents[2])
    assert address.startswith("http://127.0.0.1:")
    page, foreign, wrong = watched(browser, address, viewport={"width": 1100, "height": 1600})
    page.set_default_timeout(60_000)
    pick(page, smoke_run)
    page.get_by_label("prompt").fill(PROMPT)
    page.locator("#go").click()
    page.wait_for_function("document.querySelector('#command')?.innerText.includes('lit-ctg generate')")
    controlled, bare = (page.locator(f"#{name} .draft").inner_text() for name in ("controlled", "bare"))
    assert controlled == bare and controlled.startswith(PROMPT)
    page.get_by_label("neg_high on").check()
    slider = page.get_by_role("slider", name="neg_high")
    slider.evaluate("(s) => { s.value = 0.95; s.dispatchEvent(new Event('input', {bubbles: true})); }")
    slider.evaluate("(s) => s.dispatchEvent(new Event('pointerup', {bubbles: true}))")
    page.locator("#go").click()
    page.get_by_text("In numbers").click()
    page.wait_for_function("document.querySelector('#table')?.innerText.includes('neg_high alone')")
    assert "control.neg_high=0.95" in page.locator("#command").inner_text()
    page.wait_for_function("document.querySelectorAll('#effects .token').length > 1")
    page.locator("#draw").click()
    page.wait_for_selector("#curve svg use")
    assert "neg_high" in page.locator("#curve").inner_html()
    with page.expect_download() as download:
        page.locator("#export").click()
    download.value.save_as(tmp_path / "session.json")
    assert json.loads((tmp_path / "session.json").read_text())["control"] == {"neg_high": 0.95}
    # what cannot be continued is told where the text would be
    page.get_by_label("prompt").fill("Klaus und Klara")
    page.locator("#go").click()
    page.wait_for_selector("#message [role=alert]")
    assert "Klaus" in page.locator("#message").inner_text()
    assert foreign == [] and wrong == []
    page.close()


@pytest.mark.long
def test_without_runs_it_offers_to_train(
    browser: Any, serve: Any, smoke_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training itself stands in for: a run that is there is put where it would have left it."""
    root = tmp_path / "outputs"

    def train(folder: str) -> Iterator[str]:
        yield "semantic_fusion/main: training ..."
        shutil.copytree(smoke_run.parents[2], folder)
        yield "semantic_fusion/main: trained"

    monkeypatch.setattr(play_page, "train_smoke", train)
    page, foreign, wrong = watched(browser, serve(root), viewport={"width": 390, "height": 900})
    page.set_default_timeout(60_000)
    page.wait_for_selector("#none")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#train").click()
    page.wait_for_selector("text=Pick a run")
    pick(page, smoke_run)
    page.wait_for_selector("#go")
    assert "trained" in page.get_by_label("training").input_value()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    tops = [page.locator(name).bounding_box()["y"] for name in ("#go", "#controlled", "#seed", "#over", "#command")]
    assert tops == sorted(tops), "the texts follow the button, the sliders the texts"
    assert foreign == [] and wrong == []
    page.close()
