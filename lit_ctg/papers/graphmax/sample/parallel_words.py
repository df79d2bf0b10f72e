"""Nouns, verbs, adjectives and times of the sample sentence pairs, English beside Spanish."""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """``english`` is (singular, plural); ``gender`` is "m" or "f"; ``kind`` determines suitable verbs."""

    english: tuple[str, str]
    spanish: str
    gender: str
    kind: str


class Verb(NamedTuple):
    """``english`` is (base, third person, past); ``preposition`` (English, Spanish) may be empty."""

    english: tuple[str, str, str]
    spanish: str
    preposition: tuple[str, str] = ("", "")


# kind: "english [plural] = spanish gender"; the English plural adds s where none is given
_NOUNS: dict[str, str] = {
    "person": """
        teacher = maestro m; doctor = médico m; neighbour = vecino m; girl = niña f; boy = niño m; friend = amigo m;
        grandmother = abuela f; uncle = tío m; cook = cocinero m; sister = hermana f; nurse = enfermera f;
        woman women = mujer f; man men = hombre m; farmer = campesino m; daughter = hija f;
        soldier = soldado m;
        painter = pintor m;
        singer = cantante f; lawyer = abogada f; cousin = primo m; judge = juez m; student = alumna f
    """,
    "food": """
        apple = manzana f; cake = pastel m; soup = sopa f; egg = huevo m; orange = naranja f; cheese = queso m;
        fish fish = pescado m; potato potatoes = papa f; pear = pera f; onion = cebolla f; salad = ensalada f;
        strawberry strawberries = fresa f; sausage = salchicha f; melon = melón m; biscuit = galleta f
    """,
    "thing": """
        book = libro m; table = mesa f; bicycle = bicicleta f; hat = sombrero m; lamp = lámpara f;
        knife knives = cuchillo m;
        shirt = camisa f; chair = silla f; clock = reloj m; key = llave f; pencil = lápiz m; guitar = guitarra f;
        box boxes = caja f; mirror = espejo m; suitcase = maleta f; ring = anillo m;
        picture = cuadro m; blanket = manta f; car = coche m; bottle = botella f; toy = juguete m
    """,
    "text": """
        letter = carta f; poem = poema m; message = mensaje m; story stories = historia f; song = canción f;
        postcard = postal f; contract = contrato m; report = informe m; list = lista f; note = nota f
    """,
    "place": """
        garden = jardín m; kitchen = cocina f; street = calle f; market = mercado m; church churches = iglesia f;
        village = pueblo m; bridge = puente m; station = estación f; school = escuela f; park = parque m; library
        libraries = biblioteca f; harbour = puerto m; square = plaza f; hospital = hospital m; hotel = hotel m;
        theatre = teatro m; farm = granja f; beach beaches = playa f; museum = museo m; office = oficina f
    """,
}


def _parse_nouns() -> tuple[Noun, ...]:
    nouns = []
    for kind, rows in _NOUNS.items():
        for row in " ".join(rows.split()).split("; "):
            english, spanish = row.split(" = ")
            singular, _, plural = english.partition(" ")
            word, gender = spanish.split()
            nouns.append(Noun((singular, plural or f"{singular}s"), word, gender, kind))
    return tuple(nouns)


NOUNS: tuple[Noun, ...] = _parse_nouns()
CLASSES: dict[str, tuple[Noun, ...]] = {kind: tuple(noun for noun in NOUNS if noun.kind == kind) for kind in _NOUNS}
# English says where in more than one way, Spanish always "en"
WHERE: dict[str, str] = {
    "puente": "on", "playa": "on", "granja": "on", "estación": "at", "mercado": "at", "puerto": "at",
    "escuela": "at",
    "museo": "at", "hotel": "at", "teatro": "at",
}  # fmt: skip
PEOPLE: tuple[str, ...] = (
    "Ana", "Carlos", "Lucía", "Pedro", "Elena", "Tomás", "Marta", "Javier", "Rosa", "Andrés", "Clara",
    "Diego",
)  # fmt: skip
# the Spanish pronoun is left out where the verb form suffices
PRONOUNS: tuple[tuple[str, str, str], ...] = (
    ("I", "", "1s"),
    ("we", "", "1p"),
    ("you", "", "2s"),
    ("they", "ellos", "3p"),
    ("he", "él", "3s"),
    ("she", "ella", "3s"),
)

# English adjective, Spanish masculine singular
ADJECTIVES: dict[str, tuple[tuple[str, str], ...]] = {
    "person": (
        ("young", "joven"), ("old", "viejo"), ("tall", "alto"), ("friendly", "simpático"), ("tired",
        "cansado"),
        ("famous", "famoso"), ("quiet", "callado"), ("rich", "rico"), ("patient", "paciente"), ("blind",
        "ciego"),
    ),
    "food": (
        ("fresh", "fresco"), ("cold", "frío"), ("sweet", "dulce"), ("big", "grande"), ("green",
        "verde"), ("cheap", "barato"),
        ("white", "blanco"), ("dry", "seco"),
    ),
    "thing": (
        ("red", "rojo"), ("blue", "azul"), ("new", "nuevo"), ("broken", "roto"), ("black",
        "negro"), ("expensive", "caro"),
        ("small", "pequeño"), ("heavy", "pesado"), ("yellow", "amarillo"), ("elegant",
        "elegante"), ("empty", "vacío"),
    ),
    "text": (("long", "largo"), ("short", "corto"), ("sad", "triste"), ("strange", "extraño"), ("secret",
             "secreto")),
    "place": (
        ("old", "viejo"), ("quiet", "tranquilo"), ("dark", "oscuro"), ("modern", "moderno"), ("large",
        "grande"),
        ("narrow", "estrecho"),
    ),
}  # fmt: skip

# predicates of "to be" with the Spanish verb that each takes
STATES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "person": (
        ("tired", "cansado", "estar"), ("sad", "triste", "estar"), ("ill", "enfermo", "estar"), ("tall",
        "alto", "ser"),
        ("very kind", "muy amable", "ser"), ("angry", "enojado", "estar"), ("rich", "rico", "ser"),
    ),
    "food": (("cold", "frío", "estar"), ("ready", "listo", "estar"), ("very good", "muy bueno",
             "ser"), ("fresh", "fresco", "ser")),
    "thing": (("broken", "roto", "estar"), ("new", "nuevo", "ser"), ("dirty", "sucio",
              "estar"), ("expensive", "caro", "ser")),
    "text": (("very long", "muy largo", "ser"), ("lost", "perdido", "estar"), ("ready", "listo",
             "estar"), ("short", "corto", "ser")),
    "place": (("closed", "cerrado", "estar"), ("very old", "muy viejo", "ser"), ("open", "abierto", "estar"),
              ("full", "lleno", "estar"), ("empty", "vacío", "estar")),
}  # fmt: skip


def _verb(line: str) -> Verb:
    english, spanish = line.split(" = ")
    base, third, past, *preposition = english.split()
    infinitive, *preposition_es = spanish.split()
    return Verb((base, third, past), infinitive, (" ".join(preposition), " ".join(preposition_es)))


# kind of object, or "in" for a place with a preposition -> verbs:
# "base third past [preposition] = infinitive [preposition]"
_VERBS: dict[str, str] = {
    "person": """call calls called = llamar; visit visits visited = visitar; help helps helped = ayudar
        wait waits waited for = esperar; greet greets greeted = saludar; invite invites invited = invitar
        look looks looked for = buscar; kiss kisses kissed = besar; listen listens listened to = escuchar""",
    "food": """buy buys bought = comprar; eat eats ate = comer; cook cooks cooked = cocinar; sell sells sold = vender
        prepare prepares prepared = preparar; cut cuts cut = cortar; share shares shared = compartir""",
    "thing": """buy buys bought = comprar; sell sells sold = vender; clean cleans cleaned = limpiar
        paint paints painted = pintar
        break breaks broke = romper; carry carries carried = llevar; use uses used = usar; keep keeps kept = guardar
        look looks looked for = buscar; forget forgets forgot = olvidar; hide hides hid = esconder""",
    "text": """write writes wrote = escribir; receive receives received = recibir; copy copies copied = copiar
        send sends sent = mandar; forget forgets forgot = olvidar; finish finishes finished = terminar
        study studies studied = estudiar""",
    "place": """visit visits visited = visitar; cross crosses crossed = cruzar; clean cleans cleaned = limpiar
        look looks looked at = mirar; paint paints painted = pintar""",
    "in": """work works worked = trabajar en; live lives lived near = vivir cerca de; sing sings sang = cantar en
        dance dances danced = bailar en; rest rests rested = descansar en; run runs ran through = correr por
        arrive arrives arrived at = llegar a; wait waits waited = esperar en; talk talks talked = hablar en""",
}
FRAMES: tuple[tuple[Verb, str], ...] = tuple(
    (_verb(line), kind)
    for kind, lines in _VERBS.items()
    for line in "; ".join(part.strip() for part in lines.splitlines()).split("; ")
)

TIMES: dict[str, tuple[tuple[str, str], ...]] = {
    "present": (("every day", "todos los días"), ("in the morning", "por la mañana"), ("on Sundays",
                "los domingos"),
                ("at night", "por la noche"), ("in winter", "en invierno")),
    "past": (("yesterday", "ayer"), ("last week", "la semana pasada"), ("last night", "anoche"),
             ("two years ago", "hace dos años"), ("on Monday", "el lunes"), ("last summer",
             "el verano pasado")),
    "future": (("tomorrow", "mañana"), ("next week", "la próxima semana"), ("on Friday",
               "el viernes"), ("soon", "pronto"),
               ("in April", "en abril"), ("tonight", "esta noche")),
}  # fmt: skip
CONJUNCTIONS: tuple[tuple[str, str], ...] = (
    ("and", "y"), ("but", "pero"), ("because", "porque"), ("while", "mientras"), ("so", "así que"),
)  # fmt: skip
SAYING: tuple[tuple[str, str], ...] = (
    ("I believe", "creo"), ("everybody knows", "todos saben"), ("my father says",
    "mi padre dice"), ("it is clear", "es claro"),
    ("we know", "sabemos"), ("the newspaper says", "el periódico dice"), ("it is true", "es verdad"),
)  # fmt: skip
