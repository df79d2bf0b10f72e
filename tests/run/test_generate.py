"""What `lit-ctg generate` prints beside a text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from lit_ctg.core.generation import GeneratedText
from lit_ctg.run import generate as command


class Generator:
    """Gives the texts it was made with."""

    def __init__(self, texts):
        self.texts = texts

    def generator(self, module, datamodule):
        return self

    def generate(self, n, **settings):
        return self.texts[:n]

    def draws(self, seed):
        return None


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return ``run(*texts) -> output`` of the command over given texts, or what it says on standard error."""

    def run(*texts, errors=False):
        cfg = SimpleNamespace(decoding={}, paper="p", name="n", n=len(texts), prompt="", seed=0)
        checkpoint = SimpleNamespace(load_into=lambda module, datamodule: None)
        monkeypatch.setattr(command, "compose_with_checkpoint", lambda words: (cfg, checkpoint))
        monkeypatch.setattr(command, "build_datamodule", lambda cfg: None)
        monkeypatch.setattr(command, "build_model", lambda cfg, datamodule: None)
        monkeypatch.setattr(command, "plain", lambda cfg: {"control": {}})
        monkeypatch.setattr(command, "instantiate", lambda node, where: Generator(list(texts)))
        command.generate([])
        return capsys.readouterr()[errors]

    return run


class NotedText(GeneratedText):
    """Says something of itself."""

    def note(self) -> str:
        return f"{len(self.ids)} tokens"


def test_a_text_stands_alone_and_markup_is_text(printed) -> None:
    assert printed(GeneratedText("in [1985]", (1,)), GeneratedText("x", ())) == "in [1985]\nx\n"


def test_what_a_text_says_of_itself_stands_below_it(printed) -> None:
    assert printed(NotedText("in 1985", (1, 2)), GeneratedText("in", (1,))) == "in 1985\n    2 tokens\nin\n"


def test_shown_texts_are_drawn_unless_asked_otherwise(monkeypatch) -> None:
    for words, choice in (([], "sample"), (["decoding.choice=greedy"], "greedy")):
        cfg = OmegaConf.create({"decoding": {"choice": "greedy"}, "paper": "p", "name": "n"})
        made = cfg, SimpleNamespace(load_into=lambda module, datamodule: None)
        monkeypatch.setattr(command, "compose_with_checkpoint", lambda words, made=made: made)
        monkeypatch.setattr(command, "build_datamodule", lambda cfg: None)
        monkeypatch.setattr(command, "build_model", lambda cfg, datamodule: None)
        monkeypatch.setattr(command, "instantiate", lambda node, where: Generator([node.choice]))
        assert command.load(words)[1].texts == [choice]


def test_several_greedy_texts_are_explained(printed, run_cli) -> None:
    assert "decoding.choice=greedy" in printed(GeneratedText("in", (1,)), GeneratedText("in", (1,)), errors=True)
    assert printed(GeneratedText("in", (1,)), GeneratedText("on", (1,)), errors=True) == ""
    code, _, err = run_cli("generate", "model=nowhere", "prompt=a", "n=2", "do_sample=false")
    assert code == 2 and "n=2 with do_sample=false" in err


def test_controls_are_for_a_model(run_cli) -> None:
    code, out, err = run_cli("generate", "controls=[somewhere]", "prompt=a")
    assert (code, out) == (2, "") and "controls= are for a model: give model=" in err and err.count("\n") == 1
