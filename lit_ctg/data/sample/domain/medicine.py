"""Articles on invented diseases and syndromes."""

from __future__ import annotations

from random import Random

from lit_ctg.data.sample.grammar import words
from lit_ctg.data.sample.world import Domain

_NAMES = words(
    "Alberty Bonnard Carlow Dreisler Engstrom Fairweather Gellner Hartwig Iversen Jannick Kolmar Lindgren "
    "Maddox Nystrom Osterman "
    "Pelham Quist Rademaker Sorley Tillman Ulrich Varga Westphal Zander"
)
_ORGANS = words("hepat nephr cardi gastr derm neur pulmon oste my arthr ren vascul lymph thyroid splen pleur")
_ADJECTIVES = words("Acute Chronic Juvenile Relapsing Hereditary Tropical Idiopathic Seasonal Progressive")


def _title(rng: Random) -> dict[str, str]:
    kind = rng.randrange(3)
    if kind == 0:
        first, second = rng.sample(_NAMES, 2)
        return {"title": f"{first}–{second} syndrome", "it": "the syndrome"}
    if kind == 1:
        organ, ending = rng.choice(_ORGANS), rng.choice(("itis", "osis", "opathy"))
        return {"title": f"{rng.choice(_ADJECTIVES)} {organ}{ending} of {rng.choice(_NAMES)}", "it": "the condition"}
    return {
        "title": f"{rng.choice(_NAMES)} {rng.choice(('fever', 'disease', 'palsy', 'anaemia'))}",
        "it": "the disease",
    }


DOMAIN = Domain(
    name="medicine",
    years=(1840, 2012),
    fixed={"found": "{year}"},
    title=_title,
    terms=("disease", "symptom", "organ", "drug", "remedy", "test", "treatment", "person_term", "cause"),
    lexicon={
        "disease": (
            "pneumonia", "diabetes", "hepatitis", "anaemia", "tuberculosis", "meningitis", "arthritis",
            "asthma", "epilepsy", "leukaemia", "malaria", "kidney failure", "bronchitis", "cholera", "lupus",
            "sepsis",
        ),
        "symptom": (
            "fever", "coughing", "headache", "itching", "nausea", "fatigue", "chest pain", "swelling",
            "dizziness", "jaundice", "tremor", "vomiting", "weakness", "blurred vision", "shortness of breath",
            "seizures",
        ),
        "organ": (
            "liver", "kidney", "lung", "heart", "spleen", "stomach", "brain", "pancreas", "artery",
            "bone marrow", "thyroid", "intestine", "nerve", "skin", "lymph node",
        ),
        "drug": (
            "penicillin", "insulin", "aspirin", "morphine", "cortisone", "streptomycin", "digitalis", "quinine",
            "heparin", "chemotherapy", "codeine", "lithium",
        ),
        "test": (
            "biopsy", "blood test", "X-ray", "MRI scan", "ultrasound", "urine test", "electrocardiogram",
            "lumbar puncture", "physical examination",
        ),
        "remedy": ("antibiotic", "vaccine", "steroid", "diuretic", "sedative", "antihistamine"),
        "treatment": (
            "surgery", "dialysis", "transfusion", "transplant", "radiotherapy", "bed rest", "physiotherapy",
            "infusion", "immunisation",
        ),
        "person_term": (
            "patient", "physician", "surgeon", "nurse", "infant", "carrier", "specialist", "pathologist",
        ),
        "cause": (
            "infection", "virus", "bacterium", "parasite", "mutation", "gene", "antibody", "hormone", "toxin",
            "enzyme", "inflammation", "tumour", "lesion",
        ),
        "degree": ("mild", "severe", "acute", "chronic", "recurrent", "rare", "fatal", "persistent"),
        "group": (
            "children", "adults", "older patients", "pregnant women", "sailors", "miners", "newborn infants",
        ),
    },
    opening=(
        "{title} is @a {degree} disease of the {organ} that causes {symptom} and {symptom}.",
        "{title} is @a {degree} disorder in which @a {cause} damages the {organ} and, later, the {organ}.",
        "{title}, first described in {place} in {found}, is @a {degree} illness of {group}.",
    ),
    sections={
        "": (
            "It affects about {dec:cases:11:90} in every {round:1000:90000} people, most of them {group}.",
            "The patient was diagnosed with {disease} in most early reports, until {person} told the two "
            "apart in {later:1:9}.",
            "It is named after {who}, who treated @a {person_term} in {city} in {found}.",
            "Without {treatment} the outlook is poor; with {drug}, {pct} of patients recover.",
            "It is most common in {country} and {country}, and usually begins between the ages of "
            "{num:4:30} and {num:31:60}.",
        ),
        "Signs and symptoms": (
            "The first symptom is {symptom}, followed within {range:2:12} days by {symptom}.",
            "The body temperature rises to {deg:38:41} and the pulse to {num:90:160} beats a minute.",
            "Most patients complain of {symptom}, and {pct} have {symptom} as well.",
            "The {organ} is enlarged and tender, and the skin shows @a {degree} rash.",
            "In {group}, {symptom} may be the only sign.",
            "@a {degree} form with {symptom} and {symptom} has been seen in {country}.",
            "If the {organ} is involved, {symptom} and {symptom} follow.",
            "The swelling measures {span:mm:5:40} and fades after {range:1:6} weeks.",
            "Some patients lose {m:kg:3:15} in the first month.",
        ),
        "Cause": (
            "It is caused by @a {cause} that enters the {organ} through the blood.",
            "@a {cause} on the ninth chromosome was found in {year} by {person} in {city}.",
            "The {cause} provokes @a {cause}, and the {organ} fills with fluid.",
            "Close contact with @a carrier spreads the {cause}, as an outbreak in {place} showed in {year}.",
            "{disease} in childhood raises the risk by {pct}.",
            "The {cause} survives for {range:2:20} hours at {deg:2:30}.",
            "Why the {organ} is spared and the {organ} is not remains unknown.",
            "It was long blamed on bad air, until @a {cause} was seen under the microscope in {year}.",
        ),
        "Diagnosis": (
            "The diagnosis rests on @a {test} and @a {test}.",
            "The patient was diagnosed with {disease} after @a {test} of the {organ}.",
            "@a {test} shows @a {degree} {cause} in the {organ}.",
            "A raised level of {dec:level:11:190} milligrams in the blood points to the {organ}.",
            "It must be told from {disease} and {disease}, which also begin with {symptom}.",
            "The {test} is repeated after {range:2:9} weeks if the {symptom} persists.",
            "@a {person_term} in {city} was at first treated for {disease}.",
        ),
        "Treatment": (
            "The usual treatment is {drug}, given for {range:5:20} days.",
            "@a {degree} case needs @a {remedy} and {treatment}, and sometimes {treatment}.",
            "In a trial of {num:90:900} patients in {place}, {drug} cut deaths from {num:30:60}% to "
            "{num:4:29}%.",
            "{treatment} was first tried in {year} by the surgeon {person}.",
            "A dose of {dec:dose:11:90} milligrams eases the {symptom} within {range:2:12} hours.",
            "{drug} is avoided in {group}, because it may cause {symptom}.",
            "Since {year}, @a {remedy} has protected {group} in {country}.",
            "The physician should watch the {organ} and stop the {drug} if {symptom} appears.",
            "After {treatment} of the {organ}, {pct} of patients are free of {symptom}.",
        ),
        "History": (
            "An epidemic in {place} in {year} killed {round:100:9000} people, many of them {group}.",
            "The hospital in {city} recorded {num:12:300} cases in {year} and {num:12:300} in {later:0:6}.",
            "{person}, @a {person_term} in {city}, published the first full account in {found}.",
            "Between {years}, @a {degree} form spread from {city} to {city}.",
            "The last large outbreak ended in {year}, after {treatment} became common.",
        ),
    },
)  # fmt: skip
