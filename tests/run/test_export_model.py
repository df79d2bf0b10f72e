"""`lit-ctg export-model`: every paper's model in a process that knows nothing of lit_ctg, with our logits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lit_ctg.config import compose, plain
from lit_ctg.data.huggingface_tokenizer import fast_tokenizer
from lit_ctg.errors import UserError
from lit_ctg.network.portable import Portable
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.export_model import LISTING, TOLERANCE, check_target, compare, generation, main, portable, write

SMALL = ("size=smoke", "data.sample_size=3000")
# name -> words; those of stock=True need no code of ours
MODELS: dict[str, tuple[str, ...]] = {
    "codes": ("experiment=control_code/transformer", *SMALL),
    "code_token": ("experiment=control_code/transformer", "model.injection=prompt", *SMALL),
    "code_attention": ("experiment=control_code/attention", *SMALL),
    "gru": ("experiment=control_code/gru", *SMALL),
    "lstm": ("experiment=nslm/numbers_grounded", *SMALL),
    "awd_lstm": ("experiment=nslm/awd_lstm", *SMALL),
    "nnlm_transformer": ("experiment=nslm/numbers_transformer", *SMALL),
    "fusion": ("experiment=semantic_fusion/main", "size=smoke"),
    "fusion_baseline": ("experiment=semantic_fusion/baseline", "size=smoke"),
    "gate": ("experiment=idea_gate/main", *SMALL),
    "lift": ("experiment=idea_gate/branch_lift", *SMALL, "model.start_from=null"),
    "plain": ("experiment=idea_gate/baseline", *SMALL),
    "graphmax": ("experiment=graphmax/main", *SMALL),
    "bayesian": ("experiment=graphmax/bayesian", *SMALL),
    "adaptive": ("experiment=nslm/numbers", *SMALL, "model.samples=null", "model.cutoffs=[100,300]"),
    "text_fusion": ("experiment=semantic_fusion/reviews", *SMALL),
}
# on a pretrained model that is trained further; the first two through adapters
LORA = ("backbone.frozen=false", "backbone.lora={rank:2,alpha:4}")
PRETRAINED = {
    "gate_lora": ("experiment=idea_gate/pretrained", *LORA),
    "fusion_lora": ("experiment=semantic_fusion/pretrained", *LORA),
    "graphmax_tuned": ("experiment=graphmax/in_domain_pretrained",),
}
STOCK = ("plain", "graphmax", "text_fusion", *PRETRAINED)
# the same classes in another arm: tried with -m slow
SELDOM = ("code_token", "nnlm_transformer", "fusion_baseline", "gate")
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in SELDOM else ()) for name in (*MODELS, *PRETRAINED)]

# what the fresh process does: load, compare, and generate alone and padded in a batch
FRESH = """
import json, sys
sys.modules["lit_ctg"] = None  # any import of it fails
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.manual_seed(0)
for name, stock in json.loads(sys.argv[1]).items():
    folder = f"{sys.argv[2]}/{name}"
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=not stock).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=not stock)
    known = load_file(f"{folder}.safetensors")
    ids, ours = known.pop("ids"), known.pop("scores")
    with torch.no_grad():
        theirs = model(input_ids=ids, **known).logits
        change = float((ours - theirs).abs().max() / max(1.0, float(ours.abs().max())))
        # rows that begin with padding say what they say alone
        mask = torch.ones_like(ids)
        mask[1, :3] = 0
        # of GPT-2 only generate() turns the mask into positions
        known_places = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if hasattr(model, "transformer") else {}
        masked = model(input_ids=ids, attention_mask=mask, **known_places, **known).logits[1, 3:]
        alone = model(input_ids=ids[1:, 3:], **{key: value[1:] for key, value in known.items()}).logits[0]
        padded = float((masked - alone).abs().max() / max(1.0, float(ours.abs().max())))
    options = dict(do_sample=False, max_new_tokens=5, pad_token_id=0, eos_token_id=None)
    batch = model.generate(ids[:, :6], attention_mask=mask[:, :6], **options, **known)[1, 6:].tolist()
    own = {key: value[1:] for key, value in known.items()}
    single = model.generate(ids[1:, 3:6], **options, **own)[0, 3:].tolist()
    loss = float(model(input_ids=ids, labels=ids, **known).loss)
    print(json.dumps({"name": name, "change": change, "padded": padded, "same": batch == single, "loss": loss,
                      "kind": type(model).__module__.split(".")[0], "fast": tokenizer.is_fast,
                      "words": len(tokenizer)}), flush=True)
"""


def built(words: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """Return configuration, data and a model whose weights are large enough to matter."""
    cfg = compose(words)
    datamodule = build_datamodule(cfg)
    module = build_model(cfg, datamodule).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.2)
    return cfg, datamodule, module


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Packed corpora of all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIT_CTG_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: None
) -> dict[str, dict[str, Any]]:
    """What the fresh process says of every model that a test asks for."""
    asked = {item.callspec.params.get("name") for item in request.session.items if "told" in item.fixturenames}
    place = tmp_path_factory.mktemp("exports")
    with torch.no_grad():
        # the exported plain model is the one that these begin with
        named = {name: (*words, *SMALL, f"backbone.path={place / 'plain'}") for name, words in PRETRAINED.items()}
        asked |= {"plain"} if asked & set(named) else set()
        for name, words in {**MODELS, **named}.items():
            if name not in asked:
                continue
            cfg, datamodule, module = built(words)
            made = portable(cfg.paper, module, datamodule)
            compare(made, place / name)
            (place / name).mkdir()
            write(made, module, place / name, plain(cfg), None)
            ids = torch.randint(0, made.model.config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(2))
            saved = {"ids": ids, "scores": made.ours(ids).contiguous(), **made.options}
            save_file(saved, place / f"{name}.safetensors")
    fresh = subprocess.run(
        [
            sys.executable,
            "-c",
            FRESH,
            json.dumps({name: name in STOCK for name in (*MODELS, *PRETRAINED) if name in asked}),
            str(place),
        ],
        capture_output=True,
        text=True,
        env={"PATH": "", "HF_HOME": str(place / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        cwd=place,
    )
    assert fresh.returncode == 0, fresh.stderr[-3000:]
    lines = [json.loads(line) for line in fresh.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: {**line, "folder": str(place / line["name"])} for line in lines}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_process_has_our_logits(told: dict[str, dict[str, Any]], name: str) -> None:
    found = told[name]
    assert found["change"] <= TOLERANCE and found["padded"] <= TOLERANCE
    assert found["same"], "a padded row of a batch generates what it generates alone"
    assert 0 < found["loss"] < float("inf")
    assert found["kind"] == ("transformers" if name in STOCK else "transformers_modules")
    assert found["fast"]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_holds_what_the_hub_wants(told: dict[str, dict[str, Any]], name: str) -> None:
    folder = Path(told[name]["folder"])
    files = {path.name for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= files
    assert not [file for file in files if file.endswith((".bin", ".pt", ".ckpt", ".pkl"))]
    code = [file for file in files if file.endswith(".py")]
    assert len(code) == (name not in STOCK)
    for file in code:
        text = (folder / file).read_text()
        assert "import lit_ctg" not in text and "from lit_ctg" not in text
        assert "trust_remote_code=True" in (folder / "README.md").read_text()
    settings = json.loads((folder / "generation_config.json").read_text())
    greedy = name in ("codes", "code_token", "code_attention", "gru")  # as their runs write where corrected
    assert settings["do_sample"] is not greedy
    assert ("top_k" in settings) is not greedy, "left out, transformers draws from 50 tokens"


def test_a_model_that_says_something_else_is_not_written(tmp_path: Path) -> None:
    cfg, datamodule, module = built(("experiment=semantic_fusion/baseline", "size=smoke"))
    made = portable(cfg.paper, module, datamodule)
    with torch.no_grad():
        made.model.embedding.weight[3] += 0.01
        with pytest.raises(UserError, match=r"differ from the run's by .*: not written"):
            compare(made, tmp_path)


def test_no_folder_of_something_else_is_written_over(tmp_path: Path) -> None:
    """Another model's folder holds a config.json as well."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match=r"holds config\.json, which is not part of an earlier export"):
        check_target(tmp_path)
    (tmp_path / LISTING).write_text(json.dumps({"files": ["config.json"]}))
    with pytest.raises(UserError, match=r"holds sub/thesis\.txt"):
        check_target(tmp_path)
    (tmp_path / "sub" / "thesis.txt").unlink()
    check_target(tmp_path)
    (tmp_path / LISTING).write_text("[]")
    with pytest.raises(UserError, match=r"holds config\.json"):
        check_target(tmp_path)
    with pytest.raises(UserError, match="is a file"):
        check_target(tmp_path / "config.json")
    check_target(tmp_path / "none")


def test_an_export_writes_as_its_run_does() -> None:
    """Left out, ``top_k`` would be transformers' 50; what ``CodeDecoding`` does not use does not count."""
    made = Portable(None, lambda ids_BT: ids_BT)
    assert generation(made, {}) == {"do_sample": True, "top_k": 0, "top_p": 1.0}
    nslm = {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 60, "grammar": None}
    assert generation(made, nslm) == {"do_sample": True, "top_k": 0, **{n: nslm[n] for n in nslm if n != "grammar"}}


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ((), {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}),
        (("decoding.choice=sample",), {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 0.9}),
        (("decoding.choice=uniform_top_k",), {"do_sample": True, "temperature": 1.0, "top_k": 10, "top_p": 1.0}),
    ],
)
def test_an_exported_model_with_codes_writes_as_its_run_does(
    words: tuple[str, ...], own: dict[str, Any], cache: None
) -> None:
    cfg, datamodule, module = built(("experiment=control_code/transformer", *SMALL, *words))
    made = portable(cfg.paper, module, datamodule)
    unknown = module.vocabulary.unknown_id
    always = {"max_new_tokens": 50, "suppress_tokens": [unknown], "eos_token_id": None}
    assert generation(made, plain(cfg)["decoding"]) == {**own, **always}
    for name, value in generation(made, plain(cfg)["decoding"]).items():
        setattr(made.model.generation_config, name, value)
    made.model.generation_config.validate(strict=True)
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with torch.no_grad():
        made.model.output.bias[unknown] = 100.0
        options = {"control_code": torch.tensor([0, 1]), "use_cache": False}
        written = made.model.generate(ids, max_new_tokens=4, pad_token_id=0, **options)
    assert not (written[:, 3:] == unknown).any()


def test_codes_of_an_exported_model_are_checked(cache: None) -> None:
    cfg, datamodule, module = built(("experiment=control_code/transformer", *SMALL))
    model = portable(cfg.paper, module, datamodule).model
    ids, count = torch.tensor([[1, 2, 3], [4, 5, 6]]), len(module.sources)
    with torch.no_grad():
        one = model(ids, control_code=1).logits
        for same in (torch.tensor([1, 1]), [1, 1], [1]):
            assert torch.equal(model(ids, control_code=same).logits, one)
        weights = torch.eye(count)[[1]]
        for mixed in (weights, weights[0], weights.expand(2, -1), weights[0].tolist()):
            assert torch.allclose(model(ids, control_weights=mixed).logits, one, atol=1e-6)
        for code in (-1, count, 0.5, [0, count]):
            with pytest.raises(ValueError, match=rf"control_code=.*: the codes are \(0: {module.sources[0]}"):
                model(ids, control_code=code)
        with pytest.raises(ValueError, match="3 codes for 2 rows"):
            model(ids, control_code=[0, 1, 0])
        with pytest.raises(ValueError, match=r"shape \(3, 2\): give 2 weights"):
            model(ids, control_weights=torch.ones(3, 2))


# argument of generate, ways to say "the same for all", ways to say "one a prompt"
FORMS: dict[str, tuple[str, list[Any], list[Any]]] = {
    "codes": (
        "control_code",
        [1, [1], torch.tensor(1), torch.tensor([1]), torch.tensor([1, 1])],
        [[0, 1], torch.tensor([0, 1])],
    ),
    "gate": (
        "alpha",
        [0.3, [0.3], torch.tensor(0.3), torch.tensor([0.3, 0.3])],
        [[0.0, 0.3], torch.tensor([0.0, 0.3])],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_beams_and_sequences_have_the_code_or_strength_of_their_prompt(name: str, cache: None) -> None:
    """``generate`` repeats the rows of tensors alone; numbers and lists had another length than the rows then."""
    cfg, datamodule, module = built(MODELS[name])
    model = portable(cfg.paper, module, datamodule).model
    argument, alike, apart = FORMS[name]
    ids = torch.tensor([[11, 12, 13], [14, 15, 16]])
    options = {"max_new_tokens": 4, "num_beams": 2, "num_return_sequences": 2, "do_sample": False, "pad_token_id": 0}
    options["use_cache"] = hasattr(model, "transformer")  # as `lit-ctg export-model` writes it

    def write(value: Any) -> torch.Tensor:
        made: torch.Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), **{argument: value}, **options)
        return made

    with torch.no_grad():
        for same in (alike, apart):
            first, *others = map(write, same)
            assert len(first) == 4 and all(torch.equal(first, other) for other in others)
        if name == "codes":
            weights = torch.eye(len(module.sources))[1]
            argument, first = "control_weights", write(torch.tensor([1]))
            assert all(torch.equal(write(form), first) for form in (weights, weights[None], weights.expand(2, -1)))


@pytest.mark.parametrize("name", ["gate", "lstm"])
def test_gradients_of_an_exported_model_can_be_accumulated(name: str, cache: None, tmp_path: Path) -> None:
    """Trainer took the loss for one that knows how many steps there are, and added instead of averaging."""
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    cfg, datamodule, module = built(MODELS[name])
    model = portable(cfg.paper, module, datamodule).model
    ids = torch.randint(0, model.config.vocab_size, (4, 6), generator=torch.Generator().manual_seed(3))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    losses = []
    for batch, steps in ((4, 1), (1, 4)):
        options = {"output_dir": str(tmp_path), "report_to": [], "use_cpu": True, "logging_steps": 1, "max_steps": 1}
        given = TrainingArguments(
            per_device_train_batch_size=batch, gradient_accumulation_steps=steps, learning_rate=0.0,
            save_strategy="no", disable_tqdm=True, **options,
        )  # fmt: skip
        losses.append(Trainer(model, given, train_dataset=rows).train().training_loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.1), "but for dropout"


@pytest.mark.parametrize("name", ["fusion", "lstm"])
def test_an_exported_model_runs_in_half_precision(name: str, cache: None) -> None:
    cfg, datamodule, module = built(MODELS[name])
    model = portable(cfg.paper, module, datamodule).model
    ids = torch.randint(0, model.config.vocab_size, (2, 6), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        whole = model(ids).logits
        half = model.to(torch.bfloat16)(ids).logits
    near = 0.1 * float(whole.abs().max())
    assert half.dtype == torch.bfloat16 and torch.allclose(half.float(), whole, rtol=0.1, atol=near)


@pytest.mark.parametrize("name", ["lstm", "gate", "plain"])
def test_an_exported_model_goes_on_where_its_run_does(name: str, cache: None) -> None:
    """The token that ends a text for others is one of many in these runs (of the NNLM, the end of a line)."""
    cfg, datamodule, module = built(MODELS[name])
    made = portable(cfg.paper, module, datamodule)
    assert generation(made, plain(cfg)["decoding"])["eos_token_id"] is None
    tokenizer, _ = fast_tokenizer(module.vocabulary)
    text = "the war\nin the\n\nwar"
    assert tokenizer.decode(tokenizer(text).input_ids) == module.vocabulary.decode(module.vocabulary.encode(text))


def test_a_missing_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="checkpoint"):
        main(str(tmp_path))
