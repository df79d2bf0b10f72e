from __future__ import annotations

from lit_ctg.callback.metric import MetricCallback
from lit_ctg.callback.progress import Progress
from lit_ctg.metric.perplexity import Perplexity


def test_every_epoch_leaves_a_line_without_a_terminal(tiny, trainer_of, capsys) -> None:
    module, data = tiny()
    progress = Progress(title="tiny run")
    metric = MetricCallback({"perplexity": Perplexity(mask="target")})
    trainer_of(metric, progress, max_epochs=2, enable_progress_bar=True).fit(module, data)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny run")]
    assert len(lines) == 2
    assert lines[0].startswith("tiny run epoch 1/2") and "val/perplexity" in lines[0]
