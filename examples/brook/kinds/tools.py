# ruff: noqa: E501, SIM905 (tables of words and phrases read best as they are)
"""Tool calls: tools offered as JSON schemas, a request, the call, its result, and the answer.

Names of functions and parameters vary, so that the model reads them off the schema.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ..sample import Sample, Turn, answer, ask, compact, instance
from . import talk, words

Value = str | int
Maker = Callable[[Random], Value]


@dataclass(frozen=True)
class Slot:
    """A parameter of a tool family."""

    # Names that the parameter goes by.
    names: tuple[str, ...]
    # Its JSON type.
    type: str
    # Makes a value.
    make: Maker


@dataclass(frozen=True)
class Family:
    """Tools that do the same thing under different names."""

    # Names of the function.
    names: tuple[str, ...]
    # Descriptions of it.
    descriptions: tuple[str, ...]
    # Its parameters; requests name them {0}, {1}, ...
    slots: tuple[Slot, ...]
    # Ways to ask for it.
    requests: tuple[str, ...]
    # Makes a result, as a JSON object.
    result: Callable[[Random], dict[str, Value]]
    # Says the result: {0}, {1} are arguments, {key} what the result holds.
    reply: str


_CITY = Slot(("city", "location", "place", "town"), "string", words.city)
_PERSON = Slot(("name", "person", "to", "recipient"), "string", words.name)
_ITEM = Slot(("item", "product", "article"), "string", lambda rng: rng.choice(words.ITEMS))
_A = Slot(("a", "x", "first"), "integer", lambda rng: rng.randrange(1000))
_B = Slot(("b", "y", "second"), "integer", lambda rng: rng.randrange(1000))
_SKIES = "sunny cloudy rainy windy foggy snowy clear".split()


def _text(rng: Random) -> str:
    return " ".join(rng.choice(words.PLAIN_WORDS) for _ in range(rng.randint(2, 6)))


def _title(rng: Random) -> str:
    return f"The {rng.choice(words.COLOURS).capitalize()} {rng.choice(words.ITEMS).capitalize()}"


_DONE: Callable[[Random], dict[str, Value]] = lambda rng: {"status": "ok"}  # noqa: E731

FAMILIES = (
    Family(
        ("get_weather", "get_current_weather", "weather", "weather_now", "lookup_weather"),
        ("Get the current weather.", "Current weather in a city.", "Get the weather for a location."),
        (_CITY,),
        ("What is the weather in {0}?", "What's the weather like in {0}?", "How is the weather in {0}?",
         "Tell me the weather in {0}.", "Is it raining in {0}?", "weather in {0}",
         "What is the weather like in {0} today?", "Do I need a coat in {0}?"),
        lambda rng: {"temperature": rng.randint(0, 40), "sky": rng.choice(_SKIES)},
        "In {0} it is {sky}, with {temperature} degrees.",
    ),
    Family(
        ("get_time", "current_time", "time_in", "clock"),
        ("Get the current time in a city.", "What time it is somewhere.", "Local time."),
        (_CITY,),
        ("What time is it in {0}?", "Tell me the time in {0}.", "How late is it in {0}?",
         "What is the local time in {0}?"),
        lambda rng: {"time": words.clock(rng)},
        "It is {time} in {0}.",
    ),
    Family(
        ("add", "sum", "add_numbers", "plus"),
        ("Add two numbers.", "The sum of two numbers."),
        (_A, _B),
        ("Add {0} and {1}.", "What is {0} plus {1}?", "What is {0} + {1}?", "Compute {0} + {1}."),
        lambda rng: {"result": rng.randrange(2000)},
        "The result is {result}.",
    ),
    Family(
        ("multiply", "product", "times", "multiply_numbers"),
        ("Multiply two numbers.", "The product of two numbers."),
        (_A, _B),
        ("Multiply {0} by {1}.", "What is {0} times {1}?", "What is {0} * {1}?"),
        lambda rng: {"result": rng.randrange(100000)},
        "The result is {result}.",
    ),
    Family(
        ("send_message", "send_text", "message", "send_sms"),
        ("Send a message to a person.", "Send a text message."),
        (_PERSON, Slot(("text", "message", "body"), "string", _text)),
        ("Send {0} the message: {1}", 'Tell {0} "{1}".', "Write to {0}: {1}", "Message {0}: {1}"),
        _DONE,
        "I have sent your message to {0}.",
    ),
    Family(
        ("set_timer", "start_timer", "timer"),
        ("Set a timer.", "Start a timer for some minutes."),
        (Slot(("minutes", "duration", "length"), "integer", lambda rng: rng.randint(1, 120)),),
        ("Set a timer for {0} minutes.", "Wake me in {0} minutes.", "Start a timer: {0} minutes.",
         "Remind me in {0} minutes."),
        _DONE,
        "The timer is set for {0} minutes.",
    ),
    Family(
        ("switch_light", "set_light", "light"),
        ("Turn the light of a room on or off.", "Switch a light."),
        (Slot(("room", "where", "area"), "string", lambda rng: rng.choice(words.ROOMS)),
         Slot(("state", "mode", "value"), "string", lambda rng: rng.choice(("on", "off")))),
        ("Turn the light in the {0} {1}.", "Switch the {0} light {1}.", "Light {1} in the {0}, please."),
        _DONE,
        "The light in the {0} is {1}.",
    ),
    Family(
        ("get_price", "price_of", "lookup_price", "product_price"),
        ("Get the price of an item.", "Look up what something costs."),
        (_ITEM,),
        ("How much is the {0}?", "What does a {0} cost?", "What is the price of the {0}?"),
        lambda rng: {"price": rng.randint(1, 500)},
        "The {0} costs {price} euros.",
    ),
    Family(
        ("book_table", "reserve_table", "make_reservation"),
        ("Reserve a table in a restaurant.", "Book a table for some people."),
        (Slot(("people", "guests", "seats"), "integer", lambda rng: rng.randint(2, 12)),
         Slot(("time", "at", "hour"), "string", words.clock)),
        ("Book a table for {0} at {1}.", "Reserve a table for {0} people at {1}.",
         "We are {0} and want to eat at {1}."),
        lambda rng: {"number": rng.randint(1, 40)},
        "Your table for {0} at {1} is number {number}.",
    ),
    Family(
        ("play_song", "play", "play_music", "start_song"),
        ("Play a song.", "Start playing music."),
        (Slot(("title", "song", "track"), "string", _title),),
        ('Play "{0}".', "Play the song {0}.", "I want to hear {0}.", "Put on {0}, please."),
        _DONE,
        "Now playing {0}.",
    ),
    Family(
        ("translate", "translate_text", "translation"),
        ("Translate a text.", "Translate text into a language."),
        (Slot(("text", "words", "sentence"), "string", _text),
         Slot(("language", "target", "into"), "string", lambda rng: rng.choice(words.LANGUAGES))),
        ('Translate "{0}" into {1}.', "How do you say '{0}' in {1}?", "Say this in {1}: {0}"),
        lambda rng: {"translation": " ".join(words.made_up_word(rng) for _ in range(3))},
        "In {1}: {translation}",
    ),
    Family(
        ("search", "web_search", "find", "lookup"),
        ("Search the web.", "Look something up."),
        (Slot(("query", "q", "terms"), "string", _text),),
        ("Search for {0}.", "Look up {0}.", "Find something about {0}.", "search {0}"),
        lambda rng: {"count": rng.randint(2, 900)},
        "I found {count} results for {0}.",
    ),
)  # fmt: skip


_THINGS: tuple[tuple[str, Maker], ...] = (
    ("person", words.name),
    ("city", words.city),
    ("item", lambda rng: rng.choice(words.ITEMS)),
    ("id", words.code),
    ("word", words.made_up_word),
)


def made_up_family(rng: Random) -> Family:
    """A family of its own, so that tools never seen before can be called too."""
    noun = rng.choice(words.PLAIN_WORDS)
    thing, make = rng.choice(_THINGS)
    slot = rng.choice((thing, f"{thing}_name", rng.choice(words.PLAIN_WORDS)))
    return Family(
        (f"get_{noun}", f"{noun}_of", f"lookup_{noun}", f"find_{noun}", f"get_{thing}_{noun}"),
        (f"Get the {noun} of a {thing}.", f"The {noun} of a {thing}."),
        (Slot((slot,), "string", make),),
        (
            f"What is the {noun} of {{0}}?",
            f"Tell me the {noun} of {{0}}.",
            f"Get the {noun} of {{0}}.",
        ),
        lambda rng: {"value": rng.choice((words.made_up_word(rng), rng.randrange(1000)))},
        f"The {noun} of {{0}} is {{value}}.",
    )


@dataclass(frozen=True)
class Tool:
    """A family with its names chosen."""

    # What it does.
    family: Family
    # Its function's name.
    name: str
    # Its parameters' names, as many as the family has slots.
    parameters: tuple[str, ...]


def _tool(rng: Random, family: Family) -> Tool:
    names = tuple(rng.choice(slot.names) for slot in family.slots)
    return Tool(family, rng.choice(family.names), names)


# Parameters that no request mentions, and no call fills in.
_OPTIONAL = (
    ("unit", ("celsius", "fahrenheit")),
    ("format", ("short", "long")),
    ("priority", ("low", "high")),
)


def schema(rng: Random, tool: Tool) -> str:
    """The tool as clients send it, as JSON text."""
    properties: dict[str, object] = {}
    for name, slot in zip(tool.parameters, tool.family.slots, strict=True):
        described = {"description": f"The {slot.names[0]}"} if rng.random() < 0.3 else {}
        properties[name] = {"type": slot.type, **described}
    extra = rng.choice(_OPTIONAL) if rng.random() < 0.15 else None
    if extra:
        properties[extra[0]] = {"type": "string", "enum": list(extra[1])}
    function: dict[str, object] = {"name": tool.name}
    if rng.random() < 0.85:
        function["description"] = rng.choice(tool.family.descriptions)
    parameters: dict[str, object] = {"type": "object", "properties": properties}
    if extra or rng.random() < 0.8:
        parameters["required"] = list(tool.parameters)
    function["parameters"] = parameters
    offered = {"type": "function", "function": function}
    return compact(offered) if rng.random() < 0.25 else json.dumps(offered, ensure_ascii=False)


def call_text(name: str, arguments: dict[str, Value], spaced: bool = False) -> str:
    """How an assistant's turn writes a call."""
    written = json.dumps(arguments, ensure_ascii=False) if spaced else compact(arguments)
    return f'<tool_call>{{"name":"{name}","arguments":{written}}}</tool_call>'


def _request(rng: Random) -> tuple[Tool, str, list[Value]]:
    family = rng.choice(FAMILIES) if rng.random() < 0.75 else made_up_family(rng)
    values = [slot.make(rng) for slot in family.slots]
    return _tool(rng, family), rng.choice(family.requests).format(*values), values


def _offer(rng: Random, wanted: Tool) -> tuple[str, ...]:
    others = [family for family in FAMILIES if family is not wanted.family]
    others += [made_up_family(rng), made_up_family(rng)]
    tools = [wanted] + [_tool(rng, family) for family in rng.sample(others, rng.randint(0, 3))]
    rng.shuffle(tools)
    return tuple(schema(rng, tool) for tool in tools)


_SYSTEM = (
    "",
    "",
    "",
    "You are a helpful assistant.",
    "You can use tools.",
    "Use a tool if it helps.",
)


def _opening(rng: Random, held: bool) -> tuple[Tool, dict[str, Value], Sample]:
    tool, request, values = instance(rng, held, _request, lambda made: made[1])
    arguments = dict(zip(tool.parameters, values, strict=True))
    system = rng.choice(_SYSTEM)
    turns = (*((Turn("system", system),) if system else ()), ask(request))
    return tool, arguments, Sample("tool call", turns, _offer(rng, tool))


def call(rng: Random, held: bool) -> Sample:
    """A request that one of the offered tools serves."""
    tool, arguments, opening = _opening(rng, held)
    turns = (*opening.turns, answer(call_text(tool.name, arguments)))
    return Sample("tool call", turns, opening.tools)


def result(rng: Random, held: bool) -> Sample:
    """The call, the tool's result, and the answer that uses it."""
    tool, arguments, opening = _opening(rng, held)
    spaced = rng.random() < 0.4
    called = Turn("assistant", call_text(tool.name, arguments, spaced), trained=not spaced)
    found = tool.family.result(rng)
    text = compact(found) if rng.random() < 0.4 else json.dumps(found)
    reply = tool.family.reply.format(*arguments.values(), **found)
    turns = (*opening.turns, called, Turn("tool", text), answer(reply))
    return Sample("tool result", turns, opening.tools)


def unused(rng: Random, held: bool) -> Sample:
    """Tools are offered, but small talk needs none."""
    offered = _offer(rng, _tool(rng, rng.choice(FAMILIES)))
    return Sample("talk", talk.greeting(rng).turns, offered)
