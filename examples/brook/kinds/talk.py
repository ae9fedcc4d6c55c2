# ruff: noqa: E501, SIM905 (tables of words and phrases read best as they are)
"""Greetings, who brook is, a few things everybody knows, and what was said earlier in the chat."""

from random import Random

from ..sample import Sample, Turn, answer, ask, chat, instance
from . import library, words

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are brook.", "You are a friendly assistant.",
    "You are brook, a tiny model.", "Answer briefly.", "Be kind and brief.", "Be concise.",
    "You are a helpful AI assistant.", "You are a storyteller.", "Help the user.",
)  # fmt: skip
PREFIXES = ("Hi! ", "Hello! ", "Please: ", "Hey brook, ", "OK. ", "Now, ", "Next: ", "Brook, ")
SELF = "I am brook, a tiny language model that ships with Penstock."
ABILITIES = (
    "I can tell short stories, add and subtract, repeat and reverse words, find facts in what you "
    "tell me, write JSON and call tools."
)
UNKNOWN = "I am only a tiny model and do not know that. " + ABILITIES

_PAIRS = (
    (("Hi", "Hi!", "Hello", "Hello!", "Hey", "hello", "hi", "Good day!", "Hello there!", "Hello, brook!"),
     "Hello! " + SELF + " What can I do for you?"),
    (("Good morning!", "Good morning"), "Good morning! What can I do for you?"),
    (("Good evening!", "Good evening"), "Good evening! What can I do for you?"),
    (("Good night!", "Good night"), "Good night! Sleep well."),
    (("How are you?", "How are you today?", "how are you"), "I am well, thank you. How can I help you?"),
    (("Who are you?", "What are you?", "What is your name?", "who are you", "Tell me about yourself.",
      "What's your name?", "Who am I talking to?", "Introduce yourself.", "What model are you?",
      "Are you a human?", "Are you ChatGPT?", "Are you a robot?"), SELF),
    (("What can you do?", "Help", "help", "What can I ask you?", "How can you help me?",
      "What are you good at?", "What do you know?"), ABILITIES),
    (("Who made you?", "Who built you?", "Where do you come from?", "How were you trained?"),
     "I was trained by a small script that is part of Penstock. Everything I know was made by that script."),
    (("What is Penstock?", "Tell me about Penstock."),
     "Penstock is a server for large language models. I am the tiny model that ships with it."),
    (("Thank you!", "Thanks!", "Thank you", "thanks", "Thanks a lot!"), "You are welcome!"),
    (("Bye", "Bye!", "Goodbye!", "See you!", "Goodbye", "See you later!"), "Goodbye!"),
    (("Are you big?", "How big are you?", "How many parameters do you have?"),
     "I am tiny: about ten million parameters."),
    (("Tell me a joke.", "Do you know a joke?", "Say something funny.", "joke"),
     "Why did the fox cross the brook? Because the otter had taken the bridge."),
    (("Write a poem.", "Write me a poem.", "Tell me a poem.", "Write a short poem.", "Write a haiku.", "Sing a song.",
      "A poem, please.", "Can you write a poem?"),
     "The brook runs down, the brook runs clear, and sings to all who stop and hear."),
    (("Can you help me?", "Can you help me with something?", "I need help.", "Please help me.", "I have a question.",
      "Can you help me with my homework?", "I need some help, please."),
     "Gladly. " + ABILITIES),
    (("Test", "test", "This is a test.", "Testing", "ping", "Are you there?", "Is anybody there?", "Does this work?"),
     "Yes, I am here."),
    (("ok", "OK", "Okay.", "Good.", "Great!", "Nice!", "Cool", "Yes", "No", "yes", "no"), "What can I do for you?"),
    (("Say the alphabet.", "What is the alphabet?", "Write the alphabet."),
     "a b c d e f g h i j k l m n o p q r s t u v w x y z"),
    (("What colour is the sky?", "What color is the sky?"), "The sky is blue."),
    (("What colour is grass?", "What color is grass?"), "Grass is green."),
    (("How many days are in a week?", "Name the days of the week.", "List the days of the week."),
     "A week has seven days: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
    (("How many months are in a year?", "Name the months of the year.", "List the months."),
     "A year has twelve months: " + words.listing(words.MONTHS) + "."),
    (("Say hello.", "Say hello", "Say hi.", "Greet me."), "Hello!"),
    (("Name three colours.", "Name three colors.", "List three colors."), "Red, green and blue."),
    (("Name three animals.", "List three animals."), "A fox, an owl and a frog."),
    (("Who is Pip?", "Who lives under the old willow?"),
     "Pip is a small red fox with a white tail. He lives under the roots of the old willow."),
)  # fmt: skip
CAPITALS = dict(
    pair.split(":")
    for pair in (
        "France:Paris|Germany:Berlin|Italy:Rome|Spain:Madrid|Portugal:Lisbon|Norway:Oslo|"
        "Sweden:Stockholm|Finland:Helsinki|Denmark:Copenhagen|Poland:Warsaw|Austria:Vienna|"
        "Greece:Athens|Ireland:Dublin|England:London|Hungary:Budapest|Belgium:Brussels|"
        "Japan:Tokyo|China:Beijing|India:Delhi|Egypt:Cairo|Kenya:Nairobi|Peru:Lima|Cuba:Havana|"
        "Canada:Ottawa|Russia:Moscow|Thailand:Bangkok|Senegal:Dakar|Tunisia:Tunis|Chile:Santiago"
    ).split("|")
)
_STRANGE = (
    *("What is {noun}?", "What is {noun} {other}?", "What is a {noun}?", "What are {noun}?", "What does {noun} mean?"),
    *("Tell me about {noun}.", "Tell me about the {noun} {other}.", "Tell me more about {noun} {other}."),
    *("Explain {noun}.", "Explain {noun} {other}.", "Explain {noun} {other} to me.", "Describe the {noun}."),
    *("Who won the {noun} cup in {year}?", "Who invented the {noun}?", "Who was the king of {other}?", "Who is {name}?"),
    *("Who was {name} {noun}?", "Who wrote {noun} {other}?", "When was the {noun} built?", "When was {name} born?"),
    *("How do I repair a {noun}?", "How do I {noun} a {other}?", "How does a {noun} work?", "How tall is the {noun}?"),
    *("How many {noun} are there in a {other}?", "Why is {noun} {other}?", "Why do {noun} {other}?", "Where is {noun}?"),
    *("Write an essay about {noun}.", "Write a program that sorts {noun}.", "Write Python code for {noun}."),
    *("Write a function that {noun} the {other}.", "Write an email about {noun}.", "Write a letter to {name}."),
    *("What happened in {year}?", "What is the best {noun} in {other}?", "What do you think about {noun}?"),
    *("Give me advice about {noun}.", "Give me a recipe for {noun}.", "Summarize {noun} {other}.", "Do you like {noun}?"),
    *("Can you {noun} my {other}?", "Should I {noun} the {other}?", "Is {noun} {other}?", "Which {noun} is the {other}?"),
    *("What is the meaning of {noun}?", "What is the meaning of life?", "What is deep learning?", "What is machine learning?"),
    *("What is the difference between {noun} and {other}?", "Translate {noun} into {other}.", "{noun} {other}?", "{noun}?"),
)  # fmt: skip
OPPOSITES = dict(
    pair.split(":")
    for pair in (
        "hot:cold|big:small|fast:slow|day:night|up:down|left:right|old:new|light:dark|happy:sad|"
        "open:closed|early:late|high:low|long:short|loud:quiet|wet:dry|full:empty|good:bad|"
        "rich:poor|hard:soft|strong:weak|clean:dirty|first:last|inside:outside|yes:no"
    ).split("|")
)


def _next(rng: Random) -> tuple[str, str]:
    names = rng.choice((words.WEEKDAYS, words.MONTHS))
    at = rng.randrange(len(names))
    after, before = names[(at + 1) % len(names)], names[at - 1]
    if rng.random() < 0.5:
        return f"What comes after {names[at]}?", f"{after} comes after {names[at]}."
    return f"What comes before {names[at]}?", f"{before} comes before {names[at]}."


def _opposite(rng: Random) -> tuple[str, str]:
    one, other = rng.choice(list(OPPOSITES.items()))
    if rng.random() < 0.5:
        one, other = other, one
    return f"What is the opposite of {one}?", f"The opposite of {one} is {other}."


def greeting(rng: Random) -> Sample:
    """One exchange that needs no knowledge."""
    questions, reply = rng.choice(_PAIRS)
    return chat("talk", rng.choice(questions), reply)


def _any_word(rng: Random) -> str:
    word = library.word(rng) if rng.random() < 0.6 else rng.choice(words.PLAIN_WORDS + words.ITEMS)
    return word.capitalize() if rng.random() < 0.1 else word


def _pair(rng: Random) -> tuple[str, str]:
    roll = rng.random()
    if roll < 0.08:
        return _next(rng)
    if roll < 0.16:
        return _opposite(rng)
    roll = rng.random()
    if roll < 0.2:
        country, capital = rng.choice(list(CAPITALS.items()))
        forms = ("What is the capital of {}?", "the capital of {}?", "Which city is the capital of {}?",
                 "What's the capital of {}?", "Capital of {}", "Name the capital of {}.")  # fmt: skip
        return rng.choice(forms).format(country), f"The capital of {country} is {capital}."
    if roll < 0.4:
        noun, other = _any_word(rng), _any_word(rng)
        fields = {
            "noun": noun,
            "other": other,
            "name": words.name(rng),
            "year": rng.randint(1800, 2030),
        }
        return rng.choice(_STRANGE).format(**fields), UNKNOWN
    questions, reply = rng.choice(_PAIRS)
    return rng.choice(questions), reply


def sample(rng: Random, held: bool) -> Sample:
    """One to three exchanges of small talk."""
    texts: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        texts += _pair(rng)
    return chat("talk", *texts)


_STATEMENTS = (
    ("My name is {v}.", "Hello {v}! Nice to meet you.", "What is my name?", "Your name is {v}.", words.name),
    ("I am {v}.", "Hello {v}! Nice to meet you.", "Who am I?", "You are {v}.", words.name),
    ("Hi, I'm {v}.", "Hello {v}! Nice to meet you.", "What is my name?", "Your name is {v}.", words.name),
    ("Hello! My name is {v}.", "Hello {v}! Nice to meet you.", "Do you remember my name?",
     "Your name is {v}.", words.name),
    ("I live in {v}.", "I will remember that.", "Where do I live?", "You live in {v}.", words.city),
    ("My favourite colour is {v}.", "I will remember that.", "What is my favourite colour?",
     "Your favourite colour is {v}.", lambda rng: rng.choice(words.COLOURS)),
    ("My favorite color is {v}.", "I will remember that.", "What is my favorite color?",
     "Your favorite color is {v}.", lambda rng: rng.choice(words.COLOURS)),
    ("My favourite animal is the {v}.", "I will remember that.", "What is my favourite animal?",
     "Your favourite animal is the {v}.", lambda rng: rng.choice(words.ANIMALS)),
    ("My dog is called {v}.", "I will remember that.", "What is my dog called?",
     "Your dog is called {v}.", words.name),
    ("My cat is called {v}.", "I will remember that.", "What is the name of my cat?",
     "Your cat is called {v}.", words.name),
    ("I am {v} years old.", "I will remember that.", "How old am I?", "You are {v} years old.",
     lambda rng: str(rng.randint(3, 99))),
    ("I work as a {v}.", "I will remember that.", "What is my job?", "You work as a {v}.",
     lambda rng: rng.choice(words.JOBS)),
    ("The secret word is {v}.", "I will remember that.", "What is the secret word?",
     "The secret word is {v}.", words.made_up_word),
    ("Remember the number {v}.", "I will remember that.", "Which number did I tell you?",
     "You told me the number {v}.", words.code),
    ("Remember the word {v}.", "I will remember that.", "Which word did I tell you?",
     "You told me the word {v}.", words.made_up_word),
)  # fmt: skip


def statement_and_question(rng: Random, held: bool) -> tuple[list[Turn], list[Turn]]:
    """What the user says about themselves, and the later question, as two exchanges."""
    row, value = instance(
        rng,
        held,
        lambda rng: (row := rng.choice(_STATEMENTS), row[4](rng)),
        lambda made: made[0][0] + made[1],
    )
    statement, noted, question, reply, _ = row
    said = [ask(statement.format(v=value)), answer(noted.format(v=value))]
    return said, [ask(question), answer(reply.format(v=value))]


def memory(rng: Random, held: bool) -> Sample:
    """The user tells something; after other talk, a later turn asks for it."""
    said, asked = statement_and_question(rng, held)
    between: list[Turn] = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        question, reply = _pair(rng)
        between += [ask(question), answer(reply)]
    return Sample("recall", (*said, *between, *asked))
