"""95% intervals of a mean that stay where the quantity can be: by its unit, and by what a row makes of it.

A perplexity, a ratio or a time is positive, so its interval is made on the log scale: mean divided and multiplied by
``exp(t s / mean)``, s the standard error of the mean (delta method; for small s it is Student's interval). A rate lies
in [0, 1] and a count above 0: Student's interval is cut there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lit_ctg.statistics import Interval, summarize, t_quantile


@dataclass(frozen=True)
class Domain:
    """What values a quantity can have; ``log`` when its intervals are made on the log scale."""

    low: float = -math.inf
    high: float = math.inf
    log: bool = False


ANY = Domain()
_POSITIVE = Domain(low=0.0, log=True)
_COUNT = Domain(low=0.0)
_RATE = Domain(low=0.0, high=1.0)
# by the unit's first word
_BY_UNIT = {
    "perplexity": Domain(low=1.0, log=True),
    **dict.fromkeys(("ratio", "factor", "s/token", "seconds"), _POSITIVE),
    **dict.fromkeys(("count", "tokens", "products", "km", "l2", "squared", "terms"), _COUNT),
    **dict.fromkeys(("rate", "share", "unique", "truth", "probability", "weight", "total", "F1", "BLEU,"), _RATE),
    "BLEU": Domain(low=0.0, high=100.0),
}


def domain_of(unit: str, direction: str = "none", combine: str | None = None) -> Domain:
    """Return the domain of a quantity.

    Args:
        unit: of the measured metric, e.g. ``perplexity`` or ``share of content words``.
        direction: of the metric; a cost in nats (``lower``) is not negative, a gap in nats may be.
        combine: what the row makes of it; a difference may have either sign.
    """
    words = unit.split()
    own = _BY_UNIT.get(words[0], ANY) if words and "difference" not in words else ANY
    if unit == "nats" and direction == "lower":
        own = _COUNT
    if combine == "ratio":
        return _POSITIVE
    if combine == "percent_change":
        return Domain(low=-100.0)
    if combine == "difference":
        return Domain(own.low - own.high, own.high - own.low)
    return Domain(own.low) if combine == "sum" else own


def mean_interval(values: Sequence[float], domain: Domain = ANY) -> Interval | None:
    """Return the 95% interval of the mean of independent values; None below two.

    Values outside the domain (a unit misnamed) get Student's plain interval.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    found = summarize(values)
    if found.ci95 is None or min(values) < domain.low or max(values) > domain.high:
        return found.ci95
    low, high = found.ci95
    if domain.log and found.mean > 0:
        error = found.sd / math.sqrt(found.n)
        factor = math.exp(t_quantile(found.n - 1) * error / found.mean)
        low, high = found.mean / factor, found.mean * factor
    return max(low, domain.low), min(high, domain.high)
