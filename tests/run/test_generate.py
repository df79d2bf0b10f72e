"""What `lit-ctg generate` prints beside a text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lit_ctg.run import generate as command


class Generator:
    """Gives the texts it was made with."""

    def __init__(self, texts):
        self.texts = texts

    def generator(self, module, datamodule):
        return self

    def generate(self, n, **settings):
        return self.texts[:n]


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return ``run(*texts) -> output`` of the command over given texts."""

    def run(*texts):
        cfg = SimpleNamespace(decoding={}, paper="p", name="n", n=len(texts), prompt="", seed=0)
        checkpoint = SimpleNamespace(load_into=lambda module, datamodule: None)
        monkeypatch.setattr(command, "compose_with_checkpoint", lambda words: (cfg, checkpoint))
        monkeypatch.setattr(command, "build_datamodule", lambda cfg: None)
        monkeypatch.setattr(command, "build_model", lambda cfg, datamodule: None)
        monkeypatch.setattr(command, "plain", lambda cfg: {"control": {}})
        monkeypatch.setattr(command, "instantiate", lambda node, where: Generator(list(texts)))
        command.generate([])
        return capsys.readouterr().out

    return run


def test_a_text_stands_alone(printed) -> None:
    assert printed(SimpleNamespace(text="in [1985]"), SimpleNamespace(text="x", fired=())) == "in [1985]\nx\n"


def test_class_tokens_are_named_below_their_text(printed) -> None:
    fired = (("1985", "year", ""), ("1986", "year", "1985"))
    out = printed(SimpleNamespace(text="in 1985 and 1986", fired=fired), SimpleNamespace(text="in", fired=()))
    assert out == "in 1985 and 1986\n    1985: year, 1986: year after 1985\nin\n"
