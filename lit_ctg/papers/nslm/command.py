"""`lit-ctg data classes`: micro-models of your own classes for a Hugging Face model (NSLM)."""

from __future__ import annotations

from typing import Annotated, cast

from annotated_types import Ge

from lit_ctg.command import Command, option
from lit_ctg.terminal import Console


class Classes(Command):
    """fit micro-models of classes of words for a Hugging Face model

    ``classes`` is a YAML file (``year: {pattern: "1[0-9]{3}", metrics: [difference], densities: [gaussian]}``). The
    micro-models are fitted on the training split, their strength on the validation split, the saving is measured on the
    test split.
    """

    words = "data classes"
    overrides: list[str]
    hydra = {"data.root": "the folder of texts, one file or subfolder per label"}
    examples = ("data classes classes=years.yaml model=smollm2 data.root=texts out=years",)
    classes: str = option("a YAML file of classes")
    model: str = option("the Hugging Face model: a name of lit-ctg model list, a folder or a hub name")
    out: str = option("folder of the control to write")
    tokens: Annotated[int, Ge(2)] = option("read at most this many tokens of the validation and the test split", 20000)

    def execute(self) -> None:
        from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
        from lit_ctg.network.huggingface import load_model
        from lit_ctg.papers.nslm.classes import read_classes
        from lit_ctg.papers.nslm.from_text import micro_models
        from lit_ctg.run.memory import corpus_of, texts_of

        classes, corpus = read_classes(self.classes), corpus_of(self.model, self.overrides)
        decode, tokenizer = corpus.vocabulary.decode, cast(HuggingFaceTokenizer, corpus.vocabulary).engine
        train, validation, test = (
            [decode(ids) for ids in texts_of(corpus, split, most)]
            for split, most in (("train", None), ("val", self.tokens), ("test", self.tokens))
        )
        control = micro_models(classes, train, validation)
        model = load_model(self.model, where="model").eval()
        control.fit_strength(model, tokenizer, validation)
        control.save_pretrained(self.out)
        if control.weight > 0:
            found = control.saving(model, tokenizer, test)
            line = (
                f"at strength {control.weight:.2f} it saves {found['nats']:.3f} nats a place "
                f"[{found['low']:.3f}, {found['high']:.3f}] on {found['places']:.0f} places of the test split"
            )
        else:
            line = "it does not help this model: its strength is 0; give more text, or other metrics and densities"
        Console().print(f"{self.out}: {line}", soft_wrap=True, markup=False, highlight=False)


# found by `lit-ctg data`
COMMANDS = (Classes,)
