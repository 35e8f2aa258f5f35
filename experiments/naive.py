"""A naive kernel of a layer on a device: a work-item an output, which adds up the textbook's sum.

It is the loop nest that defines the layer, over plain arrays: the loops of the output's axes are
shared by work-items, those of the sum are as they stand, with their guards, and the sum is in a
register.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from polysci.loop_ir.index import Index, Subscripts, as_index
from polysci.loop_ir.nodes import (
    Arithmetic,
    Assign,
    Block,
    Constant,
    For,
    Let,
    LoopFunction,
    LoopKind,
    LoopModule,
    LoopStatement,
    Named,
    Store,
    block,
    map_statements,
    walk_statements,
)
from polysci.ops.problem import Problem
from polysci.printers.devices import print_file
from polysci.runtime.backends import backend_of
from polysci.target.microkernels import HeaderSet
from polysci.target.target import Target

SUM = "sum"


def naive_kernel(problem: Problem) -> LoopFunction:
    """Return the nest of a layer as one kernel of its output, its inputs and weights."""
    nest = problem.nest()
    (store,) = (it for it in walk_statements(nest.body) if isinstance(it, Store))
    buffers = tuple(replace(it, shape=(), restrict=True) for it in nest.parameters)
    return replace(nest, name="naive", parameters=buffers, body=_share(nest.body, store))


def _share(body: Block, store: Store) -> Block:
    """Return loops of which those of the output's axes are parallel, around the sum."""
    (statement,) = body.body
    places = str(store.at).replace("[", " ").replace(",", " ").replace("]", " ").split()
    if isinstance(statement, For) and statement.variable in places:
        inner = _share(statement.body, store)
        return block(replace(statement, body=inner, kind=LoopKind.PARALLEL))

    def add(part: LoopStatement) -> LoopStatement:
        if part != store:
            return part
        product = store.value.right
        factors = (replace(it, at=_flat(it.at)) for it in (product.left, product.right))
        value = Arithmetic("+", Named(SUM), Arithmetic("*", *factors))
        return Assign(SUM, value)

    summed = map_statements(body, add)
    first = Let(SUM, Constant(0.0), "float32", const=False)
    return block(first, *summed.body, Store(store.buffer, _flat(store.at), Named(SUM)))


def _flat(at: Subscripts) -> Index:
    """Return the place of an element in an array without axes."""
    place = as_index(0)
    for own, extent in zip(at.places, at.shape, strict=True):
        place = place * extent + own
    return place


def naive_timer(
    problem: Problem, device: Target, x: Any, w: Any
) -> tuple[Callable[[], float], np.ndarray]:
    """Return what takes a sample on the device, in seconds, and the result of one run.

    Arrays are plain: images as NCHW.
    """
    backend = backend_of(device)
    module = LoopModule((naive_kernel(problem),))
    text = print_file("naive", [HeaderSet(device.isa.name)], (), module, ["naive"])
    library = backend.load(backend.build(text, symbols=["naive"]), "")
    run, y = library.function("naive"), np.zeros(problem.y_shape, np.float32)
    arguments = [library.copy_in("float32")(array) for array in (y, x, w)]
    run(*arguments)
    library.copy_out(arguments[0], y)
    return lambda: backend.time(run, [tuple(arguments)]), y
