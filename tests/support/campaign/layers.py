"""Problems with everything that a call of theirs depends on: one row an axis."""

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from polysci.cost import Context
from polysci.errors import PolysciError
from polysci.lower.choice import candidates
from polysci.lower.registry import AUTO, DEFAULT, algorithm_named, algorithm_of, names
from polysci.numerics.dtypes import PRECISIONS
from polysci.ops import problem_of
from polysci.ops.problem import Problem
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.directives import DIRECTIVES, Pack, Place
from polysci.space.schedule import Schedule
from polysci.target.host import detect
from polysci.tune import EmitOptions, emit
from tests.support import samples
from tests.support.campaign.axes import Case, Drawn, axis, one_of
from tests.support.campaign.problems import OPERATORS, SHARES, random_problem

REALS = [name for name, row in PRECISIONS.items() if not row.integer]
DTYPES = {"nest": ["f32"], "bwd_d": REALS, "bwd_w": REALS}  # of the others all
FLAGS = ("-O0",) * 5 + ("-O1",) * 2 + ("-O3",) * 3
RANKED = 40  # candidates of an algorithm among which a random one is taken
ZEROS = ("none", "least", "most", "any", "any", "any")


def draw_layout(random: Random, drawn: Drawn) -> str:
    """Of matrices and loop nests there is one."""
    free = drawn["operator"] not in ("matmul", "linear", "einsum", "nest")
    return random.choice(("nhwc", "nhwc", "nchw")) if free else "nhwc"


def draw_dtype(random: Random, drawn: Drawn) -> str:
    return random.choice(DTYPES.get(drawn["operator"], [*PRECISIONS, "f32", "f32"]))


def draw_problem(random: Random, drawn: Drawn) -> str:
    return str(random_problem(random, drawn["operator"], drawn["layout"], drawn["dtype"]))


def draw_algorithm(random: Random, drawn: Drawn) -> str:
    """One that computes the problem, or the default, or all."""
    problem = problem_of(drawn["problem"], drawn["layout"], drawn["dtype"])
    problem = problem.with_batch(1) if 0 in problem.y_shape else problem
    able = [name for name in names() if not algorithm_named(name).refusal(problem)]
    return random.choice([*able, *able, DEFAULT, AUTO])


@dataclass(frozen=True, slots=True)
class LayerCase(Case):
    """A problem, how it is compiled, and a call of it.

    ``schedule`` is the model's first choice, or a random one of the space, its directives too.
    ``values`` are whole numbers, whose results are exact, or random reals. ``images`` says whether
    a call has any where it may have none; ``out`` where the result goes; ``side`` at which end of
    operands the guard page lies. All else that is random follows from ``seed``.
    """

    KIND: ClassVar[str] = "layer"

    operator: str = axis(lambda random, _: random.choices([*OPERATORS], SHARES)[0])
    layout: str = axis(draw_layout)
    dtype: str = axis(draw_dtype)
    problem: str = axis(draw_problem)
    isa: str = axis(lambda random, _: random.choice([isa.name for isa in detect().allowed]))
    threads: int = one_of(1, 1, 2, 3)
    algorithm: str = axis(draw_algorithm)
    schedule: str = one_of("first", "random", "random")
    flags: str = one_of(*FLAGS)
    values: str = one_of("integers", "integers", "integers", "reals")
    x_zero: str = one_of(*ZEROS)
    y_zero: str = one_of(*ZEROS)
    residual_zero: str = one_of(*ZEROS)
    scales: str = one_of("default", "one", "channels", "channels")
    bias: str = one_of("yes", "no")
    residual: str = one_of("yes", "no", "no")
    clamp: str = one_of("none", "none", "both", "low", "relu")
    images: str = one_of("all", "all", "all", "all", "none")
    out: str = one_of("new", "own", "own", "residual")
    side: str = one_of("start", "end", "end")
    seed: int = axis(lambda random, _: random.randrange(1 << 30))

    def problem_of(self) -> Problem:
        return problem_of(self.problem, self.layout, self.dtype)

    def random_schedule(self) -> Schedule:
        """One that has code: of the space, then with other directives, tried one by one."""
        random, problem = Random(self.seed), self.problem_of()
        problem = problem.with_batch(1) if 0 in problem.y_shape else problem
        context = samples.fixed_context(problem, self.threads, detect(self.isa))
        schedule = self._of_space(random, problem, context)
        ends = [row for row in DIRECTIVES if row.place is not Place.AMONG]
        for row in random.sample(ends, len(ends)):
            if random.random() < 0.3:
                other = schedule.without(row) if schedule.has(row) else schedule.having(row())
                schedule = other if has_code(problem, other, self.threads) else schedule
        for _ in range(3):
            other = changed(random, schedule, self.threads)
            schedule = other if has_code(problem, other, self.threads) else schedule
        return schedule

    def _of_space(self, random: Random, problem: Problem, context: Context) -> Schedule:
        direct = not algorithm_named(DEFAULT).refusal(problem)
        if self.algorithm == DEFAULT and direct:
            every = samples.members(context, 4, self.seed)
            random.shuffle(every)
            for schedule in every:
                if has_code(problem, schedule, self.threads):
                    return schedule
        ranked = candidates(problem, context, RANKED, self.algorithm, kinds=8)
        return random.choice(ranked).schedule


def changed(random: Random, schedule: Schedule, threads: int) -> Schedule:
    """With a copy of an operand more, moved or less, or a loop shared or not, or another step."""
    steps = list(schedule.nest)
    kind = random.choice(("pack", "pack", "parallel", "step", "turn"))
    loops = [at for at, step in enumerate(steps) if isinstance(step, Loop)]
    if kind == "pack":
        packs = [at for at, step in enumerate(steps) if isinstance(step, Pack)]
        if packs and random.random() < 0.7:
            steps.pop(random.choice(packs))
        operand = random.choice("AAB")
        pad = random.choice((0, 0, 1, 16)) if operand == "A" else 0
        steps.insert(random.randint(0, len(steps)), Pack(pad, operand))
    elif kind == "turn" and len(loops) > 1:
        one, other = random.sample(loops, 2)
        steps[one], steps[other] = steps[other], steps[one]
    elif loops:
        at = random.choice(loops)
        loop = steps[at]
        assert isinstance(loop, Loop)
        if kind == "parallel" and threads > 1:
            steps[at] = replace(loop, parallel=not loop.parallel)
        else:
            steps[at] = replace(loop, step=random.choice((loop.step, loop.step + 1, 2 * loop.step)))
    return schedule.with_nest(steps)


def has_code(problem: Problem, schedule: Schedule, threads: int) -> bool:
    """Whether code is generated: what schedules may say but no code has is refused."""
    try:
        schedule.check_parts()
        emit(problem, schedule, threads, EmitOptions("tried"))
    except PolysciError:
        return False
    return algorithm_of(schedule) is not None
