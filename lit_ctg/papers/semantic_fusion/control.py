"""Semantic fusion's controls for any model: the feature channel, steering by a lexicon, and grammars (sec. 2).

The channel is an adapter at the embedding (Eq. 2, 3) or after blocks and knows its model (a model of clauses has it
built in); lexicon and grammar are kept as texts and find their tokens in whatever tokenizer they are bound to.

Shape letters: B prompts, N rows, T positions, F features, D hidden size, V vocabulary, W lexicon words, C columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_ctg.control.base import (
    NO_TOKEN,
    Control,
    Prefix,
    Stage,
    Values,
    cast_like,
    layer_named,
    like_inputs,
    loaded,
    row_values,
)
from lit_ctg.control.trie import TokenTrie
from lit_ctg.core.generation import ControlSetting
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.decoding.grammar import FiniteStateGrammar
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion import bank as banks
from lit_ctg.papers.semantic_fusion.bank import Feature, FeatureBank
from lit_ctg.papers.semantic_fusion.channel import NAMES, BlockFusion, ChannelSetting, GatedFusion
from lit_ctg.papers.semantic_fusion.clause import PRONOUNS
from lit_ctg.papers.semantic_fusion.decode import CONTROLS, ClauseDecoding
from lit_ctg.papers.semantic_fusion.grammar import compile_for_text, load_grammar
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon, Speller

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

# the feature channel --------------------------------------------------------------------------------------------------


class FeatureChannel(Control):
    """Feeds the features of the text so far into embedding or blocks, replaced by requested features.

    Args:
        fuse: trained on the model: Eq. 2 and 3 at the embedding, or the fusion after blocks.
        bank: its features; bound to the model's tokenizer by ``bind``.
        name: see ``Control``.
    """

    kind, paper, stage = "feature_channel", "semantic_fusion", Stage.NETWORK
    excludes = frozenset({"feature_channel"})

    def __init__(self, fuse: GatedFusion | BlockFusion, bank: FeatureBank, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.fuse, self.bank = fuse.eval().requires_grad_(False), bank
        self.bound = hasattr(bank, "finder")
        self._tokenizer: Any = None

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        meaning = "share of what the channel adds to the states; 0: the model without it"
        return (ControlSetting("strength", meaning, 1.0, low=0.0, high=1.0), *self.bank.settings)

    def bind(self, tokenizer: Any) -> None:
        if tokenizer is self._tokenizer:
            return  # spelling thousands of words takes seconds
        self._tokenizer = None  # should the bank refuse this one
        self.bank.bind(HuggingFaceTokenizer.of(tokenizer))
        self.bound, self._tokenizer = True, tokenizer

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        _bound(self, self.bound or None)
        like = like_inputs(model)
        fuse = cast_like(self.fuse, like)
        self.bank.to(like.device)
        asked = ChannelSetting.of(values, self.bank.names, self.bank.groups)
        strength_B = values["strength"]
        running: tuple[Tensor, Tensor] = like.new_zeros(0), like.new_zeros(0)

        def put(_module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            nonlocal running
            ids_NT = prefix.newest(inputs[0])
            features_NtF = self.features(ids_NT, output.shape[1]).to(output)
            rows = len(output)
            replaced_N1F = row_values(asked.replaced_BF, rows).unsqueeze(1).to(output.device)
            asked_NtF = torch.where(
                replaced_N1F, row_values(asked.value_BF, rows).unsqueeze(1).to(output), features_NtF
            )
            real_Nt1 = (ids_NT[:, -output.shape[1] :] != NO_TOKEN).unsqueeze(-1)
            share_Nt1 = row_values(strength_B, rows).view(-1, 1, 1).to(output) * real_Nt1
            running = asked_NtF, share_Nt1
            if isinstance(fuse, BlockFusion):
                return output
            fused = output + share_Nt1 * (fuse(output, asked_NtF) - output)
            return torch.where(share_Nt1 > 0, fused, output)

        handles = [model.get_input_embeddings().register_forward_hook(put)]
        if isinstance(fuse, BlockFusion):
            handles += fuse.attach([layer_named(model, path, self.name) for path in fuse.paths], lambda: running)
        return handles

    def check_model(self, model: Any) -> None:
        super().check_model(model)
        for path in self._paths:
            layer_named(model, path, self.name)

    def features(self, ids_NT: Tensor, newest: int) -> Tensor:
        """Return the features [N, t, F] of the newest positions; padding is not a word."""
        return self.bank(ids_NT)[:, -newest:]

    @property
    def _paths(self) -> tuple[str, ...]:
        return self.fuse.paths if isinstance(self.fuse, BlockFusion) else ()

    def shape(self) -> dict[str, int]:
        project: Any = self.fuse.project
        return {"hidden_size": (project[0] if self._paths else project).out_features}

    def config(self) -> dict[str, Any]:
        bank = self.bank
        return {
            "gate": getattr(self.fuse, "gate", None) is not None,
            "lexicon": _lexicon_config(bank.lexicon),
            "features": {name: _feature_config(name, feature) for name, feature in bank.features.items()},
            "centres": bank.centres_3.tolist(),
            "temperature": float(bank.temperature),
            "blocks": list(self._paths),
        }

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.fuse.state_dict())

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> FeatureChannel:
        bank = FeatureBank(
            lexicon=Lexicon.of(**config["lexicon"]),
            features={name: _feature(settings) for name, settings in config["features"].items()},
            centres=config["centres"],
            temperature=config["temperature"],
        )
        if paths := config.get("blocks"):
            dim, features = tensors["project.0.weight"].shape
            return cls(loaded(lambda: BlockFusion(paths, dim, features), tensors), bank)
        dim, features = tensors["project.weight"].shape
        return cls(loaded(lambda: GatedFusion(dim, features, config["gate"]), tensors), bank)


def _bound(control: Control, part: Any) -> Any:
    """Return what a control finds in its tokenizer.

    Raises:
        UserError: None: it has no tokenizer yet.
    """
    if part is None:
        raise UserError(f"control {control.name} needs the tokenizer: Steered(model, controls, tokenizer=...)")
    return part


class ClauseChannel(Control):
    """Asks the channel of a model of clauses for features, in place of those of the text so far.

    The model contains the channel and its weights (``lit-ctg export-model``), so the control has none. It does for an
    exported model what the route ``channel`` of ``lit-ctg generate`` does for the model of a run.
    """

    kind, paper, stage = "clause_channel", "semantic_fusion", Stage.NETWORK
    excludes = frozenset({"clause_channel", "feature_channel"})

    def __init__(self, vocab_size: int, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.vocab_size = vocab_size

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        meaning = "share of the way from the features of the text to those asked for; 0: the model as it is"
        asked = (ControlSetting(name, what, low=0.0, high=1.0) for name, what in CONTROLS.items())
        return (ControlSetting("strength", meaning, 1.0, low=0.0, high=1.0), *asked)

    def check_model(self, model: Any) -> None:
        super().check_model(model)
        fuse = getattr(model, "fuse", None)
        if fuse is None or fuse.project.in_features != len(NAMES):
            raise UserError(
                f"control {self.name} asks the feature channel of a model of clauses, a {type(model).__name__} has "
                "none: use the model of its run (lit-ctg export-model)"
            )

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        asked = ChannelSetting.of(values)

        def put(_module: nn.Module, inputs: Any) -> Any:
            embedded_NTD, features_NTF = inputs
            value_N1F, replaced_N1F, strength_N1 = (
                row_values(part_B, len(features_NTF)).unsqueeze(1).to(features_NTF.device)
                for part_B in (asked.value_BF, asked.replaced_BF, values["strength"])
            )
            way_N1F = (replaced_N1F * strength_N1.unsqueeze(-1)).to(features_NTF)
            asked_NTF = features_NTF + way_N1F * (value_N1F.to(features_NTF) - features_NTF)
            return embedded_NTD, torch.where(way_N1F > 0, asked_NTF, features_NTF)

        return [model.fuse.register_forward_pre_hook(put)]

    def shape(self) -> dict[str, int]:
        return {"vocab_size": self.vocab_size}

    def config(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size}


# features of a bundle and what each is made of besides what all are
FEATURES: dict[type[Feature], tuple[str, ...]] = {
    banks.Graded: ("column", "sign"),
    banks.WordClass: ("word_class",),
    banks.Mark: ("marks",),
    banks.Recent: ("column", "sign", "half_life"),
}
KINDS = {kind.__name__: kind for kind in FEATURES}


def _feature_config(name: str, feature: Feature) -> dict[str, Any]:
    """Return a feature as plain values.

    Raises:
        UserError: its class is not ours: a bundle contains no code.
    """
    kind = type(feature)
    if kind not in FEATURES:
        raise UserError(
            f"feature '{name}' is a user-defined {kind.__name__}, which a bundle cannot carry: use "
            f"{', '.join(KINDS)}, or leave it out"
        )
    names = *FEATURES[kind], "group", "hindsight", "membership"
    return {"kind": kind.__name__, **{name: getattr(feature, name) for name in names}}


def _feature(settings: Mapping[str, Any]) -> Feature:
    return KINDS[settings["kind"]](**{name: value for name, value in settings.items() if name != "kind"})


def _lexicon_config(lexicon: Lexicon) -> dict[str, Any]:
    return {
        "words": list(lexicon.words),
        "columns": {name: list(values) for name, values in lexicon.columns.items()},
        "classes": list(lexicon.classes),
        "held_out": list(lexicon.held_out),
    }


# steering by a lexicon ------------------------------------------------------------------------------------------------


class LexiconSteering(Control):
    """Raises and lowers the words of a lexicon, by their grades and classes, in any tokenizer.

    The paper steers one slot of a grammar (sec. 2); here a word counts anywhere. A word of several tokens gains as much
    as one of a single token: its first token gains the mean of the words that begin with it, the next one the
    difference, and a text that leaves the word loses its gain again (the sum over a word's tokens is exactly the word's
    own gain). A bare blank, or a byte of a character, belongs to too many other words and gains nothing.

    Args:
        lexicon: words, grades, classes.
        gain: nats per unit, the default strength.
        name: see ``Control``.
    """

    kind, paper, stage = "lexicon", "semantic_fusion", Stage.LOGITS
    of_ids = False

    def __init__(self, lexicon: Lexicon, *, gain: float = 2.0, name: str | None = None) -> None:
        super().__init__(name=name)
        self.lexicon, self.gain = lexicon, gain
        self.parts = (*lexicon.columns, *sorted(set(lexicon.classes) - {"", "strength", *lexicon.columns}))
        self.trie: TokenTrie | None = None
        self._tokenizer: Any = None

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        meaning = "nats that a weight of 1 adds to a word of grade 1; 0: no steering"
        return (
            ControlSetting("strength", meaning, self.gain, low=0.0),
            *(ControlSetting(f"to_{part}", f"weight of {part}; below 0: away from it", None, -1.0, 1.0)
              for part in self.parts),
        )  # fmt: skip

    def off(self, values: Values) -> Tensor:
        return super().off(values) | (self._weights(values) == 0).all(1)

    def _weights(self, values: Values) -> Tensor:
        """Return the weights [B, C] of columns and classes."""
        return torch.stack([values[f"to_{part}"] for part in self.parts], dim=1).nan_to_num(0.0)

    def grades(self) -> Tensor:
        """Return the grades [W, C] of the words, 1 for a word of a class."""
        columns = [torch.tensor(self.lexicon.columns[part], dtype=torch.float64) if part in self.lexicon.columns
                   else torch.tensor([float(own == part) for own in self.lexicon.classes], dtype=torch.float64)
                   for part in self.parts]  # fmt: skip
        return torch.stack(columns, dim=1)

    def bind(self, tokenizer: Any) -> None:
        if tokenizer is self._tokenizer:
            return
        vocabulary = HuggingFaceTokenizer.of(tokenizer)
        speller = Speller(vocabulary)
        spellings = speller.spell_all(self.lexicon.words, f"control {self.name}")
        by_word = speller.by_word
        self.trie = TokenTrie.of(
            spellings, None if by_word else speller.begins_V, None if by_word else speller.ends_open_V
        )
        grades_WC = self.grades()
        self._worth_UC, self._own_UC = self.trie.means(grades_WC), self.trie.own(grades_WC)
        self._worth_UC[self.trie.unspelled(vocabulary.decode)] = 0.0
        self._tokenizer = tokenizer

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        trie = _bound(self, self.trie)
        weights_BC = values["strength"].unsqueeze(1) * self._weights(values)
        return _Gains(trie, self._worth_UC, self._own_UC, weights_BC)

    def config(self) -> dict[str, Any]:
        return {"lexicon": _lexicon_config(self.lexicon), "gain": self.gain}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> LexiconSteering:
        return cls(Lexicon.of(**config["lexicon"]), gain=config["gain"])


class _Gains(ScoreRule):
    """Adds the gain of each next token towards lexicon words.

    Args:
        trie: spellings of the words.
        worth_UC: of each node, the mean grade (``LexiconSteering.grades``) of the words that begin so.
        own_UC: of each node, the grade of the word that ends there.
        weights_BC: of the columns, one row per prompt.
    """

    def __init__(self, trie: TokenTrie, worth_UC: Tensor, own_UC: Tensor, weights_BC: Tensor) -> None:
        self.trie, self.weights_BC = trie, weights_BC
        self.worth_UC, self.own_UC, self.is_end_U = worth_UC, own_UC, trie.is_end
        self.begins_K, self.first_K = trie.children(0)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        weights_NC = row_values(self.weights_BC, len(scores))
        gains_NV = torch.zeros(scores.shape, dtype=torch.float64)
        goes_on_V = self.trie.continuing(scores.shape[1])
        goes_on_K = goes_on_V[self.begins_K]
        for row, (node, open_) in enumerate(self.trie.nodes(input_ids)):
            worth_U = self.worth_UC @ weights_NC[row]
            # leaving the path: a word is complete if the next token does not make it longer
            said = float(self.own_UC[node] @ weights_NC[row]) - float(worth_U[node])
            if node:
                gains_NV[row] = said if bool(self.is_end_U[node]) else -worth_U[node]
                if open_:
                    gains_NV[row, goes_on_V] = -worth_U[node]
            begun_K = worth_U[self.first_K]
            gains_NV[row, self.begins_K] += torch.where(goes_on_K, 0.0, begun_K) if open_ else begun_K
            if node:
                ids, following = self.trie.children(node)
                gains_NV[row, ids] = worth_U[following] - worth_U[node]
        return scores + gains_NV.to(scores)


# grammars -------------------------------------------------------------------------------------------------------------


class Grammar(Control):
    """Allows only what a grammar permits from the beginning of the text.

    Args:
        content: of a grammar file (``papers/semantic_fusion/grammar``).
        groups: named lists of words for it, such as the classes of a lexicon.
        agreement: feature -> word -> value, for it.
        name: see ``Control``.
    """

    kind, paper, stage = "grammar", "semantic_fusion", Stage.MASK
    of_ids = False
    excludes = frozenset({"grammar"})

    def __init__(
        self,
        content: Mapping[str, Any],
        *,
        groups: Mapping[str, Sequence[str]] | None = None,
        agreement: Mapping[str, Mapping[str, str]] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.content, self.groups, self.agreement = dict(content), dict(groups or {}), dict(agreement or {})
        self.machine: FiniteStateGrammar | None = None
        self.end_id: Any = None
        self._tokenizer: Any = None

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        return (ControlSetting("strength", "1: only what the grammar allows; 0: anything", 1.0, low=0.0, high=1.0),)

    def bind(self, tokenizer: Any) -> None:
        if tokenizer is self._tokenizer:
            return
        vocabulary = HuggingFaceTokenizer.of(tokenizer)
        start: Any = vocabulary.eos_id if vocabulary.bos_id is None else vocabulary.bos_id
        self.start_id, self.end_id = start, vocabulary.eos_id
        where, ends = f"control {self.name}", {"start_id": start, "end_id": vocabulary.eos_id}
        self.machine = compile_for_text(where, self.content, vocabulary, self.groups, self.agreement, **ends).machine
        self._tokenizer = tokenizer

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        return _FromTheStart(_bound(self, self.machine), self.start_id, self.end_id, self.off(values))

    def config(self) -> dict[str, Any]:
        return {"content": self.content, "groups": self.groups, "agreement": self.agreement}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> Grammar:
        return cls(config["content"], groups=config["groups"], agreement=config["agreement"])


class _FromTheStart(ScoreRule):
    """The mask of a grammar, with the start token put before rows that lack it.

    A prompt outside the grammar is refused; a text that leaves it later was ended otherwise (``stop_strings``, another
    end token) and is padded while others go on.
    """

    def __init__(self, machine: FiniteStateGrammar, start_id: int, end_id: int, off_B: Tensor) -> None:
        self.machine, self.start_id, self.end_id, self.off_B = machine, start_id, end_id, off_B
        self._longest = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        off_N = row_values(self.off_B, len(scores)).to(scores.device)
        foreign_NT = input_ids >= self.machine.pad_id  # a model may have more tokens than its tokenizer
        if bool((foreign_NT.any(1) & ~off_N).any()):
            found = int(input_ids[foreign_NT & ~off_N.unsqueeze(1)][0])
            raise UserError(f"prompt: id {found} is not one of the tokenizer's {self.machine.pad_id} tokens: remove it")
        real_NT = (input_ids != NO_TOKEN) & ~foreign_NT
        ids_NT = input_ids.where(real_NT, self.machine.pad_id)
        first_N1 = ids_NT.gather(1, real_NT.int().argmax(1, keepdim=True))
        begun_N1 = torch.where(first_N1 == self.start_id, self.machine.pad_id, self.start_id)
        whole_NT = torch.cat([begun_N1, ids_NT], dim=1)
        allowed_NV = self.machine.allowed(whole_NT)
        outside_N = ~(allowed_NV.any(1) | off_N)
        prompts, self._longest = input_ids.shape[1] < self._longest or not self._longest, input_ids.shape[1]
        if prompts and bool(outside_N.any()):
            self.machine.state_after(whole_NT[int(outside_N.nonzero()[0])].tolist())
        # after the end only padding is allowed, which is not a token of the model: allow the end again
        ended_N = allowed_NV[:, -1]
        allowed_NV[:, self.end_id] |= ended_N
        free_N1 = ~allowed_NV.any(1, keepdim=True)
        # a model's head may have more rows than there are tokens
        allowed_NV = nn.functional.pad(allowed_NV[:, :-1], (0, scores.shape[1] - allowed_NV.shape[1] + 1), value=False)
        return scores.masked_fill(~(allowed_NV | free_N1), -torch.inf)


# from runs ------------------------------------------------------------------------------------------------------------


def of_run(module: Any, datamodule: Any, decoding: Any) -> tuple[Control, ...]:
    """Return the controls of a finished run: the channel of a model that has one; of clauses also their grammar.

    Raises:
        UserError: a baseline on text, or user-defined features, which no bundle can carry.
    """
    from lit_ctg.papers.semantic_fusion.adapter import TextFusionModule  # imports Lightning

    if isinstance(module, TextFusionModule):
        if (fuse := module.fuse or module.blocks) is None:
            raise UserError("this run is a baseline without a channel: export one with fusion=true")
        control = FeatureChannel(fuse, module.bank)
        control.config()  # refuses user-defined features before anything is written
        return (control,)
    if isinstance(decoding, ClauseDecoding):
        vocabulary = datamodule.vocabulary
        grammar = Grammar(
            load_grammar(decoding.grammar)[1],
            groups={name: list(words) for name, words in vocabulary.groups.items()},
            agreement={"pronoun": {**vocabulary.pronoun_of, **{pronoun: pronoun for pronoun in PRONOUNS}}},
        )
        return (ClauseChannel(len(vocabulary)), grammar) if module.has_channel else (grammar,)
    raise UserError(f"a {type(module).__name__} has nothing to carry: export a run of semantic_fusion/main or reviews")
