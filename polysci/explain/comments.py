"""Comments in generated C: the operands that every loop of a schedule works on."""

from __future__ import annotations

from polysci.explain.levels import MEMORY, Inside, insides
from polysci.explain.terms import LEVELS
from polysci.polyhedral.contraction import Contraction
from polysci.polyhedral.tile_schedule import Loop
from polysci.space.group_views import roles_of
from polysci.space.schedule import Schedule
from polysci.target.coefficients import prior_of
from polysci.text.tables import bytes_text

_OPERANDS = {"I": "x", "W": "w", "O": "y"}  # arrays of the nest, by the names of C parameters


def loop_comments(
    roles: Contraction, schedule: Schedule, caches: tuple[int, ...]
) -> tuple[str, ...]:
    """Comments of the whole nest, then of each loop; ``caches`` are a thread's L1, L2 and L3."""
    roles = roles_of(roles, schedule)
    whole, *inner = insides(roles, schedule, caches, prior_of("usable_cache"))
    names = [_OPERANDS.get(o.array, o.array) for o in (roles.x, roles.w, roles.out)]
    first = f"{_sizes(names, whole)}; {caches_text(caches)}"
    remarks = (each.remark(roles, schedule, names) for each in reversed(schedule.directives))
    first = "; ".join([first, *filter(None, remarks)])
    rows = zip(schedule.nest, inner, strict=True)
    return first, *(_comment(names, step, row) for step, row in rows if isinstance(step, Loop))


def caches_text(caches: tuple[int, ...]) -> str:
    """The caches that the comments suppose."""
    sizes = (f"{name} {bytes_text(size)}" for name, size in zip(LEVELS, caches, strict=False))
    return f"caches of a thread: {', '.join(sizes)}"


def _comment(names: list[str], loop: Loop, row: Inside) -> str:
    """``k: 4 times x 12 KiB, w 36 KiB, y 3 KiB, which L2 holds; x stays for the next``."""
    times = f"{loop.dim}: {row.trips} times {_sizes(names, row)}"
    shares = zip(names, row.kept, strict=True)
    kept = [
        name if share > 0.995 else f"{100 * share:.0f} % of {name}"
        for name, share in shares
        if share > 0.005
    ]
    return f"{times}; {', '.join(kept)} stays there for the next" if kept else times


def _sizes(names: list[str], row: Inside) -> str:
    parts = zip(names, (row.a, row.b, row.c), strict=True)
    home = "more than the caches hold" if row.fits == MEMORY else f"in {row.fits}"
    return f"{', '.join(f'{name} {bytes_text(size)}' for name, size in parts)}, {home}"
