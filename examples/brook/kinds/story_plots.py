# ruff: noqa: E501 (tables of words and phrases read best as they are)
"""Plots: each is a list of beats, each beat a choice of sentences with fields to fill in."""

Beat = tuple[str, ...]

SCENES: Beat = (
    "One morning the sun shone on the water, and {hero.name} went for a walk to {place}.",
    "One day {hero.name} woke up early and looked out.",
    "It was a warm day in spring, and the birds were singing near {place}.",
    "One windy afternoon {hero.name} was on {his} way to {place}.",
    "One day, when the leaves were turning yellow, {hero.name} felt that something would happen.",
    "It had rained all night, and the brook was singing over the stones.",
    "One quiet evening {hero.name} sat near {place} and watched the clouds.",
)

ENDINGS: Beat = (
    "Then they both went home, tired and happy.",
    "From that day on, {hero.name} and {friend.name} were the best of friends.",
    "That night {hero.name} fell asleep with a smile.",
    "And they laughed about it for a long time.",
    "The stars came out over the brook, and all was well.",
    "And whenever the wind blew over {place}, they thought of that day.",
    "They sat by the brook until the moon came up.",
)

MORALS: Beat = (
    "It is good to have a friend.",
    "A kind word is worth more than gold.",
    "Small steps can go a long way.",
    "What we share grows bigger.",
    "Even the smallest can help.",
)

_FIND: Beat = (
    "Near {place}, {he} found {a_full} in the grass.",
    "Something was shining in the mud. It was {a_full}!",
    "{He} saw {a_full} lying beside the path.",
    "Under a big leaf {he} found {a_full}.",
)
_MISS: Beat = (
    "{He} wanted to show {his} {full} to everybody, but it was gone.",
    "But where was {his} {full}? It was not in its place.",
    "Then {he} noticed that {his} {full} was missing.",
    "{He} had lost {his} {full}, and {he} was very sad.",
)
_SEARCH: Beat = (
    "{He} looked at {place} and at {other}, but the {thing} was not there.",
    "{He} searched everywhere, high and low, and found nothing.",
    "{He} looked under every stone near {other}.",
)
_MEET: Beat = (
    'Then {friend.name} the {friend.species} came along. "What is the matter?" {fhe} asked.',
    '"Why do you look so worried?" asked {friend.name}, {friend.looks}.',
    "On the way {he} met {friend.name} the {friend.species}, who was always {friend.nature}.",
    "Just then {friend.name} the {friend.species} passed by and stopped.",
)
_HELP: Beat = (
    '"I will help you," said {friend.name}. "Two can do more than one."',
    '"Let us do it together," said {friend.name}.',
    '{friend.name} thought for a while. "I have an idea," {fhe} said.',
    '"Do not worry," said {friend.name}. "Come with me."',
)
_FOUND_AGAIN: Beat = (
    "They went to {other} together, and there was the {thing}, behind a stone.",
    '"Look up!" said {friend.name}. The {thing} was hanging in a tree near {other}.',
    "At last they found the {thing} floating in the brook, and {friend.name} pulled it out.",
    "It was in the nest of a young bird, who had thought that the {thing} was a toy. The bird gave it back.",
)
_THANKS: Beat = (
    '"Thank you, {friend.name}!" said {hero.name}.',
    "{hero.name} was so glad that {he} danced.",
    '"I could not have done it without you," said {hero.name}.',
    "{hero.name} hugged {friend.name}.",
)
_WHOSE: Beat = (
    '"Whose {thing} is this?" {he} wondered.',
    "{He} would have liked to keep the {thing}, but it was not {his}.",
    '"Somebody must be looking for this {thing}," said {hero.name}.',
)
_OWNER: Beat = (
    "{He} asked at {other}, and it belonged to {friend.name} the {friend.species}.",
    'At {other} sat {friend.name} the {friend.species}, crying. "I have lost my {thing}," {fhe} said.',
    "{He} carried it to {other}, where {friend.name} the {friend.species} was looking for it.",
)
_GIVE_BACK: Beat = (
    "{hero.name} gave the {thing} back, and {friend.name} smiled from ear to ear.",
    '"Here it is," said {hero.name}. {friend.name} could hardly believe it.',
    "When {hero.name} held out the {thing}, {friend.name} jumped for joy.",
)
_REWARD: Beat = (
    "To say thank you, {friend.name} made a big pot of soup for two.",
    '"You are honest," said {friend.name}. "Come and visit me every day."',
    "{friend.name} sang a song about {hero.name}, and everybody heard it.",
)
_SET_OUT: Beat = (
    "{He} took {his} {full} and set out for {other}.",
    '"Today I will see the world," {he} said, and climbed into {his} {full}.',
    "{He} had {a_full}, and {he} wanted to go as far as {other}.",
)
_TROUBLE_RIDE: Beat = (
    "But soon the {thing} hit a stone and stopped.",
    "Halfway there, the {thing} got stuck in the mud.",
    "Then the wind grew strong, and the {thing} turned round and round.",
    "But the {thing} had a hole in it, and {hero.name} was frightened.",
)
_RESCUE: Beat = (
    "{friend.name} pushed with all {fhis} strength until the {thing} was free.",
    "{friend.name} pulled and {hero.name} pushed, and slowly the {thing} moved again.",
    "Together they mended the {thing} with leaves and mud.",
)
_ARRIVE: Beat = (
    "Side by side they came to {other}, and the view was wonderful.",
    "When they reached {other}, the sun was going down, red and gold.",
    "They rode to {other} and ate blackberries there.",
)
_DARK: Beat = (
    "But it grew dark, and fog came up from the brook.",
    "Night fell, and {hero.name} could not see the path any more.",
    "Then clouds hid the moon, and it was as dark as in a sack.",
)
_LIGHT: Beat = (
    "{He} lit {his} {full}, and a warm light fell on the path.",
    "Luckily {he} had {a_full}, and its light was strong.",
    "{He} held up the {full}, and the shadows ran away.",
)
_LOST_FRIEND: Beat = (
    "Somebody was calling near {other}. It was {friend.name} the {friend.species}, who had lost the way.",
    '"Is anybody there?" said a small voice. It was {friend.name} the {friend.species}.',
    "At {other} {he} found {friend.name} the {friend.species}, cold and afraid of the dark.",
)
_LEAD_HOME: Beat = (
    '"Follow the {thing}," said {hero.name}, and led {fhim} safely home.',
    "With the {thing} in front, they walked all the way back and sang.",
    "They walked close together, and the {thing} showed them every stone.",
)
_PLAY: Beat = (
    "{He} had {a_full}, and {he} played with it all morning.",
    "{His} grandmother had given {him} {a_full}.",
    "{He} had made {a_full} all by {him}self.",
)
_ALONE: Beat = (
    "But playing alone was not much fun.",
    "After a while {he} wished for somebody to play with.",
    '"It would be better with two," {he} thought.',
)
_WATCHER: Beat = (
    "Behind a bush stood {friend.name} the {friend.species}, looking at the {thing}.",
    "{friend.name} the {friend.species} had never had a {thing}, and watched from {other}.",
    "Then {he} saw {friend.name}, {friend.looks}, sitting all alone at {other}.",
)
_INVITE: Beat = (
    '"Would you like to try my {thing}?" asked {hero.name}.',
    '"Come and play with me," said {hero.name}, and held out the {thing}.',
    '{hero.name} waved. "Let us take turns with the {thing}!"',
)
_PLAY_BOTH: Beat = (
    "They played with the {thing} until the sun went down.",
    "{friend.name} laughed so loudly that they heard it at {place}.",
    "Soon they were running across the meadow with the {thing}.",
)
_CRY: Beat = (
    "Suddenly {he} heard a cry from {other}. {friend.name} the {friend.species} had fallen into a hole!",
    '"Help!" somebody called. {friend.name} the {friend.species} was stuck near {other}.',
    "The water had risen in the night, and {friend.name} the {friend.species} was caught at {other}.",
)
_TOOL: Beat = (
    "{hero.name} ran home and came back with {a_full}.",
    '"I need {a_full}," thought {hero.name}, and {he} knew where to find one.',
    "Luckily {hero.name} had {a_full} with {him}.",
)
_SAVE: Beat = (
    "{He} held one end of the {thing} and {friend.name} held the other, and out {fhe} came.",
    "With the {thing} it was easy. Soon {friend.name} was safe and dry.",
    "It took a long time, but with the {thing} {he} brought {friend.name} out.",
)
_FOOD: Beat = (
    "{He} had {a_full}, and {he} wanted to eat it all alone.",
    "At the market {he} got {a_full}. It smelled wonderful.",
    "The baker had given {him} {a_full} for {his} help.",
)
_HUNGRY: Beat = (
    "But at {other} sat {friend.name} the {friend.species}, who had eaten nothing all day.",
    'Then {friend.name} the {friend.species} came by. "I am so hungry," {fhe} said.',
    "On the way home {he} met {friend.name} the {friend.species}, thin and tired.",
)
_SHARE: Beat = (
    '{hero.name} looked at the {thing}, and then at {friend.name}. "Half is for you," {he} said.',
    "{hero.name} broke the {thing} in two and gave {friend.name} the bigger half.",
    '"Sit down," said {hero.name}. "There is enough {thing} for two."',
)
_TASTE: Beat = (
    "It had never tasted so good.",
    "They ate every crumb of it.",
    '"This is the best {thing} in the world," said {friend.name}.',
)

_LOST = (_MISS, _SEARCH, _MEET, _HELP, _FOUND_AGAIN, _THANKS)
_HONEST = (_FIND, _WHOSE, _OWNER, _GIVE_BACK, _REWARD)
_RIDE = (_SET_OUT, _TROUBLE_RIDE, _MEET, _HELP, _RESCUE, _ARRIVE)
_NIGHT = (_DARK, _LIGHT, _LOST_FRIEND, _LEAD_HOME)
_TOGETHER = (_PLAY, _ALONE, _WATCHER, _INVITE, _PLAY_BOTH)
_SAVED = (_CRY, _TOOL, _SAVE)
_SHARED = (_FOOD, _HUNGRY, _SHARE, _TASTE)

# Which plots a thing of each sort can take part in.
PLOTS: dict[str, tuple[tuple[Beat, ...], ...]] = {
    "ride": (_RIDE, _RIDE, _LOST),
    "light": (_NIGHT, _NIGHT, _LOST, _HONEST),
    "toy": (_TOGETHER, _TOGETHER, _LOST, _HONEST),
    "tool": (_SAVED, _SAVED, _LOST),
    "treasure": (_LOST, _HONEST),
    "food": (_SHARED,),
}
