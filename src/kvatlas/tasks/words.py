"""Word lists and sentence templates of the generated haystacks and needles.

Plain data: it must not know tokenizers or tasks. Haystack words and needle key words are disjoint, so that a needle's key
phrase is never met in a generated haystack.
"""

from __future__ import annotations

NAMES = tuple(
    "Anders Beatrix Callum Dagny Edmund Fiona Gideon Helena Ivo Jolanta Kasper Liesel Magnus Nadia Osric Petra Quentin "
    "Rosalind Stellan Tamsin Ulrich Viola Wendel Ximena Yannick Zelda Amara Bruno Cordelia Dmitri Esme Florian Greta Hakon "
    "Imogen Jasper Katya Lorenzo Mirela Niklas Oona Pascal Ramona Soren Thea Umberto Vesna Willem".split()
)
TOWNS = tuple(
    "Aldermoor Brackwater Carrowby Dunmere Eastfold Fenwick Glanholm Harrowgate Inverlea Kestwick Larkhill Marlow Norbury "
    "Oxley Penrose Ravensby Saltmarsh Thornbury Uppingham Wexcombe Ashdown Birchfield Coldbrook Derwent Elmstead Foxley "
    "Greystoke Hollins Ironbridge Kingsmere".split()
)
TRADES = tuple(
    "botanist carpenter surveyor librarian geologist weaver gardener astronomer baker historian beekeeper potter engineer "
    "cartographer fisherman teacher printer tailor musician farmer".split()
)
THINGS = tuple(
    "bridge windmill orchard library railway canal quarry chapel market theatre museum reservoir tramway bakery school "
    "greenhouse observatory mill tannery brewery dairy vineyard tunnel hospital courthouse".split()
)
MATERIALS = tuple(
    "limestone oak brick slate copper granite timber glass clay marble iron sandstone pine flint bronze".split()
)
GOODS = tuple(
    "wool barley apples pottery cheese timber salt honey linen rope paper candles herring glassware leather tea coal "
    "potatoes cider soap".split()
)
ANIMALS = tuple(
    "herons otters swallows hedgehogs kestrels badgers salmon hares owls geese foxes bats toads cranes deer".split()
)
SEASONS = ("spring", "summer", "autumn", "winter", "harvest", "midsummer")
MOODS = tuple("quiet busy lively pleasant famous modest crowded peaceful charming remote".split())
WEATHERS = tuple("rain fog snow sunshine drizzle frost thunder mist sleet hail".split())
SUBJECTS = tuple("algebra drawing botany music geography chemistry poetry sailing astronomy weaving".split())
COUNTS = tuple("three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty sixty".split())

TEMPLATES = (
    "{name} worked as a {trade} in {town} for {count} years.",
    "The old {thing} in {town} was built of {material} in {year}.",
    "Every {season}, the people of {town} sell {goods} and {goods2} at the {mood} market square.",
    "In {year}, {name} moved from {town} to {town2} and opened a small {thing}.",
    "Visitors to {town} often remark that the {thing} is more {mood} than they expected.",
    "After a week of {weather}, the road between {town} and {town2} was closed.",
    "{name} and {name2} studied {subject} together before either of them became a {trade}.",
    "The {animals} near {town} return each {season} when the water is low.",
    "A {trade} named {name} wrote {count} letters about the {thing}, and most of them were never answered.",
    "The town council of {town} spent {count} months repairing the {material} roof of the {thing}.",
    "{goods_cap} from {town} was once carried to {town2} by boat.",
    "During the {season} of {year}, {weather} damaged nearly half of the crops around {town}.",
    "{name} liked to walk past the {thing} before breakfast, even in {weather}.",
    "There are {count} steps between the {thing} and the river, all cut from {material}.",
    "According to local records, the first {trade} of {town} arrived in {year}.",
    "The {thing} closes early in {season}, but the {thing2} next door stays open.",
    "{town} is smaller than {town2}, yet it has {count} bakeries and a {mood} {thing}.",
    "For many years {name} kept {animals} in a shed behind the {thing}.",
    "A short course on {subject} is offered in {town} every {season}.",
    "The price of {goods} rose sharply in {year}, which surprised the {trade}.",
    "{name} planted {count} trees along the canal and asked {name2} to water them.",
    "Few people remember that the {thing} in {town} was once a {thing2}.",
    "The morning train from {town} takes {count} minutes to reach {town2}.",
    "{name} taught {subject} to the children of {town} without ever asking for pay.",
    "Most of the {material} used in {town} came from a hill near {town2}.",
    "When the {weather} cleared, {name} could see the {thing} from the window.",
    "The museum shows {count} paintings of {animals}, each by a different artist.",
    "In {season}, the smell of {goods} drifts from the {thing} across the whole town.",
    "{name2} disagreed with {name} about the age of the {thing}, but both admired it.",
    "A {mood} path leads from the {thing} to a field where {animals} gather at dusk.",
    "The {trade} repaired the clock in {year} with parts made of {material}.",
    "Nobody in {town} could explain why the {thing} was painted twice in {year}.",
    "It rained.",
    "The day was calm.",
    "Nothing else happened that week.",
    "The {trade} went home.",
    "{name} read a book about {subject}.",
    "The {thing} was {mood} again by {season}.",
    "They all agreed.",
    "The road was long and {mood}.",
)
"""Haystack sentences; the short ones let a haystack end exactly at a sentence boundary."""

NOISE = (
    "The river is wide.",
    "The meadow is green.",
    "The clouds are white.",
    "Off we walk.",
    "Down the lane and home again.",
)
"""The repeated filler of the passkey task: five short sentences, as in the passkey literature (2305.16300)."""

KEY_ADJECTIVES = tuple(
    "crimson silver hollow velvet golden frozen amber scarlet silent broken hidden purple ancient wooden yellow distant "
    "gentle bitter rapid secret lonely noble marble cosmic electric mystic royal savage tropical arctic".split()
)
KEY_NOUNS = tuple(
    "falcon lantern anchor compass dragon piano rocket violin castle tiger mirror garnet saddle pirate wizard trumpet "
    "volcano crown hammer shield eagle penguin robot diamond dolphin panther pyramid satellite cannon guitar".split()
)
CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""No vowels: codes never spell a word."""
