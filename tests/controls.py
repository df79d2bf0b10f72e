"""One small control of every kind of all papers, strong enough to be seen, for the model ``word_model``."""

from __future__ import annotations

from typing import Any

import torch

from lit_ctg.control import Control
from lit_ctg.control.class_models import Experts, GenerativeClassifier
from lit_ctg.control.future import Future, FutureClassifier
from lit_ctg.control.gradient import Gradient
from lit_ctg.control.lora import LoRA
from lit_ctg.control.memory import Memory
from lit_ctg.control.token_bias import TokenBias
from lit_ctg.control.vectors import ActivationVector
from lit_ctg.decoding.ngram import NgramModel
from lit_ctg.papers.control_code.control import NeuronCodes
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.idea_gate.control import IdeaGate
from lit_ctg.papers.idea_gate.gate import GateForm, IdeaHead
from lit_ctg.papers.nslm.classes import class_table, make_recogniser
from lit_ctg.papers.nslm.control import MicroModels, carried
from lit_ctg.papers.nslm.micro_model import Difference, Gaussian, MicroModel
from lit_ctg.papers.nslm.occurrences import Occurrences
from lit_ctg.papers.semantic_fusion.bank import FeatureBank, Graded, Recent
from lit_ctg.papers.semantic_fusion.channel import GatedFusion
from lit_ctg.papers.semantic_fusion.control import FeatureChannel, Grammar, LexiconSteering
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon
from tests.conftest import make_model

V, D = 14, 16


def lexicon() -> Lexicon:
    return Lexicon.of(
        ["good", "bad", "acid"], {"polarity": [1, -1, 0], "strength": [0, 0, 0]}, ["praise", "blame", "thing"]
    )


def class_models() -> dict[str, Any]:
    """Two random models of classes that disagree."""
    models = {"good": make_model(V), "bad": make_model(V)}
    with torch.no_grad():
        generator = torch.Generator().manual_seed(7)
        models["bad"].transformer.wte.weight.copy_(4 * torch.randn(V, D, generator=generator))
    return models


def classifier() -> FutureClassifier:
    """Random, sure of itself."""
    torch.manual_seed(8)
    made = FutureClassifier(V, 2, 6)
    torch.nn.init.normal_(made.head.weight, std=8.0)
    return made


def controls() -> dict[str, Control]:
    """One of every kind of all papers, small and strong enough to be seen."""
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(1, V, (30, 12), generator=generator).tolist()
    head = IdeaHead(D, V)
    torch.nn.init.normal_(head.outer.weight, std=3.0)
    years = make_recogniser("year", {"members": {"1914": 1914, "1918": 1918, "1939": 1939}})
    table = class_table(["1914", "1918", "1939"], [years])
    found = Occurrences.from_documents(torch.tensor([0, 1, 2, 1, 0, 1]).numpy(), torch.tensor([0]).numpy(), table)
    micro = MicroModel(Difference(), Gaussian()).fit(found, table.classes[0])
    bank = FeatureBank(
        lexicon=lexicon(),
        features={"pos": Graded(column="polarity", group="polarity"), "mood": Recent(column="polarity")},
        centres=[0.2, 0.6, 1.0],
        temperature=0.35,
    )
    fuse = GatedFusion(D, 2, True)
    torch.nn.init.normal_(fuse.project.weight, std=8.0)
    layers = {"transformer.h.0.mlp.c_fc": torch.randn(4 * D, 4), "lm_head": 5 * torch.randn(V, 4)}
    words = ["the", "a", "acid", "began", "in", "1914", "1918", "good", "bad", "."]
    grammar: dict[str, Any] = {
        "start": "ANY",
        "slots": {
            "ANY": [
                {"words": words, "next": "ANY"},
                {"words": "war", "next": "LAST"},
                {"words": "metal", "next": "END"},
            ],
            "LAST": {"words": ["began", "."], "next": "ANY"},
        },
    }
    made = [
        IdeaGate(head, form=GateForm(clamp="after_scaling", epsilon=1e-8), alpha=1.0, beta=-6.0),
        Graphmax(CooccurrenceGraph.from_token_ids(texts, V), variant="successor_divergence", lam=3.0),
        MicroModels(carried(table, {"year": micro}, {"year": 6.0})),
        LexiconSteering(lexicon(), gain=6.0),
        Grammar(grammar),
        FeatureChannel(fuse, bank),
        NeuronCodes(["news", "blog"], torch.randn(2, 4), layers),
        Memory(NgramModel.count(texts, V, order=3)),
        TokenBias({"good": torch.randn(V), "bad": torch.randn(V)}),
        Experts(class_models()),
        GenerativeClassifier(class_models()),
        Future(classifier(), ["good", "bad"], candidates=V),
        Gradient(torch.randn(2, D), torch.zeros(2), ["good", "bad"]),
        ActivationVector(["good", "bad"], {0: 20 * torch.randn(2, D)}, scale="raw"),
        LoRA({"transformer.h.0.mlp.c_fc": (torch.randn(2, D), torch.randn(4 * D, 2))}),
    ]
    return {control.name: control for control in made}
