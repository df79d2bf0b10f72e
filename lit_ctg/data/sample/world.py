"""The scene of an encyclopaedia article: its calendar, its spot on the map, its people and its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from lit_ctg.data.sample.gazetteer import CITIES, Place, distance_km, nearest_cities, nearest_countries, nearest_states
from lit_ctg.data.sample.grammar import Deck, Lexicon, Scene
from lit_ctg.data.sample.number import Calendar, Walk, convert, fahrenheit, grouped, round_number
from lit_ctg.data.sample.people import Person, person

_WITH_THE = frozenset({"United States", "United Kingdom", "Netherlands", "Philippines"})
_BY_NAME = {place.name: place for place in CITIES}
_COUNT_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve")


@dataclass(frozen=True, kw_only=True)
class Domain:
    """What the articles of one field are made of.

    Attributes:
        name: the field, also the document's source.
        lexicon: entry to words; the words of ``terms`` entries are the field's own.
        terms: the lexicon entries that hold topical terms rather than common words.
        title: writes a fresh title and the facts that go with it.
        opening: first sentences; one starts the article.
        sections: heading to sentence templates, in reading order; "" is the lead after the opening.
        years: earliest and latest year mentioned.
        ordered: headings whose sentences keep the order they are written in.
        fixed: fact to template; filled in this order before the article starts and the same throughout.

    The facts of a title may say where the article is at home ("home": a listed city) and when it starts
    ("start": a year).
    """

    name: str
    lexicon: Lexicon
    terms: tuple[str, ...]
    title: Callable[[Random], dict[str, str]]
    opening: tuple[str, ...]
    sections: dict[str, tuple[str, ...]]
    years: tuple[int, int]
    ordered: frozenset[str] = frozenset()
    fixed: dict[str, str] = field(default_factory=dict)


class World(Scene):
    """A :class:`Scene` that also knows years, places, people, figures and conversions.

    Args:
        rng: source of chance.
        domain: gives the lexicon and the years.
        common: lexicon entries every field shares.
        neutral: sentence templates every field shares.
        facts: title and what goes with it.
    """

    def __init__(
        self, rng: Random, domain: Domain, common: Lexicon, neutral: Sequence[str], facts: dict[str, str]
    ) -> None:
        super().__init__(rng, {**common, **domain.lexicon}, facts)
        self.home = _BY_NAME[facts["home"]] if "home" in facts else rng.choice(CITIES)
        self._here = self.home
        self._state = self.home.region
        self.calendar = Calendar(
            rng, *domain.years, day_first=self.home.country not in ("United States", "Philippines")
        )
        self._neutral = Deck(rng, neutral)
        self._walks: dict[str, Walk] = {}
        self._cast: list[Person] = []
        self.facts["home"] = self.home.name
        if "start" in facts:
            self.calendar.current = int(facts["start"])
        for fact, template in domain.fixed.items():
            self.facts[fact] = self.expand(template)

    def neutral(self) -> str:
        """The next sentence template that any field could hold; none comes twice in an article before all have."""
        return self._neutral.deal()[0]

    # --- time ---
    def slot_year(self) -> str:
        return str(self.calendar.year())

    def slot_years(self) -> str:
        return self.calendar.span()

    def slot_date(self) -> str:
        return self.calendar.date()

    def slot_day(self) -> str:
        return self.calendar.day()

    def slot_later(self, low: str, high: str) -> str:
        return str(self.calendar.later(int(low), int(high)))

    def slot_now(self) -> str:
        """The last year again."""
        return str(self.calendar.current)

    def slot_decade(self) -> str:
        return f"{self.calendar.year() // 10 * 10}s"

    # --- place ---
    def _move(self) -> Place:
        """The next city: mostly one near the last, at times home again, seldom anywhere in the world."""
        chance = self.rng.random()
        if chance < 0.18:
            self._here = self.home
        elif chance < 0.22:
            self._here = self.rng.choice(CITIES)
        elif chance < 0.92:
            near = nearest_cities(self._here)
            # two draws, the nearer one wins: nearest cities come up most
            self._here = near[min(self.rng.randrange(len(near)), self.rng.randrange(len(near)))]
        return self._here

    def slot_city(self) -> str:
        return self.fresh(lambda _: self._move().name)

    def slot_place(self) -> str:
        name = self.slot_city()
        return f"{name}, {_BY_NAME[name].region}"

    def slot_country(self) -> str:
        country = self.fresh(lambda _: self._country())
        return f"the {country}" if country in _WITH_THE else country

    def _country(self) -> str:
        chance = self.rng.random()
        if chance < 0.2:
            return self.home.country
        if chance < 0.35:
            return self._here.country
        return self.rng.choice(nearest_countries(self._here.country))

    def slot_road(self) -> str:
        """Two cities and the length of the road between them: a fifth more than the great circle, in tens of miles."""
        start, stop = _BY_NAME[self.slot_city()], _BY_NAME[self.slot_city()]
        miles = max(10, round(distance_km(*start[3:], *stop[3:]) * 1.2 / 16.09344) * 10)
        figure, unit = convert(grouped(miles), "miles")
        return f"the road from {start.name} to {stop.name} is {grouped(miles)} miles ({figure} {unit}) long"

    def slot_land(self) -> str:
        """The home country."""
        country = self.home.country
        return f"the {country}" if country in _WITH_THE else country

    def slot_region(self) -> str:
        """A nearby US state in an article about America, a nearby country elsewhere."""
        if self.home.country != "United States":
            return self.slot_country()
        near = nearest_states(self._state)
        self._state = self.home.region if self.rng.random() < 0.3 else self.rng.choice(near)
        return self._state

    # --- people ---
    def slot_person(self) -> str:
        somebody = person(self.rng, self._here.country if self.rng.random() < 0.3 else self.home.country)
        self._cast.append(somebody)
        return somebody.name

    def slot_who(self) -> str:
        """The surname of somebody met before, or a new full name."""
        return self.rng.choice(self._cast[-3:]).surname if self._cast else self.slot_person()

    # --- figures ---
    def slot_num(self, low: str, high: str) -> str:
        return grouped(self.rng.randint(int(low), int(high)))

    def slot_round(self, low: str, high: str) -> str:
        return grouped(round_number(self.rng, int(low), int(high)))

    def slot_range(self, low: str, high: str) -> str:
        start = self.rng.randint(int(low), int(high))
        return f"{start}–{start + self.rng.randint(1, max(2, (int(high) - int(low)) // 4))}"

    def slot_ordinal(self, low: str, high: str) -> str:
        number = self.rng.randint(int(low), int(high))
        ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        return f"{number}{ending}"

    def slot_few(self) -> str:
        return self.rng.choice(_COUNT_WORDS)

    def slot_dec(self, kind: str, low: str, high: str, places: str = "1") -> str:
        """A decimal that stays near the last of its ``kind``; bounds are in units of the last place."""
        if kind not in self._walks:
            self._walks[kind] = Walk(self.rng, int(low), int(high), int(places))
        return self._walks[kind].next()

    def slot_pct(self) -> str:
        return f"{self.slot_dec('percent', '11', '489')}%"

    def slot_m(self, unit: str, low: str, high: str) -> str:
        """A measure with its conversion: "12 miles (19 km)"."""
        value = self.rng.randint(int(low), int(high))
        if value < 10 and self.rng.random() < 0.5:
            number = f"{value}.{self.rng.randint(1, 9)}"
        elif value > 100 and self.rng.random() < 0.8:
            number = grouped(value - value % (10 if value < 1000 else 100))
        else:
            number = grouped(value)
        figure, other = convert(number, unit)
        return f"{number} {unit} ({figure} {other})"

    def slot_span(self, unit: str, low: str, high: str) -> str:
        """A measured range with its conversion: "23–38 cm (9.1–15 in)"."""
        start = self.rng.randint(int(low), int(high))
        stop = start + self.rng.randint(1, max(2, start // 2))
        (first, other), (second, _) = convert(str(start), unit), convert(str(stop), unit)
        return f"{start}–{stop} {unit} ({first}–{second} {other})"

    def slot_deg(self, low: str, high: str) -> str:
        value = self.rng.randint(int(low), int(high))
        return f"{value} °C ({fahrenheit(value)} °F)"
