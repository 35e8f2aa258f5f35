"""Random comprehensions: a few statements, affine subscripts that stay inside, reductions."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

OPERANDS = {"A": (7, 6), "B": (9,), "C": (4, 5, 3), "D": (3, 3, 3, 3)}
FUNCTIONS = ("tanh({})", "sin({})", "sigmoid({})", "exp(tanh({}))", "square({})", "{}", "-{}")
PAIRS = ("{} + {}", "{} - {}", "{} * {}", "{} * {}", "max({}, {})", "{} / (2.0 + square({}))")
REDUCTIONS = ("+=!", "+=!", "max=!", "min=!")
MOST = 3  # values of an iterator


def random_program(random: Random) -> str:
    """A comprehension of OPERANDS to ``Z``, whose statements read them and those before."""
    shapes, statements = dict(OPERANDS), list[str]()
    count = random.randint(1, 4)
    for at in range(count):
        name = "Z" if at == count - 1 else f"T{at}"
        ranges = {letter: random.randint(1, MOST) for letter in "ijkl"[: random.randint(1, 4)]}
        axes = random.randint(0, min(2, len(ranges)))
        target = [*ranges][:axes]
        reduces = axes < len(ranges)
        operator = random.choice(REDUCTIONS) if reduces else "="
        last = statements and at == count - 1
        value = _value(random, shapes, ranges, 2, [f"T{at - 1}"] if last else [])
        if operator in ("max=!", "min=!"):  # extremes that are equal have no one gradient
            places = ", ".join([*ranges, *"0000"][:4])
            value = f"{value} + D({places})"
        where = ", ".join(f"{letter} in 0:{size}" for letter, size in ranges.items())
        left = f"{name}({', '.join(target)})" if target else name
        statements.append(f"{left} {operator} {value} where {where}")
        if operator in ("=", "+=!") and random.random() < 0.3:
            more = _value(random, shapes, ranges, 1, [])
            statements.append(f"{left} += {more} where {where}")
        shapes[name] = tuple(ranges[letter] for letter in target)
    inputs = ", ".join(
        f"double({','.join(map(str, shape))}) {name}" for name, shape in OPERANDS.items()
    )
    return f"def f({inputs}) -> (Z) {{\n    " + "\n    ".join(statements) + "\n}"


def _value(
    random: Random, shapes: Mapping[str, tuple[int, ...]], ranges: Mapping[str, int], depth: int,
    first: list[str],
) -> str:  # fmt: skip
    """A term, which begins with an element of ``first`` where there is one."""
    if first or not depth or random.random() < 0.2:
        name = first[0] if first else random.choice([*shapes])
        index = ", ".join(_subscript(random, size, ranges) for size in shapes[name])
        element = f"{name}({index})" if index else name
        if not first:
            return element
        return f"({element} + {_value(random, shapes, ranges, depth, [])})"
    parts = [_value(random, shapes, ranges, depth - 1, []) for _ in range(2)]
    if random.random() < 0.2:
        letters = [*ranges]
        left, right = random.choice(letters), random.choice([*letters, "1"])
        return f"({left} > {right} ? {parts[0]} : {parts[1]})"
    pair = random.choice(PAIRS).format(*parts)
    return random.choice(FUNCTIONS).format(f"({pair})")


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
