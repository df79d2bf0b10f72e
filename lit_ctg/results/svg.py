"""What all plots are drawn with: escaped text, axes with round ticks, the frame with its description."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Interval = tuple[float, float]

WIDTH = 460
# widest letters of the page's font at 12 px, so that labels are never closer than they are long
LETTER = 6.6


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high`` onto pixels from ``start`` to ``stop``; what lies beyond is put at the end."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        value = min(max(value, self.low), self.high)
        scale = math.log if self.log else float
        share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return self.start + share * (self.stop - self.start)

    def holds(self, value: float) -> bool:
        """Say whether a value lies on the axis."""
        return self.low <= value <= self.high


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Return three to about eight round numbers in [low, high]; on a log axis 1, 2, 3, 5 times powers of ten."""
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        if len(powers) > 4:
            step = math.ceil((len(powers) - 2) / 7)
            marks = [10.0**power for power in powers if power % step == 0]
        else:
            marks = [digit * 10.0**power for power in powers for digit in (1, 2, 3, 5)]
        marks = [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
        if len(marks) >= 3:
            return marks
        # within a factor of three or so steps are as good as equal
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Return a tick in few characters: 20, 0.5, 10,000, 1e6."""
    if 1e3 <= abs(value) < 1e6 and value == round(value):
        return f"{value:,.0f}"
    return f"{value:g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def without_collisions(places: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return labels (middle, words), those left out that would touch the one before; the last one always stays."""
    kept: list[tuple[float, str]] = []
    for at, words in places:
        if not kept or at - kept[-1][0] >= (len(words) + len(kept[-1][1])) / 2 * LETTER + 4:
            kept.append((at, words))
        elif (at, words) == places[-1] and len(kept) > 1:
            kept[-1] = (at, words)
    return kept


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """Return escaped words at a place, nothing for no words."""
    if not words:
        return ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def frame(description: str, height: float, parts: Sequence[str]) -> str:
    """Return the whole picture, named for screen readers."""
    name = escape(description, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">{"".join(parts)}</svg>'
