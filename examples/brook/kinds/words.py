# ruff: noqa: E501, SIM905, RUF005 (tables of words and phrases read best as they are)
"""The words that every kind of sample draws from, and a maker of words that no list holds."""

from random import Random

NAMES = (
    "Ada Alice Amir Anna Anton Astrid Ben Boris Carla Carlos Chen Clara Daniel Dara David Diego "
    "Dora Elena Eli Ella Emil Emma Erik Eva Farah Felix Fiona Frida Gina Grace Greta Hana Hans "
    "Hugo Ida Igor Ines Iris Isaac Ivan Jack Jana Jane John Jonas Julia Kai Karim Kate Kenji Lara "
    "Lars Lena Leo Lily Lina Lisa Liam Lucas Lucy Luis Lydia Mara Marco Maria Marie Mark Marta Max "
    "Maya Mia Mila Mohamed Nadia Nina Noah Nora Olga Oliver Omar Oscar Otto Paul Paula Peter Petra "
    "Priya Rafael Ravi Rita Robert Rosa Ruth Sam Sara Simon Sofia Stella Sven Tara Theo Tim Tom "
    "Uma Vera Victor Wendy Yara Yuki Yusuf Zara Zoe Bob Charlie Eve"
).split()

CITIES = (
    "Athens Bangkok Barcelona Beijing Berlin Bergen Bogota Boston Bristol Brussels Budapest Cairo "
    "Chicago Copenhagen Dakar Dallas Delhi Denver Dresden Dublin Florence Geneva Genoa Glasgow "
    "Hamburg Hanoi Havana Helsinki Houston Istanbul Jakarta Kyoto Lagos Leeds Lima Lisbon London "
    "Lyon Madrid Manila Milan Montreal Moscow Mumbai Munich Nairobi Naples Nice Osaka Oslo Ottawa "
    "Paris Porto Prague Quito Riga Rome Santiago Seattle Seoul Seville Singapore Sofia Stockholm "
    "Sydney Tallinn Tokyo Toronto Tunis Turin Venice Vienna Warsaw York Zurich Toledo Tampa Boise"
).split() + ["New York", "San Francisco", "Los Angeles", "Cape Town", "Hong Kong", "Buenos Aires"]

COLOURS = (
    "red blue green yellow orange purple pink brown black white grey silver golden violet "
    "turquoise crimson"
).split()

JOBS = (
    "teacher nurse baker farmer pilot painter doctor driver writer singer dancer gardener carpenter "
    "plumber tailor fisherman librarian engineer lawyer waiter potter chemist sailor cook judge "
    "builder dentist photographer mechanic shepherd"
).split()

ANIMALS = (
    "fox owl frog bear mouse rabbit otter hedgehog duck cat dog badger squirrel goat crow turtle "
    "horse cow sheep pig goose wolf deer mole swan robin snail beaver heron lizard parrot hamster "
    "donkey pony"
).split()

ITEMS = (
    "apple book lamp chair table pen notebook bottle cup plate spoon knife bag hat coat scarf "
    "shirt shoe umbrella clock watch phone camera radio guitar violin drum kite ball bicycle boat "
    "lantern candle basket bucket rope ladder hammer key ring bell map mirror pillow blanket "
    "carpet brush comb soap towel vase teapot ticket stamp letter box jar ribbon button needle"
).split()

FOODS = (
    "apples pears plums cherries grapes lemons bananas peaches carrots onions potatoes beans eggs "
    "cakes pies cookies loaves buns pancakes muffins nuts olives tomatoes melons figs mangoes"
).split()

THINGS = (
    "marbles coins stamps books pencils shells stones cards tickets stickers balloons flowers "
    "buttons candles keys toys"
).split()

ROOMS = (
    "kitchen garden cellar attic garage hall library bedroom bathroom office shed barn stable "
    "workshop balcony pantry"
).split()

SPOTS = (
    "under the bed|behind the door|on the shelf|in the drawer|under the old oak|in the blue box|"
    "behind the clock|on the window sill|in the top cupboard|under the stairs|next to the stove|"
    "inside the teapot|in the left pocket|below the bridge|beside the well|on the roof"
).split("|")

SUBJECTS = (
    "history maths music biology geography chemistry physics art drawing poetry cooking chess "
    "astronomy philosophy".split()
)

WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

MONTHS = (
    "January February March April May June July August September October November December"
).split()

LANGUAGES = (
    "French Spanish German Italian Dutch Polish Greek Arabic Hindi Japanese Korean Swedish "
    "Turkish Portuguese Russian Danish"
).split()

PLAIN_WORDS = (
    "time year people way day man woman child world life hand part place case week company system "
    "program question work number night point home water room mother area money story fact month "
    "lot right study eye job word business issue side kind head house service friend father power "
    "hour game line end member law car city name president team minute idea body back parent face "
    "level office door health person art war party result change morning reason research girl guy "
    "moment air teacher force education river stone cloud light green quiet small large early late "
    "happy brave slow quick warm cold deep high open close run walk jump sing read write bring "
    "carry hold find give take make know think look come go see hear feel become leave put mean "
    "keep let begin seem help talk turn start show play move live believe happen stand lose pay "
    "meet include continue set learn lead understand watch follow stop create speak allow add "
    "spend grow offer remember love consider appear buy wait serve die send expect build stay "
    "fall cut reach kill remain suggest raise pass sell require report decide pull north south "
    "east west winter summer spring autumn sun moon star rain snow wind storm field forest hill "
    "mountain valley lake sea beach island bridge road path wall roof window garden tree leaf root "
    "flower grass seed fruit bread milk honey salt sugar butter cheese rice soup tea coffee"
).split()

NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty "
    "hundred thousand first second third fourth fifth alpha beta gamma delta foo bar baz hello world"
).split()

_ONSETS = "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr kr pl sh sk st th tr".split()
_VOWELS = "a e i o u ai ea ee oo ou".split()
_CODAS = ["", "", "", "l", "m", "n", "r", "s", "t", "k", "ld", "nd", "rk", "x", "p"]


def made_up_word(rng: Random) -> str:
    """A pronounceable lower-case word of 2 or 3 syllables that is in no list."""
    count = rng.choice((2, 2, 3))
    body = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(count))
    return body + rng.choice(_CODAS)


def name(rng: Random) -> str:
    """A first name: usually a common one, sometimes made up, so that copying is learned."""
    return rng.choice(NAMES) if rng.random() < 0.65 else made_up_word(rng).capitalize()


def city(rng: Random) -> str:
    """A city: usually a real one, sometimes made up."""
    return rng.choice(CITIES) if rng.random() < 0.7 else made_up_word(rng).capitalize()


def distinct(rng: Random, make, count: int) -> list[str]:
    """`count` different values of `make(rng)`, in the order in which they were made."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[make(rng)] = None
    return list(found)


def code(rng: Random) -> str:
    """A number of 3 to 5 digits, as text."""
    return "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 5)))


def clock(rng: Random) -> str:
    """A time of day such as 07:45."""
    return f"{rng.randrange(24):02d}:{rng.randrange(0, 60, 5):02d}"


def article(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def listing(parts: list[str]) -> str:
    """`a, b and c`."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
