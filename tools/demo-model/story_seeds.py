#!/usr/bin/env python3
"""Draw the ingredients of stories, and phrase what a user would have asked to get them.

`make_seed(rng)` draws one story's ingredients (who, what, where, which plot, how it starts) as a `Seed`: the
instruction for the teacher, the words its answer starts with, and the facts needed later. `user_request(rng, fields,
story)` phrases a request that mentions only some of the ingredients, in one of many ways, so that the student learns to
follow many kinds of requests. Run as a program, it prints a few.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass, field

import story_words as words

AT_PLACES = {"beach", "zoo", "market", "school", "park", "playground", "fair", "circus", "station", "harbor", "lake", "pond", "river",
             "stream", "bottom", "windmill", "lighthouse", "waterfall", "bakery", "farm", "museum", "library"}  # fmt: skip
ON_PLACES = {"mountain", "hill", "island", "moon", "ship", "bridge", "street", "treetop", "bus"}
WATERS = ("lake", "pond", "river", "stream", "waterfall")
ALWAYS_HE = ("king", "prince", "boy", "little boy", "grandfather", "fisherman", "rooster")
ALWAYS_SHE = ("queen", "princess", "girl", "little girl", "grandmother", "mermaid", "hen", "cow", "fairy", "young witch")


@dataclass
class Seed:
    """The ingredients of one story."""

    teacher: str  # what the teacher model is asked
    opener: str  # how its answer starts
    fields: dict = field(default_factory=dict)  # what `user_request` needs


def article(noun: str) -> str:
    """'fox' to 'a fox', 'old box' to 'an old box'; a noun with an article stays."""
    if noun.startswith(("a ", "an ", "the ")):
        return noun
    return ("an " if noun[0] in "aeiou" and not noun.startswith("uni") else "a ") + noun


def in_place(place: str) -> str:
    """'the beach' to 'at the beach', 'a tall mountain' to 'on a tall mountain', else 'in ...'."""
    nouns = set(place.split())
    if nouns & ON_PLACES and "under" not in place:
        return "on " + place
    if nouns & AT_PLACES:
        return ("by " if any(water in place for water in WATERS) else "at ") + place
    return ("by " if place == "the sea" else "in ") + place


def upper_first(text: str) -> str:
    """The first letter as a capital."""
    return text[0].upper() + text[1:]


def is_girl(rng: random.Random, kind: str) -> bool:
    """Whether the character is a she; drawn where the kind leaves it open."""
    if kind in ALWAYS_HE:
        return False
    return kind in ALWAYS_SHE or rng.random() < 0.5


def make_seed(rng: random.Random) -> Seed:
    """Draw one story. The order of the draws is part of the data: a story's number gives its ingredients back."""
    kind = rng.choice(words.PEOPLE if rng.random() < 0.3 else words.ANIMALS)
    trait = rng.choice(words.TRAITS) if rng.random() < 0.6 and len(kind.split()) == 1 else ""
    who = article(f"{trait} {kind}".strip())
    girl = is_girl(rng, kind)
    name = rng.choice(words.GIRLS if girl else words.BOYS)
    thing = rng.choice(words.OBJECTS)
    place = in_place(rng.choice(words.PLACES))
    friend = rng.choice(words.ANIMALS if rng.random() < 0.7 else words.PEOPLE)
    while friend == kind:
        friend = rng.choice(words.ANIMALS)
    theme, outline = rng.choice(words.PLOTS)
    thing_in_theme, friend_in_theme = "{o}" in theme, "{f}" in theme
    has_thing = thing_in_theme or "{o}" in outline or "{q}" in outline
    has_friend = friend_in_theme or "{f}" in outline
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    filling = dict(n=name, k=kind, o=article(thing), q=thing, f=article(friend), g=friend, s=rng.choice(words.SPOTS),
                   he=he, him=him, his=his, He=upper_first(he))  # fmt: skip
    theme = theme.format(**filling)
    outline = re.sub(r"(^|[.!?:] )([a-z])", lambda m: m[1] + m[2].upper(), outline.format(**filling))
    moral = rng.choice(words.MORALS) if rng.random() < 0.12 else ""
    feature = rng.choice(words.FEATURES)
    openers = words.PLAIN_OPENERS if rng.random() < 0.35 else words.OPENERS
    opener = rng.choice(openers).format(n=name, c=kind, w=who, W=upper_first(who), p=place, P=upper_first(place))

    parts = [f"The story is about {who} named {name} ({he}), who {theme}. {outline}"]
    if not has_thing and rng.random() < 0.3:
        parts.append(f"There is also {article(thing)}.")
        has_thing = True
    place_used = rng.random() < 0.5
    if place_used:
        parts.append(f"It happens {place}.")
    if moral:
        parts.append(f"Lesson: {moral}.")
    if feature:
        parts.append(upper_first(feature) + ".")
    parts.append(f"About {rng.choice((80, 100, 120, 120, 150, 150))} words.")
    needed = [noun for noun, used in ((thing, thing_in_theme), (friend, friend_in_theme)) if used]
    facts = dict(c=who, k=kind, n=name, o=article(thing) if has_thing else "", q=thing if has_thing else "",
                 p=place if place_used else "", t=theme, m=moral, she=girl, g=friend if has_friend else "",
                 needs=needed)  # fmt: skip
    return Seed(" ".join(parts), opener, facts)


def has(noun: str, story: str) -> bool:
    """Whether the last word of `noun` occurs in the (lower-case) story."""
    return noun.split()[-1] in story


def possible_requests(fields: dict, story: str) -> list[tuple[str, int]]:
    """The kinds of requests that mention only what occurs in the story, with their weights."""
    low = story.lower()
    kinds = [("any", 1)]
    if not has(fields["k"], low):
        return kinds
    named = fields["n"].lower() in low
    thing = bool(fields["q"]) and has(fields["q"], low)
    place = bool(fields["p"]) and has(fields["p"], low)
    friend = bool(fields["g"]) and has(fields["g"], low)
    theme = all(has(noun, low) for noun in fields["needs"])
    choices = [(True, "c", 4), (thing, "co", 8), (place, "cp", 3), (thing and place, "cop", 2), (named, "n", 4),
               (named and thing, "no", 2), (bool(fields["m"]), "cm", 2), (theme, "t", 4), (friend, "cf", 3)]  # fmt: skip
    return kinds + [(kind, weight) for fits, kind, weight in choices if fits]


def user_request(rng: random.Random, fields: dict, story: str) -> str:
    """A request that fits the story."""
    kinds, weights = zip(*possible_requests(fields, story))
    kind = rng.choices(kinds, weights)[0]
    # The trait ("a shy fox") is mentioned only sometimes.
    who = fields["c"] if rng.random() < 0.4 else article(fields["k"])
    friend = article(fields["g"]) if fields["g"] else ""
    same = {key: fields[key] for key in "knoqptm"}
    return rng.choice(words.REQUESTS[kind]).format(c=who, C=upper_first(who), f=friend, **same)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Print a few story seeds and requests.")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for _ in range(args.count):
        seed = make_seed(rng)
        print(f"{seed.teacher} | {seed.opener}\n    {user_request(rng, seed.fields, seed.teacher)}")


if __name__ == "__main__":
    main()
