"""A small training text of our own: short stories generated from a small grammar.

`headway init tiny` needs text that is free, small, generated on the spot, and worth learning from.
The stories are consistent: name, animal and object stay the same to the last sentence, and both
the help and the ending follow from the trouble. A model with a million parameters first learns
words, then sentences, then that the same name has to recur.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

TRAIN_BYTES = 2_000_000
VALIDATION_BYTES = 100_000

T = TypeVar("T")


def _words(text: str) -> list[str]:
    return text.split()


_PEOPLE = [
    *((name, "she", "her") for name in _words("Anna Clara Emma Hanna Ida Lily Mia Nora Rosa Sara")),
    *((name, "he", "his") for name in _words("Adam Ben Felix Jonas Leo Max Noah Oscar Paul Tom")),
]
_TRAITS = _words("little small brave quiet curious kind clever cheerful shy patient")
_ANIMALS = _words("cat dog fox bear rabbit hedgehog duck goat horse mouse owl squirrel")
_ANIMAL_TRAITS = _words("old young friendly sleepy hungry lonely grey brown white funny")
_HOMES = [
    *("in a village", "in a small town", "near a forest", "by the sea", "on a farm"),
    *("at the foot of a mountain", "beside a wide river", "in a house with a red roof"),
]
_PLACES = [
    *("forest", "garden", "market", "beach", "old mill", "lake", "hill", "meadow", "bridge"),
    *("harbour", "orchard", "cave"),
]
_COLOURS = _words("red blue green yellow white black golden silver")
_THINGS = _words("kite ball boat lantern book drum hat basket key bell flute scarf")
_WEATHER = [
    *("the sun was shining", "it was raining", "the wind was strong", "snow was falling"),
    *("the air was warm", "there was fog over the fields"),
]
_TIMES = ["One morning", "One day", "One evening", "After breakfast", "On a Sunday", "In spring"]
_FOODS = _words("bread soup apples honey cheese cake pears nuts")
_FAMILY = ["mother", "father", "grandmother", "grandfather", "sister", "brother", "uncle", "aunt"]
_TROUBLES = _words("lost hungry stuck dark")


class _Story:
    """The choices of one story, made once and used throughout."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self.name, self.they, self.their = self.pick(_PEOPLE)
        self.trait = self.pick(_TRAITS)
        self.animal = self.pick(_ANIMALS)
        self.animal_trait = self.pick(_ANIMAL_TRAITS)
        self.home = self.pick(_HOMES)
        self.place = self.pick(_PLACES)
        self.thing = f"{self.pick(_COLOURS)} {self.pick(_THINGS)}"
        self.food = self.pick(_FOODS)
        self.family = self.pick(_FAMILY)
        self.trouble = self.pick(_TROUBLES)

    def pick(self, options: Sequence[T]) -> T:
        # Use random() only: unlike choice(), it gives the same values in every version of Python.
        return options[int(self._generator.random() * len(options))]

    def tell(self) -> str:
        parts = [*self._beginning(), *self._trouble(), *self._help(), *self._end()]
        return " ".join(parts)

    def _beginning(self) -> Iterator[str]:
        who = f"{_a(self.trait)} {'girl' if self.they == 'she' else 'boy'} named {self.name}"
        yield self.pick(
            [
                f"Once upon a time there was {who} who lived {self.home}.",
                f"Once there was {who}. {self._They} lived {self.home}.",
                f"Once, {self.home}, there lived {who}.",
            ]
        )
        if self.trouble in ("lost", "stuck"):
            yield self.pick(
                [
                    f"{self.name} had {_a(self.thing)} and took it everywhere.",
                    f"{self._Their} {self.family} had given {self.name} {_a(self.thing)}.",
                    f"What {self.name} liked best was {self.their} {self.thing}.",
                ]
            )
        yield self.pick(
            [
                f"{self.pick(_TIMES)} {self.name} went to the {self.place}.",
                f"{self.pick(_TIMES)}, when {self.pick(_WEATHER)}, {self.name} walked to the "
                f"{self.place}.",
                f"{self.pick(_TIMES)} {self.their} {self.family} said: "
                f'"Go and play at the {self.place}." So {self.name} went there.',
            ]
        )

    def _trouble(self) -> Iterator[str]:
        meeting = f"{_a(self.animal_trait)} {self.animal}"
        if self.trouble == "lost":
            yield f"But on the way {self.they} lost the {self.thing}, and {self.they} was sad."
            yield f"{self.name} looked for the {self.thing} until {self.they} met {meeting}."
        elif self.trouble == "hungry":
            yield f"There {self.they} met {meeting} that had not eaten all day."
            yield f"{self.name} felt sorry for the {self.animal}."
        elif self.trouble == "stuck":
            yield f"There the {self.thing} got stuck in a tall tree, and {self.name} was worried."
            yield f"Then {meeting} came by."
        else:
            yield f"Soon it grew dark, and {self.name} was afraid because {self.they} was alone."
            yield f"Then {self.they} heard a voice. It was {meeting}."

    def _help(self) -> Iterator[str]:
        if self.trouble == "lost":
            yield f'"Have you seen my {self.thing}?" asked {self.name}.'
            where = self.pick(
                ["under a bush", "behind a stone", "in the tall grass", "by the path"]
            )
            yield f'"Yes," said the {self.animal}, "it is {where}."'
            yield f"And there it was! {self.name} picked up the {self.thing}."
        elif self.trouble == "hungry":
            yield f'"Would you like some {self.food}?" asked {self.name}.'
            yield f'"Yes, please," said the {self.animal}, and ate all the {self.food}.'
        elif self.trouble == "stuck":
            yield f'"Can you help me to get my {self.thing}?" asked {self.name}.'
            how = self.pick(["climbed up", "shook the tree", "found a long stick"])
            yield f"The {self.animal} {how}, and down came the {self.thing}."
        else:
            yield f'"Do not be afraid," said the {self.animal}. "I know the way home."'
            yield f"So the {self.animal} went ahead and {self.name} followed."

    def _end(self) -> Iterator[str]:
        happy = {
            "lost": f"{self.name} was not sad any more.",
            "hungry": f"The {self.animal} was not hungry any more.",
            "stuck": f"{self.name} was not worried any more.",
            "dark": f"{self.name} was not afraid any more.",
        }
        yield happy[self.trouble]
        if self.trouble != "hungry":
            yield self.pick(
                [
                    f'"Thank you," said {self.name}, and gave the {self.animal} some {self.food}.',
                    f"{self.name} thanked the {self.animal} and shared {self.their} {self.food}.",
                ]
            )
        yield self.pick(
            [
                f"From that day on {self.name} and the {self.animal} were friends.",
                f"At home {self.name} told {self.their} {self.family} about the {self.animal}.",
                f"And every week {self.name} and the {self.animal} met at the {self.place}.",
                f"{self.name} and the {self.animal} went home together, and both were happy.",
            ]
        )

    @property
    def _They(self) -> str:
        return self.they.capitalize()

    @property
    def _Their(self) -> str:
        return self.their.capitalize()


def stories(num_bytes: int, seed: int) -> Iterator[str]:
    """Stories until `num_bytes` are reached; the same ones for the same seed."""
    generator = random.Random(seed)
    made = 0
    while made < num_bytes:
        story = _Story(generator).tell()
        made += len(story)
        yield story


def write_text(folder: Path) -> None:
    """Writes train.txt and validation.txt from different seeds, with blank lines between
    stories."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, num_bytes, seed in (
        ("train.txt", TRAIN_BYTES, 1),
        ("validation.txt", VALIDATION_BYTES, 2),
    ):
        with (folder / name).open("w", encoding="utf-8", newline="\n") as file:
            for story in stories(num_bytes, seed):
                file.write(story + "\n\n")


def _a(words: str) -> str:
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"
