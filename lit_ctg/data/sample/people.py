"""Names of invented people, by the language area of the country they come from."""

from __future__ import annotations

from random import Random
from typing import NamedTuple


class Person(NamedTuple):
    given: str
    surname: str
    female: bool

    @property
    def name(self) -> str:
        """Given name and surname."""
        return f"{self.given} {self.surname}"


# women; men; surnames
_NAMES: dict[str, tuple[str, str, str]] = {
    "english": (
        "Agnes Clara Edith Florence Harriet Isabel Joan Louisa Margaret Nora Rosalind Sylvia Winifred "
        "Eleanor Beatrice Ruth",
        "Albert Arthur Cecil Edmund Frederick George Harold Hugh Leonard Oliver Percy Ralph Thomas Walter "
        "Stanley Duncan",
        "Aldous Barrowe Brightwell Calloway Cresswell Dunmore Eastlake Fairbourne Garrick Hathersage "
        "Harwell Ingleby Kettering "
        "Langmere Marlowe Northcott Oakhurst Pemberley Quillan Ravensworth Selwick Thackery Underhay "
        "Wexcombe Whitlock Yarrow",
    ),
    "french": (
        "Adèle Camille Colette Hélène Juliette Lucie Madeleine Odette Simone Thérèse Yvonne",
        "Antoine Bernard Émile Étienne Gaston Henri Jules Lucien Marcel Olivier Rémy",
        "Arnaudet Beaumarchand Castelnau Delorge Favrel Girardon Lamoureux Marchetti Montclair Perrault "
        "Roussel Sauvageot "
        "Tessier Vaudreuil Vernier",
    ),
    "german": (
        "Anneliese Berta Elsa Frieda Greta Hedwig Ingrid Klara Lotte Mathilde Ursula",
        "Ernst Friedrich Gustav Heinrich Johann Karl Ludwig Otto Rudolf Werner Wilhelm",
        "Adlerberg Brandt Dietrichsen Eschenbach Falkenried Grunewald Hartmann Kessler Lindqvist "
        "Morgenroth Oberhauser "
        "Reinholt Steiger Vogelsang Winterfeld",
    ),
    "spanish": (
        "Carmen Dolores Elena Inés Isabela Lucía Mercedes Pilar Rosa Soledad Teresa",
        "Alejandro Diego Esteban Federico Gonzalo Joaquín Luis Manuel Rafael Sebastián Tomás",
        "Aranda Bermejo Caldera Del Río Escobedo Fuentes Guerrero Ibarra Lozano Maldonado Navarrete Olmedo "
        "Quintana Saavedra "
        "Villalobos",
    ),
    "italian": (
        "Alessia Bianca Chiara Donatella Francesca Giulia Lucrezia Ornella Serafina Vittoria",
        "Aldo Carlo Enzo Fabrizio Giovanni Lorenzo Matteo Paolo Salvatore Umberto",
        "Albanese Bellacosta Carraro Donati Ferrante Grimaldi Lombardi Montefiore Pellegrino Rinaldi "
        "Santoro Trevisan Vianello",
    ),
    "slavic": (
        "Anna Daria Irena Jadwiga Katarina Ludmila Mila Natalia Olga Vera Zofia",
        "Aleksander Bogdan Dmitri Jan Kazimir Milan Nikolai Pavel Stanislav Viktor Zoran",
        "Andrić Baranov Chernik Dobrowski Horvat Kolarov Kowalik Lisowski Marek Novotny Petrov Sokolov "
        "Tomić Volkov Zelenka",
    ),
    "asian": (
        "Aiko Hana Keiko Lan Mei Michiko Rin Sora Xiu Yuki",
        "Akira Daichi Feng Haruto Jun Kenji Minh Shan Takeo Wei",
        "Arakawa Chen Fujimori Hayashida Kuroda Liang Matsuda Nakagawa Pham Sato Takahara Wen Yamashiro Zhou",
    ),
    "world": (
        "Amina Ayesha Esi Farah Leila Makena Nadia Priya Samira Shirin Zainab",
        "Amir Arjun Daoud Emre Faisal Hassan Kofi Kwame Rahim Tariq Yusuf",
        "Abara Adeyinka Bhandari Chaudhry Darwish El Masri Gupta Haddad Iqbal Kamau Mansour Nasser Okafor "
        "Rahmani Yilmaz",
    ),
}
_AREA = {
    "english": "United States;Canada;United Kingdom;Ireland;Australia;New Zealand;South Africa",
    "french": "France;Belgium",
    "german": "Germany;Austria;Switzerland;Netherlands;Denmark;Sweden;Norway;Finland",
    "spanish": "Spain;Portugal;Mexico;Brazil;Argentina;Chile;Uruguay;Peru;Colombia;Ecuador;Venezuela;Cuba;Philippines",
    "italian": "Italy",
    "slavic": "Poland;Czechia;Hungary;Romania;Bulgaria;Serbia;Croatia;Greece;Lithuania;Latvia;Ukraine;Russia",
    "asian": "China;Japan;South Korea;Vietnam;Thailand;Indonesia",
}
_AREA_OF = {country: area for area, countries in _AREA.items() for country in countries.split(";")}


def _surnames(text: str) -> tuple[str, ...]:
    # two-word surnames are written with their particle first
    return tuple(text.replace("Del Río", "Del~Río").replace("El Masri", "El~Masri").split())


_SPLIT = {
    area: (tuple(women.split()), tuple(men.split()), _surnames(surnames))
    for area, (women, men, surnames) in _NAMES.items()
}


def person(rng: Random, country: str) -> Person:
    """Somebody from ``country`` (an area with names from many places stands in for countries not listed)."""
    women, men, surnames = _SPLIT[_AREA_OF.get(country, "world")]
    female = rng.random() < 0.45
    return Person(rng.choice(women if female else men), rng.choice(surnames).replace("~", " "), female)
