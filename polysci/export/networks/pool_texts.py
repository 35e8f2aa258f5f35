"""Texts about the threads of a network's runs, for build files and programs around it."""

from __future__ import annotations

from pathlib import Path

from polysci.network.code import Code
from polysci.printers.network import OPENMP
from polysci.text import templates

TEMPLATES = Path(__file__).with_name("templates")
_HOLES = (
    *("POOL", "IN_TURN", "POOLS", "USE_POOL", "POOL_TEST", "LIBRARY_THREADS", "EXAMPLE_THREADS"),
    *("CMAKE_THREADS", "CMAKE_EXAMPLE", "LINKED", "TEST_THREADS", "POOL_PARAMETERS"),
    *("POOL_ARGUMENTS", "POOL_TOLD", "POOL_VARIABLE", "POOL_CALL", "CHOOSE_POOL"),
)
_FREE_TOLD = """
 * `parallel` and `pool`: the threads that share the run, {0} at most. It asks the pool once for {0}
 * parts. Those that run at the same time share the work; one that comes about 1 ms after the first
 * finds nothing to do, so that a pool may run parts one after the other. With 0 for both the
 * calling thread runs alone."""


def pool_texts(code: Code, threads: int) -> dict[str, str]:
    """Return the values of a C project's templates that depend on the pool of threads."""
    values = dict.fromkeys(_HOLES, "")
    if code.pool == OPENMP:
        return values
    if code.pool == "pthread":
        return values | {
            "LIBRARY_THREADS": " -pthread", "EXAMPLE_THREADS": " -pthread", "LINKED": " -pthread",
            "CMAKE_THREADS": " Threads::Threads",
        }  # fmt: skip
    name = code.name
    common = {"NAME": name, "COUNT": str(threads)}
    pool, in_turn, pools = (
        templates.fill(TEMPLATES / f"callback_{part}.c", common)
        for part in ("pool", "test", "check")
    )
    return values | {
        "POOL": pool, "IN_TURN": in_turn, "POOLS": pools,
        "USE_POOL": f"    if (context)\n        {name}_use_pool(context, run_parts, 0);\n",
        "POOL_TEST": "        pools(model, x, y);\n",
        "EXAMPLE_THREADS": " -pthread", "TEST_THREADS": " -pthread",
        "CMAKE_EXAMPLE": " Threads::Threads",
    }  # fmt: skip


def free_pool_texts(code: Code, threads: int) -> dict[str, str]:
    """Return the values for freestanding C, whose runs take the pool as arguments."""
    values = pool_texts(code, threads)
    if code.pool == OPENMP:
        return values | {"RUN": "    share(&m);\n"}
    return values | {
        "POOL_PARAMETERS": f"{code.name}_parallel *parallel, void *pool, ",
        "POOL_ARGUMENTS": "0, 0, ",
        "POOL_TOLD": _FREE_TOLD.format(threads),
        "POOL_VARIABLE": f"static {code.name}_parallel *parallel;\n\n",
        "POOL_CALL": ", parallel, 0",
        "CHOOSE_POOL": "        parallel = place ? run_parts : run_in_turn;\n",
        "RUN": "    run_together(parallel, pool, &m);\n",
    }
