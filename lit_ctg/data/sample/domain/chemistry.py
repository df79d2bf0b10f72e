"""Articles on invented compounds and processes."""

from __future__ import annotations

from random import Random

from lit_ctg.data.sample.grammar import words
from lit_ctg.data.sample.world import Domain

_METALS = words(
    "Sodium Potassium Lithium Calcium Magnesium Barium Strontium Zinc Copper Nickel Cobalt Iron Manganese "
    "Lead Tin Silver "
    "Cadmium Aluminium Chromium Vanadium Cerium Ammonium"
)
_ROOTS = words(
    "ferr veld quin brem carv olin stann mel pyr tarn glyc hest isol lumin morph nerv osm pell rhod sarc "
    "thur umbr verat xanth "
    "zel alb cinn dext elat fum gall"
)
_MIDDLES = words("an ol or et in al ar ent ost ur ovan idan emel")


def _title(rng: Random) -> dict[str, str]:
    root = rng.choice(_ROOTS) + rng.choice(_MIDDLES)
    kind = rng.randrange(4)
    if kind == 0:
        return {"title": f"{root.capitalize()}ic acid", "it": "the acid", "form": "acid", "salt": f"{root}ate"}
    if kind == 1:
        title = f"{rng.choice(_METALS)} {root}ate"
        return {"title": title, "it": "the salt", "form": "salt", "salt": f"{root}ate"}
    if kind == 2:
        return {"title": f"{root.capitalize()}ene", "it": "the compound", "form": "hydrocarbon", "salt": f"{root}ide"}
    return {"title": f"{rng.choice(_METALS)} {root}ide", "it": "the compound", "form": "solid", "salt": f"{root}ide"}


DOMAIN = Domain(
    name="chemistry",
    years=(1770, 1990),
    title=_title,
    terms=("reagent", "product", "substance", "process", "vessel", "particle", "trait", "field"),
    lexicon={
        "reagent": (
            "sulfuric acid", "nitric acid", "hydrochloric acid", "sodium hydroxide", "ammonia", "acetone",
            "ethanol", "methanol", "hydrogen peroxide", "potassium permanganate", "acetic acid", "chlorine",
            "bromine", "iodine", "oxygen", "hydrogen", "lithium", "zinc powder", "copper sulfate",
            "phosphoric acid",
        ),
        "product": (
            "oxide", "chloride", "sulfate", "nitrate", "ester", "ether", "alcohol", "aldehyde", "ketone",
            "carbonate", "precipitate", "polymer", "hydrate", "amine", "complex",
        ),
        "substance": (
            "catalyst", "solvent", "reagent", "isomer", "oxidant", "buffer", "electrolyte", "ligand", "salt",
            "acid", "base", "alloy", "mineral", "pigment", "resin", "monomer",
        ),
        "process": (
            "oxidation", "reduction", "distillation", "crystallisation", "hydrolysis", "electrolysis",
            "titration", "filtration", "fermentation", "polymerisation", "combustion", "evaporation",
            "neutralisation", "decomposition", "sublimation",
        ),
        "vessel": (
            "flask", "beaker", "burette", "condenser", "retort", "crucible", "furnace", "column", "reactor",
        ),
        "particle": (
            "molecule", "ion", "electron", "proton", "atom", "anion", "cation", "radical", "nucleus", "orbital",
        ),
        "trait": (
            "soluble", "volatile", "acidic", "alkaline", "corrosive", "crystalline", "flammable", "toxic",
            "inert", "viscous",
        ),
        "field": (
            "spectroscopy", "stoichiometry", "thermodynamics", "kinetics", "chromatography", "electrochemistry",
        ),
        "colour": (
            "white", "pale yellow", "deep blue", "colourless", "violet", "dark green", "orange", "grey",
            "ruby red",
        ),
    },
    opening=(
        "{title} is @a {colour} {trait} {form} [obtained from|made by the action of] {reagent} [on|and] "
        "{reagent}.",
        "{title} is @a {trait} {form} that was first prepared by {person} in {place}, in {year}.",
        "{title} is @a {form} used as @a {substance} in the {process} of {reagent}.",
    ),
    sections={
        "": (
            "It is {colour}, {trait} and only slightly {trait}, with a melting point of {deg:40:310}.",
            "Most of the world's supply comes from {country} and {country}, which made {round:200:90000} "
            "tonnes in {year}.",
            "It was described in {year} by {person}, @a chemist in {city}, as \"@a {colour} {substance} of "
            "{trait} nature\".",
            "In the laboratory it serves as @a {substance}, and in industry as @a {substance} for {process}.",
            "The pure {form} is {trait}, but a trace of {reagent} makes it {trait}.",
            "Its name was proposed by {who} in {year}.",
        ),
        "Properties": (
            "The density is {dec:density:8:79} g per cubic centimetre at {deg:15:25}.",
            "It boils at {deg:110:480} and decomposes above {deg:500:900} with the release of {reagent}.",
            "{title} is {trait} in {reagent} but not in {reagent}.",
            "Each {particle} is bound to {few} {particle+s} at a distance of {dec:bond:11:29:1} ångströms.",
            "The crystals are {colour} needles {span:mm:2:18} long.",
            "Heated in a closed {vessel}, the {form} loses water and leaves @a {colour} {product}.",
            "In solution the {particle} carries a charge that attracts {reagent}.",
            "Studies by {field} and {field} gave a value of {dec:energy:120:890} kilojoules per mole, "
            "later corrected to "
            "{dec:energy:120:890}.",
            "The anhydrous {form} is {trait} and takes up {dec:percent:11:489}% of its weight in water.",
            "@a {trait} solution turns {colour} when {reagent} is added drop by drop.",
            "The bond between the {particle} and the {particle} is weak, so {process} begins at "
            "{deg:60:190}.",
        ),
        "Preparation": (
            "The chemical reaction of the acid with the solution produced @a {colour} {product} and a "
            "little {reagent}.",
            "The reaction of {reagent} with {reagent} gives the {product} in a yield of {pct}.",
            "{reagent} is added slowly to {reagent} in @a {vessel} kept at {deg:5:95}.",
            "The mixture is stirred for {range:2:14} hours, and the {product} is collected by {process}.",
            "After {process}, the {product} is washed with {reagent} and dried in @a {vessel} at "
            "{deg:80:160}.",
            "The industrial route, patented in {year}, starts from {reagent} and uses @a {substance} of "
            "copper and zinc.",
            "Without the {substance} the {process} takes {range:20:60} hours and yields [mostly|only] "
            "{product+s}.",
            "An older method by {process} was given up in {year} because the vapour is {trait}.",
            "The solution is poured through @a {vessel}, where {process} removes the last {product}.",
            "A plant near {place} made {num:12:95} tonnes a [day|week] by {process} between {year} and "
            "{later:1:9}.",
            "The acid and the base react at once, and the {product} settles as @a {colour} {substance}.",
            "In @a {vessel} of {m:cm:12:60} the {process} of {reagent} runs [slowly|quickly] to the end.",
        ),
        "Uses": (
            "It is used as @a {substance} in the {process} of {reagent}.",
            "Dyers in {city} used the {product} as @a {colour} pigment from {year}.",
            "As @a {substance} it speeds the {process} of {reagent} by {pct}.",
            "About {pct} of the output becomes {product+s}, and {pct} becomes {product+s}.",
            "{title} serves as a standard in {process} and in {field}.",
            "@a {dec:percent:11:489}% solution protects {product+s} against {process}.",
            "Glass makers in {place} [bought|ordered] {round:10:900} tonnes of the {form} in {year}.",
            "With {reagent} it forms @a {trait} {product} from which @a {substance} is made.",
            "Its use as @a {substance} ended in {year}, when {reagent} became cheaper.",
        ),
        "Safety": (
            "The vapour is {trait}, and {process} near an open flame must be avoided.",
            "In {year}, @a {vessel} burst at a works in {place}, and {num:3:40} workers were treated for "
            "burns by {reagent}.",
            "The limit in air was lowered from {dec:limit:11:99} to {dec:limit:11:99} milligrams per cubic "
            "metre in {year}.",
            "Spilled {form} is neutralised with @a {trait} solution of {reagent}.",
            "It should be kept apart from {reagent}, because the two form @a {trait} {product}.",
            "Old stocks become {trait}, and their {process} can start at {deg:30:70}.",
        ),
    },
)  # fmt: skip
