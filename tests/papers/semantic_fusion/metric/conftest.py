"""The random batches and slow references that all metrics are tested with."""

from tests.metric.conftest import counted_nlls, make_batch, nll, split  # noqa: F401 - fixtures
