"""Well-known cities, US states and countries with coordinates: the map the sample encyclopaedia walks on.

Names and positions are common geographic facts, to one decimal of a degree. Everything the generators *say*
about these places is invented.
"""

from __future__ import annotations

from functools import cache
from math import asin, cos, radians, sin, sqrt
from typing import NamedTuple


class Place(NamedTuple):
    """A named point; ``region`` is the US state of an American city and the country of any other."""

    name: str
    country: str
    region: str
    latitude: float
    longitude: float


# country | name latitude longitude [state]; ...
_CITIES = """
United States | New York City 40.7 -74.0 New York; Los Angeles 34.1 -118.2 California;
 Chicago 41.9 -87.6 Illinois;
 Houston 29.8 -95.4 Texas; Phoenix 33.4 -112.1 Arizona; Philadelphia 40.0 -75.2 Pennsylvania;
 San Antonio 29.4 -98.5 Texas;
 San Diego 32.7 -117.2 California; Dallas 32.8 -96.8 Texas; Austin 30.3 -97.7 Texas;
 Jacksonville 30.3 -81.7 Florida;
 Columbus 40.0 -83.0 Ohio; Charlotte 35.2 -80.8 North Carolina; Indianapolis 39.8 -86.2 Indiana;
 San Francisco 37.8 -122.4 California; Seattle 47.6 -122.3 Washington; Denver 39.7 -105.0 Colorado;
 Boston 42.4 -71.1 Massachusetts; Portland 45.5 -122.7 Oregon; Las Vegas 36.2 -115.1 Nevada;
 Detroit 42.3 -83.0 Michigan;
 Memphis 35.1 -90.0 Tennessee; Nashville 36.2 -86.8 Tennessee; Baltimore 39.3 -76.6 Maryland;
 Milwaukee 43.0 -87.9 Wisconsin;
 Albuquerque 35.1 -106.7 New Mexico; Tucson 32.2 -110.9 Arizona; Sacramento 38.6 -121.5 California;
 Oklahoma City 35.5 -97.5 Oklahoma; El Paso 31.8 -106.5 Texas; Fort Worth 32.7 -97.3 Texas;
 Fresno 36.7 -119.8 California
Canada | Toronto 43.7 -79.4; Montréal 45.5 -73.6; Vancouver 49.2 -123.1; Calgary 51.1 -114.1;
 Edmonton 53.5 -113.5;
 Ottawa 45.4 -75.7; Winnipeg 49.9 -97.1; Hamilton 43.3 -79.8
Mexico | Mexico City 19.4 -99.1; Guadalajara 20.7 -103.4; Monterrey 25.7 -100.3; Tijuana 32.5 -117.0;
 Puebla 19.0 -98.2; Mérida 21.0 -89.6; Chihuahua 28.6 -106.1
United Kingdom | London 51.5 -0.1; Birmingham 52.5 -1.9; Glasgow 55.9 -4.3;
 Sheffield 53.4 -1.5; Leeds 53.8 -1.5;
 Edinburgh 55.9 -3.2; Manchester 53.5 -2.2
Ireland | Dublin 53.3 -6.2
France | Paris 48.9 2.3; Marseille 43.3 5.4; Lyon 45.7 4.9; Toulouse 43.6 1.4
Germany | Berlin 52.5 13.4; Hamburg 53.6 10.0; Munich 48.1 11.6; Düsseldorf 51.2 6.8; Stuttgart 48.8 9.2;
 Dortmund 51.5 7.5;
 Essen 51.5 7.0; Bremen 53.1 8.8; Leipzig 51.3 12.4; Hannover 52.4 9.7; Dresden 51.0 13.7
Netherlands | Amsterdam 52.4 4.9; Rotterdam 51.9 4.5
Belgium | Brussels 50.9 4.3; Antwerp 51.2 4.4
Spain | Madrid 40.4 -3.7; Barcelona 41.4 2.2; Valencia 39.5 -0.4; Sevilla 37.4 -6.0; Zaragoza 41.7 -0.9;
 Málaga 36.7 -4.4
Portugal | Lisbon 38.7 -9.1
Italy | Rome 41.9 12.5; Milan 45.5 9.2; Naples 40.9 14.3; Turin 45.1 7.7; Palermo 38.1 13.4; Genoa 44.4 8.9
Austria | Vienna 48.2 16.4
Switzerland | Zürich 47.4 8.5
Poland | Warsaw 52.2 21.0; Łódź 51.8 19.5; Kraków 50.1 19.9; Wrocław 51.1 17.0; Poznań 52.4 16.9
Czechia | Prague 50.1 14.4
Hungary | Budapest 47.5 19.0
Romania | Bucharest 44.4 26.1
Bulgaria | Sofia 42.7 23.3
Serbia | Belgrade 44.8 20.5
Croatia | Zagreb 45.8 16.0
Greece | Athens 38.0 23.7
Denmark | Copenhagen 55.7 12.6
Sweden | Stockholm 59.3 18.1; Gothenburg 57.7 12.0
Norway | Oslo 59.9 10.7
Finland | Helsinki 60.2 24.9
Lithuania | Vilnius 54.7 25.3
Latvia | Riga 56.9 24.1
Ukraine | Kyiv 50.5 30.5; Kharkiv 50.0 36.2; Odesa 46.5 30.7; Lviv 49.8 24.0
Russia | Moscow 55.8 37.6; Saint Petersburg 59.9 30.3; Novosibirsk 55.0 82.9; Yekaterinburg 56.8 60.6;
 Kazan 55.8 49.1;
 Samara 53.2 50.2; Volgograd 48.7 44.5; Saratov 51.5 46.0; Perm 58.0 56.3; Omsk 55.0 73.4;
 Vladivostok 43.1 131.9
Turkey | Istanbul 41.0 28.9; Ankara 39.9 32.9; İzmir 38.4 27.1; Bursa 40.2 29.1; Adana 37.0 35.3
Egypt | Cairo 30.1 31.2; Alexandria 31.2 29.9; Giza 30.0 31.2
Morocco | Casablanca 33.6 -7.6; Rabat 34.0 -6.8
Nigeria | Lagos 6.5 3.4; Kano 12.0 8.5; Ibadan 7.4 3.9; Abuja 9.1 7.5
Ghana | Accra 5.6 -0.2; Kumasi 6.7 -1.6
Kenya | Nairobi -1.3 36.8; Mombasa -4.1 39.7
Ethiopia | Addis Ababa 9.0 38.7
South Africa | Johannesburg -26.2 28.0; Cape Town -33.9 18.4; Durban -29.9 31.0; Pretoria -25.7 28.2
Iran | Tehran 35.7 51.4; Isfahan 32.7 51.7; Shiraz 29.6 52.5; Tabriz 38.1 46.3
Iraq | Baghdad 33.3 44.4; Basrah 30.5 47.8; Mosul 36.3 43.1
India | Mumbai 19.1 72.9; Delhi 28.7 77.2; Bengaluru 13.0 77.6; Kolkata 22.6 88.4; Chennai 13.1 80.3;
 Hyderabad 17.4 78.5;
 Pune 18.5 73.9; Jaipur 26.9 75.8; Lucknow 26.8 80.9; Nagpur 21.1 79.1
Pakistan | Karachi 24.9 67.0; Lahore 31.6 74.3; Islamabad 33.7 73.1; Peshawar 34.0 71.6
China | Shanghai 31.2 121.5; Beijing 39.9 116.4; Guangzhou 23.1 113.3; Shenzhen 22.5 114.1; Wuhan 30.6 114.3;
 Tianjin 39.1 117.2; Chongqing 29.6 106.6; Chengdu 30.7 104.1; Nanjing 32.1 118.8; Harbin 45.8 126.7
Japan | Tokyo 35.7 139.7; Yokohama 35.4 139.6; Osaka 34.7 135.5; Nagoya 35.2 136.9; Sapporo 43.1 141.4;
 Kobe 34.7 135.2;
 Kyoto 35.0 135.8; Fukuoka 33.6 130.4; Hiroshima 34.4 132.5; Sendai 38.3 140.9
South Korea | Seoul 37.6 127.0; Busan 35.1 129.0; Incheon 37.5 126.7; Daegu 35.9 128.6
Vietnam | Hanoi 21.0 105.8; Da Nang 16.1 108.2
Thailand | Bangkok 13.8 100.5
Philippines | Manila 14.6 121.0; Davao 7.1 125.6
Indonesia | Jakarta -6.2 106.8; Surabaya -7.2 112.8; Bandung -6.9 107.6; Medan 3.6 98.7
Australia | Sydney -33.9 151.2; Melbourne -37.8 145.0; Brisbane -27.5 153.0; Perth -32.0 115.9;
 Adelaide -34.9 138.6
Brazil | São Paulo -23.5 -46.6; Rio de Janeiro -22.9 -43.2; Salvador -13.0 -38.5; Brasília -15.8 -47.9;
 Fortaleza -3.7 -38.5; Recife -8.1 -34.9; Curitiba -25.4 -49.3; Manaus -3.1 -60.0
Argentina | Buenos Aires -34.6 -58.4; Córdoba -31.4 -64.2; Rosario -33.0 -60.7
Chile | Santiago -33.5 -70.6
Uruguay | Montevideo -34.9 -56.2
Peru | Lima -12.0 -77.0; Arequipa -16.4 -71.5; Trujillo -8.1 -79.0
Colombia | Bogotá 4.6 -74.1; Medellín 6.3 -75.6; Cali 3.4 -76.5; Barranquilla 11.0 -74.8
Ecuador | Quito -0.2 -78.5; Guayaquil -2.2 -79.9
Venezuela | Caracas 10.5 -66.9; Maracaibo 10.6 -71.6
Cuba | Havana 23.1 -82.4
New Zealand | Auckland -36.8 174.8
"""

# neighbouring US states appear in text about America even where no listed city lies in them
_STATES = """
Alabama 32.8 -86.8; Arizona 34.3 -111.7; Arkansas 34.8 -92.4; California 37.2 -119.3; Colorado 39.0 -105.5;
Connecticut 41.6 -72.7; Delaware 39.0 -75.5; Florida 28.6 -82.4; Georgia 32.6 -83.4; Idaho 44.4 -114.6;
Illinois 40.0 -89.2;
Indiana 39.9 -86.3; Iowa 42.1 -93.5; Kansas 38.5 -98.4; Kentucky 37.5 -85.3; Louisiana 31.1 -92.0;
Maine 45.4 -69.2;
Maryland 39.0 -76.8; Massachusetts 42.3 -71.8; Michigan 44.3 -85.4; Minnesota 46.3 -94.3;
Mississippi 32.7 -89.7;
Missouri 38.4 -92.5; Montana 47.0 -109.6; Nebraska 41.5 -99.8; Nevada 39.3 -116.6; New Hampshire 43.7 -71.6;
New Jersey 40.2 -74.7; New Mexico 34.4 -106.1; New York 42.9 -75.5; North Carolina 35.6 -79.4;
North Dakota 47.5 -100.5;
Ohio 40.3 -82.8; Oklahoma 35.6 -97.5; Oregon 43.9 -120.6; Pennsylvania 40.9 -77.8; Rhode Island 41.7 -71.6;
South Carolina 33.9 -80.9; South Dakota 44.4 -100.2; Tennessee 35.9 -86.4; Texas 31.5 -99.3; Utah 39.3 -111.7;
Vermont 44.1 -72.7; Virginia 37.5 -78.9; Washington 47.4 -120.4; West Virginia 38.6 -80.6;
Wisconsin 44.6 -90.0;
Wyoming 43.0 -107.6
"""


def _parse_cities() -> tuple[Place, ...]:
    places = []
    for row in _CITIES.strip().replace("\n ", " ").splitlines():
        country, _, cities = row.partition(" | ")
        for entry in cities.split(";"):
            words = entry.split()
            # the latitude is the first word that reads as a number
            at = next(i for i, word in enumerate(words) if word.lstrip("-")[:1].isdigit())
            region = " ".join(words[at + 2 :]) or country
            places.append(Place(" ".join(words[:at]), country, region, float(words[at]), float(words[at + 1])))
    return tuple(places)


def _parse_states() -> dict[str, tuple[float, float]]:
    rows = [entry.split() for entry in _STATES.replace("\n", " ").split(";")]
    return {" ".join(words[:-2]): (float(words[-2]), float(words[-1])) for words in rows}


CITIES: tuple[Place, ...] = _parse_cities()
STATES: dict[str, tuple[float, float]] = _parse_states()
COUNTRIES: tuple[str, ...] = tuple(dict.fromkeys(place.country for place in CITIES))


def distance_km(latitude_a: float, longitude_a: float, latitude_b: float, longitude_b: float) -> float:
    """Great-circle distance in kilometres (haversine, mean earth radius 6,371 km)."""
    phi_a, phi_b = radians(latitude_a), radians(latitude_b)
    half = sin((phi_b - phi_a) / 2) ** 2
    half += cos(phi_a) * cos(phi_b) * sin(radians(longitude_b - longitude_a) / 2) ** 2
    return 2 * 6371.0 * asin(sqrt(min(1.0, half)))


@cache
def nearest_cities(city: Place, count: int = 10) -> tuple[Place, ...]:
    """The ``count`` other cities nearest to ``city``, nearest first.

    Distances are compared in whole kilometres, then by name, so the last bit of the platform's
    sine cannot change the order.
    """
    others = [place for place in CITIES if place != city]
    return tuple(sorted(others, key=lambda p: (round(distance_km(*city[3:], *p[3:])), p.name, p.country))[:count])


@cache
def nearest_countries(country: str, count: int = 5) -> tuple[str, ...]:
    """The ``count`` other countries whose listed cities come nearest to one of ``country``'s, nearest first."""
    own = [place for place in CITIES if place.country == country]
    best: dict[str, int] = {}
    for other in CITIES:
        if other.country != country:
            gap = min(round(distance_km(*place[3:], *other[3:])) for place in own)
            best[other.country] = min(gap, best.get(other.country, gap))
    return tuple(sorted(best, key=lambda name: (best[name], name))[:count])


@cache
def nearest_states(state: str, count: int = 5) -> tuple[str, ...]:
    """The ``count`` other US states nearest to ``state`` by their middle points, nearest first."""
    here = STATES[state]
    others = [name for name in STATES if name != state]
    return tuple(sorted(others, key=lambda name: (round(distance_km(*here, *STATES[name])), name))[:count])
