"""Articles on invented banks, panics and market rules."""

from __future__ import annotations

from random import Random

from lit_ctg.data.sample.gazetteer import CITIES
from lit_ctg.data.sample.grammar import words
from lit_ctg.data.sample.world import Domain

_HOUSES = words(
    "Abernathy Bellweather Carrick Dunmore Everhart Farthing Goldacre Hollis Inverkip Jessop Kingsmill "
    "Lorimer Marchbank "
    "Netherby Ormond Penhallow Quarles Rothwell Stanhope Tregarth Vandermeer Westlake"
)


def _title(rng: Random) -> dict[str, str]:
    kind = rng.randrange(4)
    first, second = rng.sample(_HOUSES, 2)
    if kind == 0:
        return {"title": f"{first} and {second} Bank", "it": "the bank", "kind": "bank"}
    if kind == 1:
        city = rng.choice(CITIES).name
        return {
            "home": city,
            "title": f"{city} {rng.choice(('Grain', 'Cotton', 'Metal', 'Coffee', 'Bond'))} Exchange",
            "it": "the exchange",
            "kind": "exchange",
        }
    if kind == 2:
        return {
            "title": f"{first} {rng.choice(('Trust', 'Insurance', 'Savings', 'Mortgage', 'Capital'))} Company",
            "it": "the company",
            "kind": "company",
        }
    return {
        "title": f"{first} {rng.choice(('Relief', 'Growth', 'Pension', 'Railway'))} Fund",
        "it": "the fund",
        "kind": "fund",
    }


DOMAIN = Domain(
    name="finance",
    years=(1820, 2014),
    fixed={"founded": "{year}"},
    title=_title,
    terms=("asset", "actor", "event", "measure", "paper_term", "place_term", "move", "law"),
    lexicon={
        "asset": (
            "share", "bond", "mortgage", "loan", "deposit", "dividend", "annuity", "security", "future",
            "option", "treasury bill", "debenture", "pension", "portfolio", "insurance policy", "credit line",
        ),
        "actor": (
            "investor", "broker", "banker", "trader", "creditor", "shareholder", "lender", "auditor",
            "underwriter", "depositor", "speculator", "economist", "accountant", "treasurer",
        ),
        "event": (
            "panic", "crash", "recession", "merger", "default", "bankruptcy", "devaluation", "takeover",
            "rally", "bubble", "bailout", "inflation",
        ),
        "measure": (
            "interest rate", "exchange rate", "profit margin", "share price", "yield", "price index",
            "credit rating", "capital ratio", "turnover", "tax rate", "money supply",
        ),
        "paper_term": (
            "balance sheet", "ledger", "prospectus", "audit", "invoice", "collateral", "contract", "budget",
        ),
        "place_term": (
            "stock market", "trading floor", "clearing house", "central bank", "money market", "bond market",
            "futures market", "credit union",
        ),
        "move": (
            "lending", "borrowing", "trading", "hedging", "saving", "financing", "refinancing", "arbitrage",
            "liquidation",
        ),
        "law": (
            "regulation", "tariff", "subsidy", "reserve requirement", "gold standard", "monetary policy",
            "stamp duty",
        ),
        "good": (
            "wheat", "cotton", "copper", "coffee", "railway", "rubber", "sugar", "oil", "shipping", "steel",
        ),
        "mood": ("nervous", "calm", "cautious", "confident", "weak", "strong", "volatile", "quiet"),
    },
    opening=(
        "The {title} is @a {kind} in {place}, founded in {founded} to finance the {good} trade.",
        "The {title} was @a {kind} active in {land} from {founded} to {later:8:40}, best known for its "
        "{asset+s}.",
        "Founded by {person} in {place} in {founded}, the {title} became @a model for {move} in {country}.",
    ),
    sections={
        "": (
            "The stock market is {mood} when {actor+s} expect @a {event}, and {it} was built to profit "
            "from it.",
            "Its {asset+s} were held by {round:1000:90000} {actor+s}, most of them in {country}.",
            "At its height {it} managed ${dec:assets:12:980} billion in {asset+s} and {asset+s}.",
            "It is studied as an early case of {move} without enough {paper_term}.",
            "The {measure} it quoted each morning was followed in {city} and {city}.",
            "It was founded in {founded}, {range:2:6} years after the {event} in {country}.",
        ),
        "History": (
            "In {year}, {person} sold {round:500:90000} {asset+s} at ${dec:price:800:9900:2} each to raise "
            "capital for {good}.",
            "The first {actor+s} met at a coffee house in {city} on {date}.",
            "During the {event} of {year}, {actor+s} withdrew ${dec:money:12:950} million in {few} days.",
            "The {place_term} in {city} closed for {few} days, and the {measure} fell by {pct}.",
            "A branch was opened in {place} in {year}, followed by one in {city} in {later:0:6}.",
            "{who}, @a {actor} from {city}, became chairman in {year} and stopped all {move} in {good}.",
            "The {event} of {year} wiped out {pct} of the value of its {asset+s}.",
            "The central bank moved the {measure} from {dec:rate:11:90}% to {dec:rate:11:90}% on {day}.",
            "In {year} {it} agreed to @a {event} with a rival in {place}.",
            "Under @a {law} of {year}, every {actor} had to keep @a {paper_term}.",
            "Profits rose from ${dec:profit:11:190} million in {year} to ${dec:profit:11:190} million in "
            "{later:0:6}.",
        ),
        "Operations": (
            "Its main business is {move}, with @a smaller trade in {asset+s}.",
            "Every {actor} must show @a {paper_term} and pledge {asset+s} as collateral.",
            "The {measure} is fixed at noon, after the {actor+s} have compared each {paper_term}.",
            "@a {asset} of ${round:1000:90000} pays {dec:rate:11:90}% a year and can be sold on the "
            "{place_term}.",
            "Most {actor+s} hold @a {asset} for {range:2:12} years.",
            "The {place_term} handles {round:1000:90000} {asset+s} a day, with @a turnover of "
            "${dec:turn:12:900} million.",
            "By {move} in {good}, @a {actor} can guard against @a rise in the {measure}.",
            "Losses on @a {asset} are shared between the {actor} and the {actor}.",
            "The dividend was {dec:div:11:80}% in {year} and {dec:div:11:80}% in {later:0:6}.",
            "If the {measure} falls, the {actor+s} sell; if it rises, {move} becomes dear.",
            "The {paper_term} lists {pct} in {asset+s}, {pct} in {asset+s} and the rest in {asset+s}.",
        ),
        "Regulation": (
            "@a {law} passed in {land} in {year} limited {move} to {pct} of capital.",
            "The auditor found that @a {paper_term} had been changed after the {event}.",
            "In {year}, @a {actor} in {city} was fined ${round:10000:900000} for {move} without @a "
            "{paper_term}.",
            "Critics said that the {law} favoured the {actor} over the {actor}.",
            "The {law} was relaxed in {year}, and {move} grew by {pct} within {range:2:9} months.",
            "Since {year}, @a {measure} above {dec:rate:11:90}% must be reported to the central bank.",
        ),
        "Legacy": (
            "Economists still use the {event} to explain why the {measure} moves before the {measure}.",
            "The {place_term} in {city} copied its {paper_term} in {year}.",
            "Its building, {m:feet:60:400} high, is now @a {place_term}.",
            "The price of @a {asset} fell to ${dec:price:800:9900:2} and never recovered.",
            "A novel of {year} tells of @a {actor} ruined by {asset+s} in {good}.",
        ),
    },
)  # fmt: skip
