"""What tests compile with: a third of the compile time of users' builds, for the same semantics."""

from polysci.runtime.build.compiler import default_flags


def quick_flags(openmp: bool = True) -> tuple[str, ...]:
    """The default flags with little optimisation."""
    return tuple("-O1" if flag == "-O3" else flag for flag in default_flags(openmp))


QUICK = quick_flags()
