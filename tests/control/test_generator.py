"""A model under carried controls behind the common contract: what is given is scored whole."""

from __future__ import annotations

from typing import Any

import torch

from lit_ctg.control import Steered
from lit_ctg.control.generator import SteeredGenerator


def test_a_given_text_is_scored_beyond_an_end_token(model: Any, tokenizer: Any) -> None:
    generator = SteeredGenerator(Steered(model, [], tokenizer=tokenizer), max_new_tokens=5)
    begin, ids = tokenizer("the war").input_ids, [3, tokenizer.eos_token_id, 4]
    with torch.no_grad():
        log_TV = model(torch.tensor([begin + ids])).logits[0].double().log_softmax(-1)
    places = range(len(begin) - 1, len(begin) - 1 + len(ids))
    slow = torch.tensor([float(log_TV[place, number]) for place, number in zip(places, ids, strict=True)])
    found_BT = generator.log_probs("the war", ids, [{}, {}])
    torch.testing.assert_close(found_BT, slow.double().expand(2, 3), atol=1e-4, rtol=0)
