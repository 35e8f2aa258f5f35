"""One library of a network for several sizes: entries that share kernels and packed weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polysci.errors import SpecError
from polysci.network.code import SizedProgram, code_of
from polysci.network.compiled import PlannedNetwork
from polysci.network.prepare import shares_of


@dataclass(frozen=True, slots=True)
class SizedNetworks:
    """A network for several sizes: ``whole`` has the code of a library of all of them.

    ``networks`` are those that ``programs`` are of, in order.
    """

    whole: PlannedNetwork
    programs: tuple[SizedProgram, ...]
    networks: tuple[PlannedNetwork, ...]

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def several(self) -> bool:
        """Whether runs are told the sizes."""
        return bool(self.programs[0].sizes)


def only_size(network: PlannedNetwork) -> SizedNetworks:
    """A network alone: its runs take no sizes."""
    program = SizedProgram(network.prepared.placed, network.schedules)
    return SizedNetworks(network, (program,), (network,))


def join_sizes(
    networks: Sequence[tuple[Mapping[str, int], PlannedNetwork]], name: str, pool: str = "openmp"
) -> SizedNetworks:
    """One library called ``name`` of networks, each for certain sizes.

    Raises SpecError for networks of other options, or whose sizes have other names or are equal,
    UnsupportedError where their arguments differ in number or type.
    """
    first, options = networks[0][1], networks[0][1].options
    told = [tuple(sizes.items()) for sizes, _ in networks]
    if len({*told}) < len(told) or len({tuple(sizes) for sizes, _ in networks}) > 1:
        raise SpecError(f"{name}: expected other sizes of the same names for each entry")
    if any(network.options != options for _, network in networks):
        raise SpecError(f"{name}: expected entries that were compiled with the same options")
    programs = tuple(
        SizedProgram(
            network.prepared.placed, network.schedules,
            shares_of(network.prepared.program, options, pool), sizes,
        )
        for sizes, network in networks
    )  # fmt: skip
    code = code_of(
        programs, name, options.target.isa, options.threads,
        flush_denormals=options.flush_denormals, pool=pool,
    )  # fmt: skip
    return SizedNetworks(replace(first, code=code), programs, tuple(own for _, own in networks))
