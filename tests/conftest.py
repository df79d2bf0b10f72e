"""Shared fixtures: a tiny language model and corpus, and runs of the real command line in a scratch folder."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# one thread per test worker: reproducible to the bit, and two workers share two cores
THREADS = os.environ.get("LIT_CTG_TEST_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", THREADS)
os.environ.setdefault("WANDB_MODE", "offline")
# before Lightning, which imports huggingface_hub, which reads it once
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import lightning  # noqa: E402
import omegaconf  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hydra._internal.core_plugins import file_config_source  # noqa: E402
from hydra.core.config_store import ConfigStore  # noqa: E402
from hydra.core.plugins import Plugins  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

torch.set_num_threads(int(THREADS))
if os.environ.get("LIT_CTG_TEST_HIDE_NUMBA"):
    sys.modules["numba"] = None  # type: ignore[assignment] # as where it is not installed

OUTPUTS = str(Path(__file__).resolve().parents[1] / "outputs")


def _keep_out_of_outputs(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a test that reads, or writes, where a user's runs lie: it would depend on what they left there."""
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | os.PathLike):
        place = os.fspath(arguments[0])
        if event == "open" and arguments[1] is None and not os.path.isabs(place):
            return  # by os.open, perhaps below a folder that is open
        place = os.path.abspath(place)
        assert not f"{place}{os.sep}".startswith(OUTPUTS + os.sep), f"{place}: give the test a folder of its own"


sys.addaudithook(_keep_out_of_outputs)

# hundreds of tests compose configurations, and half of that is parsing the same files and words: once is enough
_PARSED: dict[str, bytes] = {}


def _load(file: Any) -> Any:
    text = file.read()
    if text not in _PARSED:
        file.seek(0)
        _PARSED[text] = pickle.dumps(OmegaConf.load(file))
    return pickle.loads(_PARSED[text])


Plugins.instance()  # which executes its modules anew
if hasattr(file_config_source, "OmegaConf"):  # Hydra's own
    file_config_source.OmegaConf = SimpleNamespace(load=_load)
omegaconf.base.parse = omegaconf._utils.parse = functools.lru_cache(maxsize=None)(omegaconf.base.parse)
ConfigStore.__deepcopy__ = lambda self, memo: self  # it copies what it gives away

# what another processor could compute otherwise: kernels, solvers, losses, goldens
NUMERICAL = (
    "golden/test_golden.py",
    "network/test_gpt2.py",
    "network/test_transformer.py",
    "papers/control_code/test_fast.py",
    "papers/graphmax/fast/test_kernels.py",
    "papers/graphmax/test_model_step.py",
    "papers/graphmax/test_solver.py",
    "papers/idea_gate/fast/test_fused.py",
    "papers/nslm/test_awd_lstm.py",
    "papers/nslm/test_heads.py",
)


# of the runs that are cut off and go on, two quick papers; all others take minutes and are tried on this processor only
RESUME = re.compile(r"test_an_epoch_that_was_cut_off_begins_anew\[(graphmax|idea_gate)/main-0\]")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only numerical tests are wanted, do not import the other files."""
    wanted = (*NUMERICAL, "integration/test_resume.py")
    other = collection_path.name.startswith("test_") and not collection_path.as_posix().endswith(wanted)
    return True if other and config.option.markexpr.startswith("numerical") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the numerical tests."""
    for item in items:
        if item.path.as_posix().endswith(NUMERICAL) or RESUME.fullmatch(item.name):
            item.add_marker(pytest.mark.numerical)


@pytest.fixture
def run_cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return ``run(*words) -> (exit code, stdout, stderr)`` of ``lit-ctg`` in a scratch folder."""
    from lit_ctg.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def full_disk() -> Callable[[int], Any]:
    """Return a context in which no file grows beyond some bytes, as on a full disk."""

    @contextlib.contextmanager
    def limited(size: int) -> Iterator[None]:
        resource = pytest.importorskip("resource")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


class TinyLanguageModel(lightning.LightningModule):
    """Embedding and tied head: the smallest thing callbacks can be tried on."""

    def __init__(self, vocabulary_size: int = 7, dim: int = 4) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary_size, dim)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        from lit_ctg.core.model import LMOutput

        hidden_BTD = self.dropout(self.embedding(batch["input_ids_BT"]))
        return LMOutput(hidden_BTD @ self.embedding.weight.T, hidden_BTD)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        scores = self(batch).scores_BTV
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch["target_ids_BT"].flatten())

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> Any:
        return self(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TinyData(lightning.LightningDataModule):
    """Four batches of random ids."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        ids_NT = torch.randint(3, 7, (8, 6), generator=generator)
        self.rows = [self.batch(ids_NT[start : start + 2]) for start in range(0, 8, 2)]

    @staticmethod
    def batch(ids_BT: torch.Tensor) -> dict[str, torch.Tensor]:
        target_BT = ids_BT[:, 1:]
        mask_BT = torch.ones_like(target_BT, dtype=torch.bool)
        return {
            "input_ids_BT": ids_BT[:, :-1],
            "target_ids_BT": target_BT,
            "mask_input_BT": mask_BT,
            "mask_target_BT": mask_BT,
        }

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.rows, batch_size=None)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.rows, batch_size=None)


@pytest.fixture
def tiny() -> Callable[[], tuple[TinyLanguageModel, TinyData]]:
    """Return a maker of (module, datamodule), the same at every call."""

    def make() -> tuple[TinyLanguageModel, TinyData]:
        torch.manual_seed(0)
        return TinyLanguageModel(), TinyData()

    return make


@pytest.fixture
def trainer_of(tmp_path: Path) -> Callable[..., lightning.Trainer]:
    """Return a maker of silent CPU trainers."""

    def make(*callbacks: lightning.Callback, **options: Any) -> lightning.Trainer:
        chosen = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path}
        chosen |= options
        return lightning.Trainer(
            accelerator="cpu",
            callbacks=list(callbacks),
            num_sanity_val_steps=chosen.pop("num_sanity_val_steps", 0),
            enable_progress_bar=chosen.pop("enable_progress_bar", False),
            enable_model_summary=False,
            **chosen,
        )

    return make


WORDS = ("<end>", "the", "a", "acid", "metal", "war", "began", "in", "1914", "1918", "1939", "good", "bad", ".")


def make_tokenizer(words: tuple[str, ...] = WORDS) -> Any:
    """Return a fast tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    engine = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<end>"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=engine, unk_token="<end>", eos_token="<end>", bos_token="<end>")


def make_model(size: int, **options: Any) -> Any:
    """Return a random GPT-2 of one layer with sharp scores, so that greedy choices do not hang on rounding."""
    import transformers

    given = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2} | options
    config = transformers.GPT2Config(vocab_size=size, bos_token_id=0, eos_token_id=0, **given)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.wte.weight.mul_(20)
    return model


@pytest.fixture(scope="session")
def word_tokenizer() -> Any:
    """Of WORDS."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def word_model() -> Any:
    """Random, for WORDS."""
    return make_model(len(WORDS))


@pytest.fixture(scope="session")
def carried_controls() -> Callable[[], Any]:
    """Return a maker of one small control of every kind, by name (tests/controls.py)."""
    from tests.controls import controls

    return controls
