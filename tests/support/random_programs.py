"""Random comprehensions: a few statements, affine subscripts that stay inside, reductions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

OPERANDS = {"A": (7, 6), "B": (9,), "C": (4, 5, 3), "D": (3, 3, 3, 3)}
FUNCTIONS = ("tanh({})", "sin({})", "sigmoid({})", "exp(tanh({}))", "square({})", "{}", "-{}")
PAIRS = ("{} + {}", "{} - {}", "{} * {}", "{} * {}", "max({}, {})", "{} / (2.0 + square({}))")
REDUCTIONS = ("+=!", "+=!", "max=!", "min=!")
# Of whole numbers these give whole numbers, which are often equal and exact.
WHOLE_FUNCTIONS = ("square({})", "{}", "-{}")
WHOLE_PAIRS = ("{} + {}", "{} - {}", "{} * {}")
MOST = 3  # values of an iterator


def random_program(random: Random, ties: bool = False) -> str:
    """A comprehension of OPERANDS to ``Z``, whose statements read them and those before.

    ``ties``: whole numbers stay whole, and extremes of them are often equal.
    """
    functions = (WHOLE_FUNCTIONS, WHOLE_PAIRS) if ties else (FUNCTIONS, PAIRS)
    shapes, statements = dict(OPERANDS), list[str]()
    count = random.randint(1, 4)
    for at in range(count):
        name = "Z" if at == count - 1 else f"T{at}"
        ranges = {letter: random.randint(1, MOST) for letter in "ijkl"[: random.randint(1, 4)]}
        axes = random.randint(0, min(2, len(ranges)))
        target = [*ranges][:axes]
        reduces = axes < len(ranges)
        operator = random.choice(REDUCTIONS[ties:]) if reduces else "="
        last = statements and at == count - 1
        value = _value(random, functions, shapes, ranges, 2, [f"T{at - 1}"] if last else [])
        if (
            operator in ("max=!", "min=!") and not ties
        ):  # extremes that are equal have no one gradient
            places = ", ".join([*ranges, *"0000"][:4])
            value = f"{value} + D({places})"
        where = ", ".join(f"{letter} in 0:{size}" for letter, size in ranges.items())
        left = f"{name}({', '.join(target)})" if target else name
        statements.append(f"{left} {operator} {value} where {where}")
        if operator in ("=", "+=!") and random.random() < 0.3:
            more = _value(random, functions, shapes, ranges, 1, [])
            statements.append(f"{left} += {more} where {where}")
        shapes[name] = tuple(ranges[letter] for letter in target)
    inputs = ", ".join(
        f"double({','.join(map(str, shape))}) {name}" for name, shape in OPERANDS.items()
    )
    return f"def f({inputs}) -> (Z) {{\n    " + "\n    ".join(statements) + "\n}"


def choose_first(text: str, apart: float) -> str:
    """A program that gives the same, and the first of extremes that are not ``apart``."""
    lines = []
    for line in text.splitlines():
        reduction = re.fullmatch(r" *(\w+)(\(.*?\))? (max|min)=! (.*) where (.*)", line)
        if reduction is None:
            lines.append(line)
            continue
        name, index, kind, value, where = reduction.groups(default="")
        place, sizes = "0", dict(re.findall(r"(\w) in 0:(\d)", where))
        for letter in dict.fromkeys(re.findall(r"\b[ijkl]\b", value + where)):
            place = place if letter in index else f"({place} * {sizes[letter]} + {letter})"
        sign = "-" if kind == "max" else "+"
        lines += [
            f"P{name}{index} arg{kind}=! {value} {sign} {place} * {apart} where {where}",
            f"{name}{index} +=! P{name}{index} == {place} ? {value} : 0.0 where {where}",
        ]
    return "\n".join(lines)


def _value(
    random: Random, functions: tuple[tuple[str, ...], tuple[str, ...]],
    shapes: Mapping[str, tuple[int, ...]], ranges: Mapping[str, int], depth: int, first: list[str],
) -> str:  # fmt: skip
    """A term, which begins with an element of ``first`` where there is one."""
    if first or not depth or random.random() < 0.2:
        name = first[0] if first else random.choice([*shapes])
        index = ", ".join(_subscript(random, size, ranges) for size in shapes[name])
        element = f"{name}({index})" if index else name
        if not first:
            return element
        return f"({element} + {_value(random, functions, shapes, ranges, depth, [])})"
    parts = [_value(random, functions, shapes, ranges, depth - 1, []) for _ in range(2)]
    if random.random() < 0.2:
        letters = [*ranges]
        left, right = random.choice(letters), random.choice([*letters, "1"])
        return f"({left} > {right} ? {parts[0]} : {parts[1]})"
    of_one, of_two = functions
    pair = random.choice(of_two).format(*parts)
    return random.choice(of_one).format(f"({pair})")


def _subscript(random: Random, size: int, ranges: Mapping[str, int]) -> str:
    """A linear form of up to two iterators whose values lie in an axis."""
    letters = random.sample([*ranges], min(len(ranges), random.randint(1, 2)))
    while True:
        steps = {letter: random.choice((-2, -1, 1, 1, 1, 2)) for letter in letters}
        ends = [step * (ranges[letter] - 1) for letter, step in steps.items()]
        low, high = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)
        if high - low < size:
            break
        letters = letters[:-1]
        if not letters:
            return str(random.randrange(size))
    start = random.randint(0, size - 1 - (high - low)) - low
    return " + ".join([str(start), *(f"{step} * {letter}" for letter, step in steps.items())])
