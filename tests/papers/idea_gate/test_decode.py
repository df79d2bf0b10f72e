"""Generation with the gate, and on a Hugging Face model."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.idea_gate import IdeaGateModule
from lit_ctg.papers.idea_gate.decode import DividingPenalty, IdeaGateDecoding
from lit_ctg.run.build import instantiate
from tests.tiny import make_gpt2, make_tokenizer

# generation: Generation: cached equals whole prefixes, rows of a batch are their own, strengths per row, bad input


PROMPTS = ["The market", "The price of a share", "Traders"]


def decoding(**changes) -> IdeaGateDecoding:
    return IdeaGateDecoding(**{"temperature": 0.6, "repetition_penalty": 1.2, "max_new_tokens": 7} | changes)


@pytest.fixture
def make_generator(make_module, vocabulary):
    def make(settings: dict | None = None, **changes):
        module = make_module(**changes)
        return decoding(**settings or {}).generator(module, SimpleNamespace(vocabulary=vocabulary))

    return make


def test_penalty_divides_positive_and_multiplies_negative_scores():
    scores = torch.tensor([[2.0, -2.0, 3.0, 0.5]])
    got = DividingPenalty(1.25)(torch.tensor([[0, 1, 0]]), scores)
    assert torch.allclose(got, torch.tensor([[1.6, -2.5, 3.0, 0.5]]))
    assert torch.equal(scores, torch.tensor([[2.0, -2.0, 3.0, 0.5]]))
    (whole, *_) = decoding(repetition_penalty=2, temperature=1.0).rules()  # the library takes a float alone
    assert whole(torch.tensor([[0]]), torch.tensor([[1.0, 1.0]])).tolist() == [[0.5, 1.0]]


def test_the_authors_penalty_compounds():
    """Deviation 14: their loop runs over the places of the prefix."""
    scores, ids = torch.randn(3, 9), torch.randint(9, (3, 20))
    expected = scores.clone()
    for row, prefix in enumerate(ids.tolist()):
        for token in prefix:
            expected[row, token] *= 1.2 if expected[row, token] < 0 else 1 / 1.2
    rule = DividingPenalty(1.2, compounds=True)
    torch.testing.assert_close(rule(ids, scores), expected)
    assert not torch.allclose(DividingPenalty(1.2)(ids, scores), expected)
    once = torch.arange(9).repeat(3, 1)
    torch.testing.assert_close(rule(once, scores), DividingPenalty(1.2)(once, scores))
    for regime, compounds in (("as_published", True), ("corrected", False)):
        cfg = compose(["experiment=idea_gate/main", f"regime={regime}"])
        (penalty, _) = instantiate(cfg.decoding, "decoding").rules()
        assert penalty.compounds is compounds


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.5])
def test_cached_greedy_text_is_that_of_whole_prefixes(make_generator, alpha):
    generator = make_generator(dropout=0.2)
    module = generator.module.eval()
    texts = generator.generate(3, PROMPTS, {"alpha": alpha}, seed=None)
    module.alpha = alpha
    for text, prompt in zip(texts, PROMPTS, strict=True):
        ids = list(generator.vocabulary.encode(prompt))
        for _ in range(7):
            batch = {"input_ids_BT": torch.tensor([ids])}
            with torch.no_grad():
                scores = module(batch).scores_BTV[0, -1]
            seen = torch.tensor(sorted(set(ids)))
            scores[seen] = torch.where(scores[seen] > 0, scores[seen] / 1.2, scores[seen] * 1.2)
            ids.append(int(scores.argmax()))
        assert list(text.ids) == ids
        assert text.text == generator.vocabulary.decode(ids)
        assert text.text.startswith(prompt)
        assert text.prompt_length == len(generator.vocabulary.encode(prompt))


def test_strength_zero_is_the_model_without_its_head(make_generator):
    gated, bare = make_generator(), make_generator(gated=False)
    bare.module.load_state_dict(gated.module.state_dict(), strict=False)
    plain = bare.generate(2, "The market", seed=1)
    assert [t.ids for t in gated.generate(2, "The market", {"alpha": 0.0}, seed=1)] == [t.ids for t in plain]
    assert [t.ids for t in gated.generate(2, "The market", {"alpha": 3.0, "beta": -9.0}, seed=1)] != [
        t.ids for t in plain
    ]
    assert [setting.name for setting in gated.controls] == ["alpha", "beta"] and not bare.controls
    gated.module.alpha = 0.0  # the model's own strength is the default
    assert [t.ids for t in gated.generate(2, "The market", seed=1)] == [t.ids for t in plain]
    generator = make_generator()
    controls = [{"alpha": 0.0}, {"alpha": 0.5}, {"alpha": 2.0, "beta": -8.0}]
    together = generator.generate(3, PROMPTS, controls, seed=4)
    for row in range(3):
        alone = generator.generate(1, PROMPTS[row], controls[row], seed=4, rows=[row])
        assert alone[0] == together[row]
    generator = make_generator()
    generator.module.train()
    (text,) = generator.generate(1, seed=0, max_new_tokens=3)
    assert text.ids[0] == generator.vocabulary.bos_id and len(text.ids) == 4
    assert generator.module.training
    generator = make_generator()
    generator.vocabulary = SimpleNamespace(encode=lambda text: [], bos_id=None)
    with pytest.raises(UserError, match="prompt is empty"):
        generator.generate(1, "", seed=0)


@pytest.mark.parametrize("penalty_on", ["logits", "log_probabilities"])
def test_only_the_penalty_on_log_probabilities_is_blind_to_a_number_added_to_all_logits(penalty_on):
    """Deviation 13."""
    (penalty, *_) = decoding(penalty_on=penalty_on, temperature=1.0).rules()
    ids, scores = torch.tensor([[0, 2]]), torch.tensor([[1.0, 0.5, -1.0, 0.2]], dtype=torch.float64)
    here, there = (penalty(ids, scores + shift).softmax(-1) for shift in (0.0, 7.0))
    assert torch.allclose(here, there, atol=1e-12) == (penalty_on == "log_probabilities")
    bare = scores.softmax(-1)
    assert float(here[0, [0, 2]].sum()) < float(bare[0, [0, 2]].sum())


def test_the_logits_penalty_can_even_raise_its_tokens_share_of_the_rest():
    """All logits low: the seen token's is multiplied into the depths, whatever its probability was."""
    (on_logits, *_), (on_p, *_) = (decoding(penalty_on=name).rules() for name in ("logits", "log_probabilities"))
    ids, scores = torch.tensor([[0]]), torch.tensor([[-20.0, -21.0]], dtype=torch.float64)
    before = float(scores.softmax(-1)[0, 0])
    assert float(on_logits(ids, scores).softmax(-1)[0, 0]) < 0.1 * before
    assert float(on_p(ids, scores).softmax(-1)[0, 0]) > 0.9 * before


def test_beyond_the_context_the_newest_tokens_are_read_anew(make_generator):
    """Against whole prefixes of the newest tokens, recomputed without a cache."""
    generator = make_generator({"slide": 10})
    module = generator.module.eval()
    (text,) = generator.generate(1, PROMPTS[0], seed=None, max_new_tokens=70)
    ids = list(generator.vocabulary.encode(PROMPTS[0]))
    first = 0
    for _ in range(70):
        if len(ids) - first > module.backbone.context:
            first = len(ids) - 1 - generator.decoding.slide
        with torch.no_grad():
            scores = module({"input_ids_BT": torch.tensor([ids[first:]])}).scores_BTV[0, -1]
        seen = torch.tensor(sorted(set(ids)))
        scores[seen] = torch.where(scores[seen] > 0, scores[seen] / 1.2, scores[seen] * 1.2)
        ids.append(int(scores.argmax()))
    assert list(text.ids) == ids and len(ids) > 2 * module.backbone.context
    with pytest.raises(UserError, match=r"decoding\.slide=32"):
        make_generator({"slide": 32})


# huggingface: The gate on a Hugging Face causal LM: the LM frozen, its own head, generation, the commands of the docum


def save(folder: Path, size: int) -> str:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=size, n_positions=32, n_embd=16, n_layer=1, n_head=2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return str(folder)


def gated(vocabulary, settings, path: str, **options) -> IdeaGateModule:
    backbone = HuggingFaceBackbone(path=path, **options)
    return IdeaGateModule(vocabulary=vocabulary, backbone=backbone, **settings)


def test_adapters_are_trained_with_the_gate(vocabulary, settings, batch, tmp_path):
    module = gated(vocabulary, settings, save(tmp_path, len(vocabulary) + 4))
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert trained and all(name.startswith("idea_head.") for name in trained)
    module.losses(batch)["loss"].backward()
    assert module.idea_head.inner.weight.grad.any()
    with torch.no_grad():
        own = module.backbone.model(input_ids=batch["input_ids_BT"]).logits
        output = module(batch)
    assert torch.allclose(output.token_BTV, own, atol=1e-4)
    assert output.idea_BTV.shape == own.shape
    assert len(module.stopword_mask_V) == len(vocabulary) + 4
    lora = {"rank": 2, "alpha": 4}
    module = gated(vocabulary, settings, save(tmp_path, len(vocabulary)), frozen=False, lora=lora)
    module.losses(batch)["loss"].backward()
    named = {name for name, p in module.named_parameters() if p.grad is not None and p.grad.any()}
    assert any("lora" in name for name in named) and any("idea_head" in name for name in named)
    assert not any(p.grad is not None for name, p in module.named_parameters() if "wte" in name)
    module = gated(vocabulary, settings | {"gated": False}, save(tmp_path, len(vocabulary)))
    module._trainer = SimpleNamespace(estimated_stepping_batches=10)
    with pytest.raises(UserError, match="nothing to train"):
        module.configure_optimizers()


def test_generation_uses_the_models_cache(vocabulary, settings, tmp_path):
    module = gated(vocabulary, settings, save(tmp_path, len(vocabulary))).eval()
    torch.nn.init.normal_(module.idea_head.outer.weight, std=2.0)
    decoding = IdeaGateDecoding(temperature=1.0, repetition_penalty=1.0, max_new_tokens=5)
    generator = decoding.generator(module, SimpleNamespace(vocabulary=vocabulary))
    for text in generator.generate(2, ["The market", "Traders pay a"], {"alpha": 1.5}, seed=None):
        ids = list(text.ids[: text.prompt_length])
        module.alpha = 1.5
        for _ in range(5):
            with torch.no_grad():
                ids.append(int(module({"input_ids_BT": torch.tensor([ids])}).scores_BTV[0, -1].argmax()))
        assert list(text.ids) == ids


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "papers" / "idea_gate.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("On a pretrained model only the head")[2].partition("\n### ")[0]
COMMANDS = [line for line in SECTION.splitlines() if line.startswith("lit-ctg ")]
QUICK = ("size=smoke", "trainer.accelerator=cpu")


@pytest.fixture(scope="module")
def padded(tmp_path_factory) -> Path:
    """A model with its tokenizer; the model has more output rows than the tokenizer has tokens, as many have."""
    folder = tmp_path_factory.mktemp("padded")
    words = make_tokenizer(["The chemical reaction of the acid with the solution produced a salt."] * 4, 315)
    model = make_gpt2(len(words) + 7, layers=1, dim=16, heads=2, positions=256, end=words.eos_token_id, seed=0)
    words.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.mark.long
def test_the_documented_commands_and_code_on_a_padded_model(padded, run_cli, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    first, lora = COMMANDS
    assert "lora" in lora
    others = [
        first.replace("train", "generate", 1) + " prompt='The stock market is' control.alpha=1.0",
        lora.replace("idea_gate/main", "idea_gate/baseline") + " ~backbone.feedforward_dim",
    ]
    for line in (*COMMANDS, *others):
        code, out, err = run_cli(*(word.replace("<model>", str(padded)) for word in shlex.split(line)[1:]), *QUICK)
        assert code == 0 and out.strip(), f"{line}: {err}"
    records = {path: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("run.json")}
    frozen = next(path for path, record in records.items() if record["config"]["backbone"]["frozen"])
    numbers = records[frozen]["metrics"]
    assert 0 < numbers["val/idea/average_precision"]["value"] < 1
    assert {"val/ungated/loss", "topic/gate_off/all/long/stickiness"} <= set(numbers)
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, flags=re.S)
    capsys.readouterr()
    exec(code.replace("<model>", str(padded)).replace("<run>", str(frozen.parent)), {})
    assert capsys.readouterr().out.startswith("The stock market is")


@pytest.mark.long
def test_the_matched_baseline_says_what_to_leave_out(padded, run_cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    model = ["backbone=huggingface", f"backbone.path={padded}", *QUICK]
    own = ["data/tokenizer=huggingface", f"data.tokenizer.path={padded}"]
    for words, message in (
        (["baseline", *own], "~backbone.feedforward_dim"),
        (["baseline", *own, "~backbone.feedforward_dim"], "gate_off results of experiment=idea_gate/main"),
        (["main"], "data/tokenizer=huggingface data.tokenizer.path="),  # a tokenizer that the model does not have
    ):
        code, _, err = run_cli("train", f"experiment=idea_gate/{words[0]}", *model, *words[1:])
        assert code == 2 and message in err
