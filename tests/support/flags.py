"""What tests compile with: a fifth of the compile time of users' builds, for the same semantics."""

from polysci.runtime.build.compiler import default_flags


def quick_flags(openmp: bool = True, level: str = "-O0") -> tuple[str, ...]:
    """The default flags without optimisation, or at another level."""
    return tuple(level if flag == "-O3" else flag for flag in default_flags(openmp))


def long_test_flags(openmp: bool = True) -> tuple[str, ...]:
    """For tests that compute more than they compile."""
    return quick_flags(openmp, "-O1")


QUICK = quick_flags()
