"""Who starts the threads of a network's runs: OpenMP, a pool of pthreads, or the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from polysci.printers import openmp
from polysci.printers.interface import TEAM
from polysci.printers.team import Team
from polysci.text import templates

TEMPLATES = Path(__file__).with_name("templates")
OPENMP = "openmp"


@dataclass(frozen=True, slots=True)
class Pool:
    """What the C of a network has for threads that OpenMP does not start.

    ``threads`` is what the header says of them, ``includes`` what the code includes, ``member`` a
    member of contexts, ``run`` a run, ``start`` and ``end`` statements for it, ``header`` templates
    of declarations, ``functions`` of public functions.
    """

    threads: str
    includes: str
    member: str
    run: str
    start: str = ""
    end: str = ""
    types: str = ""
    header: str = ""
    functions: str = ""


POOLS: Mapping[str, Pool] = MappingProxyType(
    {
        "pthread": Pool(
            "{0} threads: the one that calls it,\n * and those that {1}_new starts and {1}_free "
            "ends. These spin for about 0.1 ms\n * (-DPS_SPINS=N: N turns), then sleep until the "
            "next run. A child of fork has none of them",
            "#include <pthread.h>\n#include <signal.h>\n",
            "    ps_pool pool;\n",
            "    run_together(&context->pool, &m);\n",
            "    if (!start_pool(&context->pool)) {\n        {0}_free(context);\n"
            "        return 0;\n    }\n",
            "    end_pool(&context->pool);\n",
        ),
        "callback": Pool(
            "the threads of a pool of the\n * caller's, {0} at most, or the calling thread: see "
            "{1}_use_pool",
            "",
            "    {0}_parallel *parallel;\n    void *pool;\n",
            "    run_together(context->parallel, context->pool, &m);\n",
            types="callback.h", header="use_pool.h", functions="use_pool.c",
        ),
    }
)  # fmt: skip
_TOLD = "{0} threads, more than one only where the compiler\n * was given its OpenMP option"
_HOLES = (
    *("POOL_INCLUDES", "TEAM_CODE", "TEAM_OF", "POOL_CODE", "POOL_OF", "START_POOL", "END_POOL"),
    *("POOL_TYPES", "POOL_HEADER", "POOL_FUNCTIONS"),
)


def team_of(pool: str) -> Team:
    """The team that shares a network's stages."""
    return Team.OPENMP if pool == OPENMP else Team.POOL


def pool_values(pool: str, threads: int, name: str) -> dict[str, str]:
    """What fills the templates of a network that runs in so many threads."""
    values = dict.fromkeys(_HOLES, "")
    if threads == 1:
        return {**values, "THREADS": "1 thread", "RUN": "    share(&m);\n"}
    if pool == OPENMP:
        region = "\n".join(openmp.guard(openmp.parallel(threads)))
        return {**values, "THREADS": _TOLD.format(threads), "RUN": f"{region}\n    share(&m);\n"}
    row, common = POOLS[pool], {"NAME": name, "COUNT": str(threads)}

    def fill(template: str) -> str:
        return templates.fill(TEMPLATES / template, common) if template else ""

    team = {"TEAM_TYPE": TEAM, "WAITING": fill(f"waiting_{pool}.c")}
    return {
        "POOL_INCLUDES": row.includes,
        "TEAM_CODE": templates.fill(TEMPLATES / "team.c", team),
        "TEAM_OF": "    const polysci_team *team; /* as this thread sees it */\n",
        "POOL_CODE": fill(f"pool_{pool}.c"),
        "POOL_OF": row.member.replace("{0}", name),
        "START_POOL": row.start.replace("{0}", name),
        "END_POOL": row.end,
        "POOL_TYPES": fill(row.types),
        "POOL_HEADER": fill(row.header),
        "POOL_FUNCTIONS": fill(row.functions),
        "THREADS": row.threads.format(threads, name),
        "RUN": row.run,
    }
