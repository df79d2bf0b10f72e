"""Un cuaderno de pueblo: the second language of the library, Spanish, in a plain narrative past tense.

Nouns carry their article, so that gender and number agree: "el molino", "la plaza", "los niños".
"""

from __future__ import annotations

from lit_ctg.papers.control_code.sample.book.style import Book, Teller

_MONTHS = (
    "enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre", "octubre",
    "noviembre",
    "diciembre",
)  # fmt: skip


def _chapter(teller: Teller, number: int) -> list[str]:
    """Some days in the village: weather, work, talk, a memory."""
    rng = teller.rng
    lines = [f"Cuaderno {number}", ""]
    for _ in range(rng.randint(4, 6)):
        teller.facts["quien"] = rng.choice(teller.lexicon["vecino"])
        head = f"{rng.randint(1, 28)} de {rng.choice(_MONTHS)}."
        kinds = rng.sample(("trabajo", "gente", "recuerdo", "casa"), 3)
        lines += [f"{head} {teller.deal('tiempo', *kinds)}", ""]
        lines += [teller.deal("habla", "respuesta", "gente", "recuerdo"), ""]
    return lines


BOOK = Book(
    name="cuaderno",
    language="es",
    lexicon={
        "vecino": (
            "el alcalde", "la modista", "el barbero", "la panadera", "mi padrino", "la vecina", "el pastor",
            "don Eusebio", "don Anselmo", "la maestra", "mi abuela", "el panadero", "la viuda Remedios",
            "el cartero", "mi tío Ramiro", "el cura", "la señora Pilar", "el herrero", "mi hermana",
        ),
        "lugar": (
            "la ermita", "la farmacia", "la barbería", "la calle mayor", "la casa del médico", "la era",
            "la plaza", "la fuente", "la iglesia", "la taberna", "la estación", "la huerta", "la panadería",
            "la escuela",
        ),
        "sitio": (
            "el arroyo", "el corral", "el horno", "el pozo", "el castillo", "el pinar", "el casino",
            "el molino", "el puente", "el mercado", "el río", "el olivar", "el camino", "el patio",
            "el cementerio",
        ),
        "cosa_f": (
            "la bicicleta", "la jarra", "la escoba", "la navaja", "la medalla", "la bandera", "la cuna",
            "la fotografía", "la carta", "la llave", "la guitarra", "la cesta", "la silla", "la manta",
            "la lámpara", "la campana",
        ),
        "cosa_m": (
            "el cántaro", "el abrigo", "el espejo", "el cuadro", "el saco", "el cuchillo", "el violín",
            "el anillo", "el reloj", "el pan", "el sombrero", "el vino", "el libro", "el burro", "el pañuelo",
            "el dinero",
        ),
        "fem": (
            "robada", "sucia", "hermosa", "ajena", "antigua", "pesada", "vieja", "rota", "blanca", "pequeña",
            "perdida", "nueva", "olvidada", "negra",
        ),
        "masc": (
            "robado", "sucio", "hermoso", "ajeno", "antiguo", "pesado", "viejo", "roto", "blanco", "pequeño",
            "perdido", "nuevo", "olvidado", "negro",
        ),
        "cielo_m": ("viento", "sol", "calor", "frío"),
        "pena_f": ("tristeza", "alegría", "paciencia", "vergüenza", "esperanza", "rabia", "calma"),
        "cielo": ("lluvia", "niebla", "viento", "sol", "nieve", "calor", "frío"),
        "pena": ("tristeza", "alegría", "paciencia", "vergüenza", "esperanza", "rabia", "calma", "miedo"),
        "hizo": (
            "rompió", "pintó", "miró", "prestó", "empeñó", "robó", "arregló", "vendió", "encontró", "escondió",
            "llevó", "compró", "perdió", "limpió", "guardó",
        ),
        "cuando": (
            "al mediodía", "al salir el sol", "en plena siesta", "con la luna llena", "el domingo",
            "por la mañana", "al anochecer", "después de misa", "antes del alba", "a mediodía", "toda la tarde",
            "esta noche",
        ),
        "cuanto": ("dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "diez", "doce", "veinte"),
    },
    decks={
        "tiempo": (
            "Hoy hubo {cielo} {cuando}.",
            "Amaneció con {cielo} y con {cielo} se hizo de noche.",
            "Después de {cuanto} días de {cielo}, salimos a {lugar}.",
            "El cielo estaba gris y {sitio} parecía otro.",
            "Con tanto {cielo_m} nadie fue a {lugar}.",
        ),
        "trabajo": (
            "{quien} {hizo} {cosa_f} {fem} cerca de {lugar}.",
            "{quien} {hizo} {cosa_m} {masc} y volvió por {sitio}.",
            "Trabajamos en {sitio} {cuando}, y nadie dijo una palabra.",
            "Se rompió {cosa_f} de {lugar}, y {quien} la arregló {cuando}.",
            "{cuando} llevaron {cosa_m} desde {lugar} hasta {sitio}.",
            "Pagaron {cuanto} monedas por {cosa_f} {fem}.",
        ),
        "gente": (
            "{quien} discutió con {vecino} por culpa de {cosa_f}.",
            "Todos hablan de {cosa_m} {masc} que apareció en {sitio}.",
            "{quien} bailó {cuando} en {lugar}, y la gente aplaudió.",
            "{quien} se sentó junto a {lugar} con {cosa_f} en las manos.",
            "Los niños corrían por {sitio} y gritaban de [alegría|rabia|miedo].",
            "Las mujeres cantaban en {lugar} mientras {quien} miraba {cosa_m}.",
            "Dicen que {quien} vio una luz en {sitio}.",
            "Nadie sabe por qué {quien} ya no pasa por {lugar}.",
            "Vino un forastero con {cosa_m} {masc} y preguntó por {quien}.",
            "{quien} lloró de [tristeza|alegría|rabia|vergüenza] al ver {cosa_f} {fem}.",
        ),
        "recuerdo": (
            "Mi padre decía que {sitio} no olvida a nadie.",
            "De {lugar} solo recuerdo el olor y {cosa_f}.",
            "Yo quería ser como {vecino}, y vivir cerca de {sitio}.",
            "Cuando yo era niño, {sitio} era más grande y {lugar} más blanca.",
            "Me acuerdo de {cosa_f} {fem} que estaba en la cocina.",
            "Hace {cuanto} años que no oigo aquella canción.",
            "En la memoria todo tiene el color de {cosa_m}.",
            "Quien pierde {cosa_f} pierde también un poco de {pena}.",
            "A veces sueño con {sitio} y me despierto con {pena}.",
        ),
        "casa": (
            "Sobre la cama está {cosa_f} que nadie usa.",
            "Mi hermana pequeña rompió {cosa_m} y dijo que fue el gato.",
            "En casa hay poco pan y mucha {pena_f}.",
            "Mi madre puso {cosa_f} sobre la mesa y apagó la luz.",
            "El gato duerme sobre {cosa_m} {masc}.",
            "La puerta de casa da a {lugar}, y la ventana a {sitio}.",
            "Cenamos {cuando} sin decir nada.",
        ),
        "habla": (
            "—¿Dónde está {cosa_f}? —preguntó {quien}.",
            "—No me gusta {sitio} [de noche|en invierno|sin gente] —dijo {quien}.",
            "—Mañana iremos a {lugar} —dijo {quien}—, si no hay {cielo}.",
            "—¿Quién {hizo} {cosa_m}? —preguntó {quien}.",
        ),
        "respuesta": (
            "—No lo sé —contesté con {pena}.",
            "—Está en {sitio}, como siempre.",
            "—Eso pasó hace {cuanto} años —dijo mi padre.",
            "—Calla —me dijo—, que nos oyen en {lugar}.",
            "—Dios dirá.",
        ),
    },
    chapter=_chapter,
)  # fmt: skip
