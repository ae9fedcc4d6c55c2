# ruff: noqa: E501, SIM905 (tables of words and phrases read best as they are)
"""The small world of the stories: who lives along the brook, the places, and the things there."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Character:
    """Someone who lives along the brook; the same in every story."""

    # What they are, as a request names it ("fox").
    species: str
    # What they are called.
    name: str
    # Looks, in a few words.
    looks: str
    # Nature, in one word.
    nature: str
    # "he" or "she".
    pronoun: str
    # Where they live.
    home: str


def _read(table: str) -> tuple[Character, ...]:
    rows = (line.split("|") for line in table.strip().splitlines())
    return tuple(Character(*(cell.strip() for cell in row)) for row in rows)


CAST = _read("""
fox      | Pip     | a small red fox with a white tail     | curious  | he  | under the roots of the old willow
owl      | Hazel   | a brown owl with big round eyes       | wise     | she | at the top of the mill
frog     | Moss    | a green frog with long legs           | cheerful | he  | in the reeds by the pond
bear     | Bramble | a big brown bear with soft paws       | gentle   | he  | in a cave on Windy Hill
mouse    | Tilly   | a tiny grey mouse with pink ears      | brave    | she | behind the flour sacks in the mill
rabbit   | Clover  | a white rabbit with one brown ear     | quick    | she | in a burrow in the long meadow
otter    | Ripple  | a sleek otter with wet whiskers       | playful  | she | under the stone bridge
hedgehog | Burr    | a round hedgehog with a hundred spines | shy     | he  | under a heap of leaves
duck     | Dabble  | a yellow duck with a loud voice       | proud    | she | on the island in the pond
cat      | Soot    | a black cat with green eyes           | clever   | he  | on the roof of the bakery
dog      | Rufus   | a shaggy dog with floppy ears         | loyal    | he  | beside the gate of the farm
badger   | Grump   | an old badger with a striped face     | stubborn | he  | below the roots of the oak
squirrel | Acorn   | a red squirrel with a bushy tail      | busy     | she | in the hollow oak
goat     | Biddy   | a white goat with crooked horns       | merry    | she | on the rocks above the farm
crow     | Jet     | a black crow with shiny feathers      | clever   | he  | on the church tower
turtle   | Pebble  | an old turtle with a mossy shell      | patient  | she | on the warm stones by the ford
girl     | Mina    | a girl with muddy boots               | kind     | she | in the house by the bridge
boy      | Finn    | a boy with a blue cap                 | cheerful | he  | in the cottage near the mill
""")

PLACES = (
    "the old mill|the stone bridge|the willow tree|the long meadow|Windy Hill|the deep wood|"
    "the quiet pond|the bakery|the farm|the ford|the hollow oak|the market|the waterfall|"
    "the apple orchard|the little island"
).split("|")

# What a thing is good for decides in which plots it can take part.
THINGS = {
    "boat": "ride",
    "raft": "ride",
    "cart": "ride",
    "sled": "ride",
    "lantern": "light",
    "candle": "light",
    "lamp": "light",
    "kite": "toy",
    "ball": "toy",
    "drum": "toy",
    "flute": "toy",
    "whistle": "toy",
    "rope": "tool",
    "ladder": "tool",
    "net": "tool",
    "bucket": "tool",
    "basket": "tool",
    "key": "treasure",
    "ring": "treasure",
    "bell": "treasure",
    "coin": "treasure",
    "shell": "treasure",
    "map": "treasure",
    "feather": "treasure",
    "stone": "treasure",
    "crown": "treasure",
    "letter": "treasure",
    "hat": "treasure",
    "umbrella": "treasure",
    "scarf": "treasure",
    "book": "treasure",
    "clock": "treasure",
    "cake": "food",
    "apple": "food",
    "pie": "food",
    "pear": "food",
    "loaf": "food",
    "cookie": "food",
}

ADJECTIVES = {
    "ride": ("little", "wooden", "old", "green", "blue"),
    "light": ("bright", "little", "brass", "old"),
    "toy": ("red", "yellow", "new", "wooden", "small"),
    "tool": ("long", "strong", "old", "good"),
    "treasure": ("golden", "silver", "tiny", "shiny", "beautiful"),
    "food": ("sweet", "warm", "big", "fresh", "golden"),
}

# For heroes from elsewhere.
STRANGERS = "dragon robot princess wizard knight pirate giant king queen monkey lion elephant tiger fairy whale penguin unicorn sailor baker cloud".split()
LOOKS = "small tall young old green white golden friendly tiny fat thin quiet".split()
HOMES = (
    "beyond the hills|at the end of the long road|in a house made of stone|near the waterfall|"
    "in the deep wood|in a small town by the sea|on the other side of the brook"
).split("|")
