"""The playground without a browser: sessions, their other forms, what is told of bad settings."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from lit_ctg.cli import dispatch
from lit_ctg.config import compose, plain, prepare_overrides
from lit_ctg.control import Origin, Steered
from lit_ctg.control.generator import SteeredGenerator
from lit_ctg.core.generation import ControlSetting, GeneratedText
from lit_ctg.core.trace import Comparison, TokenEffect
from lit_ctg.errors import UserError
from lit_ctg.network.pretrained import Loading
from lit_ctg.run import play
from lit_ctg.run.play import Draft, Player, Session, examples_of, length_key, read_weights, runs

PROMPT = "Carol starts the model,"
CONTROL = {"pos_high": 0.95, "str_high": 0.9}


@pytest.fixture(scope="module")
def player(smoke_run: Path) -> Player:
    return Player.open(smoke_run)


def test_finished_runs_are_found(smoke_run: Path, tmp_path: Path) -> None:
    root = smoke_run.parents[2]
    assert runs(root) == [smoke_run] and runs(tmp_path) == []
    other = tmp_path / "a" / "run.json"
    other.parent.mkdir()
    other.write_text('{"status": "FAILED"}')
    assert runs(tmp_path) == []


def test_a_session_says_what_each_control_did_and_repeats_itself(player: Player, run_cli) -> None:
    session = player.play(PROMPT, CONTROL, seed=3)
    found = session.comparison
    assert found.controlled.text.startswith(PROMPT) and found.tokens
    assert all(set(token.by) == set(CONTROL) for token in found.tokens)
    # the adjective is the positive controls' doing
    assert max(token.by["pos_high"] for token in found.tokens) > 0.1
    # the forms to copy give the same text
    names: dict = {"print": lambda *words: None}
    exec(session.python, names)
    assert names["found"] == found
    words = shlex.split(session.command)
    assert words[:2] == ["lit-ctg", "generate"]
    code, out, err = run_cli(*words[1:])
    assert code == 0, err
    assert out.splitlines()[0] == found.controlled.text


def test_the_command_asks_for_as_many_tokens_as_the_session_had(player: Player) -> None:
    player.length_key = "decoding.max_new_tokens"
    try:
        short, usual = player.play(PROMPT, {}, seed=3, new_tokens=2), player.play(PROMPT, {}, seed=3)
    finally:
        player.length_key = None
    assert shlex.split(short.command)[-1] == "decoding.max_new_tokens=2" and "max_new" not in usual.command


@pytest.mark.parametrize(
    ("experiment", "key"),
    [("idea_gate/main", "max_new_tokens"), ("control_code/transformer", "new_tokens"), ("semantic_fusion/main", None)],
)
def test_the_setting_of_a_run_s_length(experiment: str, key: str | None) -> None:
    found = length_key(plain(compose([f"experiment={experiment}"])))
    assert found == (None if key is None else f"decoding.{key}")


def test_a_session_can_be_saved(player: Player) -> None:
    session = player.play(PROMPT, {"pos_high": 0.9}, seed=1, routes=["hard"])
    session.curves["pos_high"] = player.curve(session, "pos_high")
    told = json.loads(json.dumps(session.export(), allow_nan=False))
    assert told["control"] == {"pos_high": 0.9} and told["routes"] == ["hard"] and told["seed"] == 1
    assert [token["text"] for token in told["tokens"]] == [token.text for token in session.comparison.tokens]
    assert len(told["curves"]["pos_high"]["values"]) == play.CURVE_POINTS
    assert told["controlled"]["text"] == session.comparison.controlled.text and "path=[hard]" in told["command"]


def test_a_control_that_lowers_the_words_of_its_own_text_says_so_and_what_outweighed_it() -> None:
    def notes(*by: dict[str, float]) -> list[str]:
        return play.lowering([TokenEffect("good", 1, -1.0, -1.0, each) for each in by])

    assert notes() == notes({"up": 2.0}) == notes({"down": -0.4}, {"down": -0.4}) == notes({"odd": math.nan}) == []
    (note,) = notes({"up": 2.0, "down": -3.0}, {"up": 0.5, "down": 0.5})
    assert note.startswith("down ") and "2.5 nats" in note and "up outweighed" in note
    assert "seed" in notes({"down": -3.0})[0]


def test_texts_are_given_while_they_grow(player: Player) -> None:
    *drafts, session = player.stream(PROMPT, CONTROL, seed=3)
    assert isinstance(session, Session) and drafts and all(isinstance(draft, Draft) for draft in drafts)
    lengths = [len(draft.controlled) for draft in drafts if isinstance(draft, Draft)]
    assert lengths == sorted(lengths) and lengths[-1] <= len(session.comparison.controlled.text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"control": {"pos_high": 2.0}}, r"control\.pos_high=2\.0"),
        ({"control": {"pos": 1.0}}, "'pos'; did you mean 'pos_"),
        ({"prompt": "Klaus", "control": {}}, "Klaus"),
        ({"seed": -1}, "seed=-1: pass a whole number from 0"),
        ({"new_tokens": 0}, "tokens=0: pass a whole number from 1"),
        ({"routes": ["hart"]}, "'hart'; did you mean 'hard'"),
    ],
)
def test_bad_settings_are_one_line(player: Player, settings: dict, said: str) -> None:
    given = {"prompt": PROMPT, "control": CONTROL, "seed": 0, **settings}
    with pytest.raises(UserError, match=said):
        list(player.stream(given.pop("prompt"), given.pop("control"), **given))


def test_a_curve_needs_a_number(player: Player) -> None:
    session = player.play(PROMPT, {}, seed=0)
    curve = player.curve(session, "pos_high")
    assert curve["values"][0] == 0.0 and curve["values"][-1] == 1.0
    at_zero = sum(token.bare for token in session.comparison.tokens) / len(session.comparison.tokens)
    assert curve["controlled"][0] == pytest.approx(at_zero, abs=1e-6)
    with pytest.raises(UserError, match="a curve needs a control that is a number, not 'mood'"):
        player.curve(session, "mood")


def test_open_ends_of_a_slider_leave_room_above_the_default(player: Player) -> None:
    assert player.range_of(ControlSetting("alpha", "", 0.5, low=0.0)) == (0.0, 5.0)
    assert player.range_of(ControlSetting("beta", "", -4.0, high=0.0)) == (-16.0, 0.0)
    assert player.range_of(ControlSetting("x", "", None, 0.0, 1.0)) == (0.0, 1.0)


def test_weights_are_read_or_refused() -> None:
    assert read_weights(" news=0.5, blog = 1 ,") == {"news": 0.5, "blog": 1.0}
    for bad in ("news", "news=", "=1", "news=a"):
        with pytest.raises(UserError, match="give weights as name"):
            read_weights(bad)


def session_of(*tokens: TokenEffect, prompt: str = "") -> Session:
    text = GeneratedText("".join(token.text for token in tokens), tuple(token.id for token in tokens))
    return Session("run", prompt, {}, None, 0, 5, Comparison(text, text, tokens))


@pytest.mark.parametrize("prompt", ["a\\b", '"Hi," he said', "'Twas", "'quoted'", "null", "one\ntwo\tthree", PROMPT])
def test_the_command_to_copy_has_the_same_prompt(prompt: str) -> None:
    words = shlex.split(session_of(prompt=prompt).command)
    (override,) = OverridesParser.create().parse_overrides(prepare_overrides(words[5:]))
    assert (override.key_or_group, override.value()) == ("prompt", prompt)


def test_a_carried_model_fills_its_room(tmp_path: Path, word_model, word_tokenizer, run_cli, carried_controls) -> None:
    word_model.save_pretrained(tmp_path / "lm")
    word_tokenizer.save_pretrained(tmp_path / "lm")
    carried_controls()["idea_gate"].save_pretrained(tmp_path / "gate")
    player = Player.of_model(str(tmp_path / "lm"), [f"topic={tmp_path / 'gate'}"])
    assert player.room("the war") == 63, "64 positions; the last token is drawn, not read"
    session = player.play("the war", {"topic.alpha": 1 + 1e-9, "topic.beta": -1e-05}, seed=1)
    assert len(session.comparison.controlled.ids) <= 65
    assert {"control.topic.alpha=1.000000001", "control.topic.beta=-1e-05"} <= set(shlex.split(session.command))
    code, out, err = run_cli(*shlex.split(session.command)[1:])
    assert (code, out.rstrip("\n")) == (0, session.comparison.controlled.text), err


def test_what_a_model_says_stays_text_on_the_page() -> None:
    evil = "<script>alert(1)</script>\x1b"
    session = session_of(TokenEffect(evil, 1, -1.0, -0.5, {"<b>": 0.5}), prompt=evil)
    for html in (play.tokens_html(session), play.table_html(session), play.curve_svg("<b>", CURVE)):
        assert "<script" not in html and "<b>" not in html and "\x1b" not in html


CURVE = {"values": [0.0, 1.0], "controlled": [-1.0, -0.5], "bare": [-1.0, -math.inf]}


def test_the_curve_leaves_out_what_a_value_excludes() -> None:
    svg = play.curve_svg("x", CURVE)
    assert svg.count("<title>") == 3 and "the bare text" in svg
    nothing = {key: [-math.inf, -math.inf] if key != "values" else values for key, values in CURVE.items()}
    assert "excludes a token" in play.curve_svg("x", nothing)


@pytest.fixture(scope="module")
def carried_player(tmp_path_factory: pytest.TempPathFactory, word_model, word_tokenizer, carried_controls) -> Player:
    """Return a model folder with the bundles of two papers."""
    place = tmp_path_factory.mktemp("carried")
    word_model.save_pretrained(place / "model")
    word_tokenizer.save_pretrained(place / "model")
    made = carried_controls()
    for name in ("idea_gate", "lexicon"):
        made[name].save_pretrained(place / name)
    return Player.of_model(str(place / "model"), [str(place / "idea_gate"), str(place / "lexicon")])


def test_a_model_with_bundles_is_played_like_a_run(carried_player: Player, capsys) -> None:
    names = [setting.name for setting in carried_player.generator.controls]
    assert {"idea_gate.alpha", "idea_gate.beta", "lexicon.strength", "lexicon.to_polarity"} <= set(names)
    control = {"idea_gate.alpha": 2.0, "lexicon.strength": 6.0, "lexicon.to_polarity": 1.0}
    *drafts, session = carried_player.stream("the war", control, seed=3, new_tokens=6)
    assert isinstance(session, Session) and drafts
    found = session.comparison
    assert found.controlled.text.startswith("the war") and 1 <= len(found.tokens) <= 6
    assert {"idea_gate.alpha", "lexicon.strength", "lexicon.to_polarity"} <= set(found.tokens[0].by)
    assert any(abs(token.raised) > 0.01 for token in found.tokens)
    # without controls both are the same text, and nothing was done to it
    plain = carried_player.play("the war", carried_player.generator.bare(), seed=3, new_tokens=6).comparison
    assert plain.controlled.text == plain.bare.text == found.bare.text
    assert all(token.raised == 0 for token in plain.tokens)
    # the forms to copy give the same text
    told: dict = {"print": lambda *words: None}
    exec(session.python, told)
    assert told["found"] == found
    assert dispatch(shlex.split(session.command)[1:]) == 0
    # (this tokenizer of words loses the blank behind a prompt)
    assert capsys.readouterr().out.splitlines()[0].replace(" ", "") == found.controlled.text.replace(" ", "")
    curve = carried_player.curve(session, "idea_gate.alpha")
    assert len(curve["values"]) == play.CURVE_POINTS and len(set(curve["controlled"])) > 1
    assert json.loads(json.dumps(session.export(), allow_nan=False))["run"].endswith("model")


def test_bundles_without_a_sample_share_their_strengths(carried_player: Player) -> None:
    (example,) = carried_player.examples
    defaults = {setting.name: setting.default for setting in carried_player.generator.controls}
    assert example.settings == {"idea_gate.alpha": defaults["idea_gate.alpha"] / 2}, "the lexicon is off without words"


def test_the_page_begins_with_the_sample_of_a_bundle(word_model, word_tokenizer, carried_controls) -> None:
    made, without = carried_controls(), ["without", "..."]
    words = "control.words.to_polarity=1 control.words.other=2 control.x"
    samples: dict[str, object] = {
        "idea_gate": {"prompt": "the acid", "sample": [without, ["control.gate.alpha=0.25", "..."]]},
        "lexicon": {"prompt": "the war", "sample": [without, [words, "..."]]},
        "memory": ["damaged"],
    }
    for name, sample in samples.items():
        made[name].origin = Origin({"zoo": sample})
    steered = Steered(word_model, [made[name] for name in samples], tokenizer=word_tokenizer)
    generator = SteeredGenerator(steered, max_new_tokens=5)
    player = Player("model", "title", generator, examples=examples_of(steered.controls, generator.controls))
    gate, lexicon, both = (example.settings for example in player.examples)
    assert [example.prompt for example in player.examples] == ["the acid", "the war", "the acid"]
    assert gate == {"memory.strength": 0.0, "idea_gate.alpha": 0.25}
    assert lexicon == {"memory.strength": 0.0, "idea_gate.alpha": 0.0, "lexicon.to_polarity": 1.0}
    assert both == {"idea_gate.alpha": 0.25, "lexicon.to_polarity": 1.0}
    (alpha,) = (setting for setting in player.generator.controls if setting.name == "idea_gate.alpha")
    assert player.range_of(alpha) == (0.0, 0.5), "twice what works"
    (strength,) = (setting for setting in player.generator.controls if setting.name == "lexicon.strength")
    assert player.range_of(strength)[1] == 2 * strength.default, "which works in the example as it is by default"
    other = ControlSetting("lexicon.to_strength", "", None, low=0.0)
    assert player.range_of(other) == (0.0, 2.0), "as the others of its control"


def test_who_leaves_stops_the_writing(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object, watch, **__: object) -> None:
        while True:
            watch("a", "b")

    monkeypatch.setattr(play, "compare", endless)
    stream = player.stream(PROMPT, {}, seed=0)
    assert next(stream) == Draft("a", "b")
    stream.close()
    assert player.lock.acquire(timeout=60)
    player.lock.release()


def test_bad_settings_of_a_carried_control_are_one_line(carried_player: Player) -> None:
    for control, said in (
        ({"idea_gate.alpha": -1.0}, r"control\.idea_gate\.alpha=-1\.0"),
        ({"idea_gate.alfa": 1.0}, "did you mean 'idea_gate.alpha'"),
    ):
        with pytest.raises(UserError, match=said):
            carried_player.play("the war", control, seed=0)
    with pytest.raises(UserError, match="the model has 64 positions"):
        carried_player.play("the war", {}, seed=0, new_tokens=100)


def test_a_chat_is_played(tmp_path: Path, word_model, word_tokenizer, carried_controls) -> None:
    word_model.save_pretrained(tmp_path / "model")
    word_tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    carried_controls()["lexicon"].save_pretrained(tmp_path / "lexicon")
    place = str(tmp_path / "model")
    player = Player.of_model(place, [str(tmp_path / "lexicon")], Loading("cpu"), chat=True, system="good")
    control = {"lexicon.strength": 6.0, "lexicon.to_polarity": 1.0}
    session = player.play("the war", control, seed=3, new_tokens=5)
    steered = player.generator.steered
    options = {"max_new_tokens": 5, "do_sample": True, "seed": 3}
    reply = steered.chat("the war", control, system="good", **options)[0]
    assert session.comparison.controlled.text.split() == reply.split() and 1 <= len(session.comparison.tokens) <= 5
    told: dict = {"print": lambda *words: None}
    exec(session.python, told)
    assert told["found"] == session.comparison
    assert {"chat=true", "system=good", "device=cpu"} <= set(shlex.split(session.command))
