"""The values that iterators take and the shapes of tensors, asked of isl."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Final

import islpy as isl

from polysci.errors import PolysciError, SpecError
from polysci.frontends.notation.elaborate import Elaborated
from polysci.frontends.notation.syntax import (
    Assignment,
    AxisExtent,
    Comprehension,
    Conversion,
    Literal,
    Operation,
    Symbol,
    TensorElement,
    Term,
    names_in,
    parts,
)
from polysci.numerics.affine import Affine
from polysci.polyhedral.turns import in_turn

_SET, _PARAM = isl.dim_type.set, isl.dim_type.param
# Functions of the notation -> isl's of two forms.
COMPARISONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "equal": "eq_set", "less": "lt_set", "less_equal": "le_set", "greater": "gt_set",
        "greater_equal": "ge_set",
    }
)  # fmt: skip
OPERATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "add": "add", "sub": "sub", "min": "min", "max": "max", "mul": "mul", "div": "tdiv_q",
        "remainder": "tdiv_r",
    }
)  # fmt: skip


def interval(values: isl.Set) -> tuple[int, int]:
    """Return the first value, and one behind the last."""
    return values.dim_min_val(0).to_python(), values.dim_max_val(0).to_python() + 1


def with_positive_sizes(values: isl.Set) -> isl.Set:
    """Return the part of a set where no size is below 1."""
    for at in range(values.dim(_PARAM)):
        values = values.lower_bound_val(_PARAM, at, isl.Val(1))
    return values


def name_for_isl(name: str) -> str:
    """Return a name that isl accepts: one that begins with a digit looks like a number to it."""
    return f"_{name}" if name[0].isdigit() else name


def combine_forms(
    function: str, left: isl.PwAff | None, right: isl.PwAff | None, floor: bool = False
) -> isl.PwAff | None:
    """Combine two forms by an operation; None where the result is no quasi-affine form.

    ``floor``: quotients are rounded down, which bounds iterators on both sides.
    """
    if left is None or right is None:
        return None
    if function in ("div", "remainder") and not (_is_number(right) and _value(right) > 0):
        return None
    if function == "mul" and not (_is_number(left) or _is_number(right)):
        return None
    if function == "div" and floor:
        return left.scale_down_val(isl.Val(_value(right))).floor()
    result: isl.PwAff = getattr(left, OPERATIONS[function])(right)
    return result


def is_linear(form: isl.PwAff) -> bool:
    """Tell whether it is one linear form, without a division."""
    return form.n_piece() == 1 and not form.as_aff().dim(isl.dim_type.div)


def _is_number(form: isl.PwAff) -> bool:
    return form.n_piece() == 1 and form.as_aff().is_cst()


def _value(form: isl.PwAff) -> int:
    value: int = form.as_aff().get_constant_val().to_python()
    return value


def affine_of(form: isl.PwAff, names: tuple[str, ...]) -> Affine:
    """Return a form as a linear form of these iterators; all its parameters have values."""
    linear = form.as_aff()
    coefs = [
        linear.get_coefficient_val(isl.dim_type.in_, at).to_python() for at in range(len(names))
    ]
    terms = sorted((name, coef) for name, coef in zip(names, coefs, strict=True) if coef)
    return Affine(tuple(terms), linear.get_constant_val().to_python())


def extent_of(axis: isl.Set) -> Affine | None:
    """Return the end of a range as a linear form of the parameters; None where it is none."""
    last = with_positive_sizes(axis).dim_max(0)
    last = last.gist(last.domain()).coalesce()  # in which it is defined
    if not is_linear(last):
        return None
    linear = last.as_aff()
    coefs = [
        (str(linear.get_dim_name(_PARAM, at)), linear.get_coefficient_val(_PARAM, at).to_python())
        for at in range(linear.dim(_PARAM))
    ]
    terms = tuple((name, coef) for name, coef in coefs if coef)
    return Affine(terms, linear.get_constant_val().to_python() + 1)


def project(values: isl.Set, at: int) -> isl.Set:
    """Return one dimension of a set."""
    behind = values.dim(_SET) - at - 1
    return values.project_out(_SET, at + 1, behind).project_out(_SET, 0, at)


def text_of(values: isl.Set) -> str:
    """Return ``3 to 7``; isl's text where sizes are open."""
    if not values.dim(_PARAM):
        first, end = interval(values)
        return f"{first} to {end - 1}"
    sizes = with_positive_sizes(isl.Set.universe(values.get_space())).params()
    text = values.gist_params(sizes).coalesce().to_str()
    return str(text[text.index("{") :])


@dataclass(frozen=True, slots=True)
class Reach:
    """The values of a subscript that must lie inside an axis, and under which condition.

    ``names`` are the iterators that either mentions; ``form`` is None where it is not affine.
    """

    element: TensorElement
    axis: int
    names: tuple[str, ...]
    form: isl.PwAff | None
    condition: isl.Set


@dataclass(frozen=True, slots=True)
class ComprehensionRanges:
    """The ranges of every statement, and the axes of every tensor, one set each.

    Sets have one dimension, and the shape variables that have no size as parameters.
    ``warnings``: where sizes must be large enough.
    """

    statements: tuple[StatementRanges, ...]
    axes: Mapping[str, tuple[isl.Set, ...]]
    warnings: tuple[str, ...]

    @in_turn
    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the extents of a tensor, where all sizes have values."""
        return tuple(interval(values)[1] for values in self.axes[tensor])

    @in_turn
    def linear_shape(self, tensor: str) -> tuple[Affine, ...] | None:
        """Return extents as linear forms of shape variables without a size; None for others."""
        forms = tuple(map(extent_of, self.axes[tensor]))
        return None if None in forms else forms  # type: ignore[return-value]


@in_turn
def infer(whole: Elaborated, sizes: Mapping[str, int]) -> ComprehensionRanges:
    """Infer the ranges of all statements; shape variables without a size are parameters.

    An iterator takes all values at which every subscript that mentions it stays inside its axis,
    whatever values the iterators take that are known already: those of ``where``, then those that
    stand alone in a subscript, and so on. Raises SpecError, with a caret, where a range has no end
    or no value, and where a subscript leaves its axis for all sizes.
    """
    names = [name for name in whole.comprehension.shape_variables if name not in sizes]
    params = [*map(name_for_isl, names)]
    space = isl.Space.create_from_names(isl.DEFAULT_CONTEXT, set=[], params=params)
    work = Known(whole, sizes, space, names)
    for declaration in whole.comprehension.inputs:
        work.axes[declaration.name] = tuple(map(work.axis_of, declaration.extents))
    statements = tuple(StatementRanges.of(work, statement) for statement in whole.statements)
    return ComprehensionRanges(statements, work.axes, tuple(dict.fromkeys(work.warnings)))


@dataclass(slots=True)
class Known:
    """Axes of tensors by the statements so far, and warnings.

    ``names`` are the shape variables that ``parameters`` stand for, in order.
    """

    whole: Elaborated
    sizes: Mapping[str, int]
    parameters: isl.Space
    names: Sequence[str]
    axes: dict[str, tuple[isl.Set, ...]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def axis_of(self, extent: str | int) -> isl.Set:
        """Return ``0 <= x < extent``."""
        space = isl.LocalSpace.from_space(self.parameters.add_dims(_SET, 1))
        x = isl.PwAff.from_aff(isl.Aff.var_on_domain(space, _SET, 0))
        zero = isl.PwAff.from_aff(isl.Aff.zero_on_domain(space))
        return x.ge_set(zero) & x.lt_set(self.size(space, extent))

    def size(self, space: isl.LocalSpace, extent: str | int) -> isl.PwAff:
        """Return a number, or a shape variable, as a form of a space."""
        value = self.sizes.get(extent, extent) if isinstance(extent, str) else extent
        if isinstance(value, str):
            at = self.names.index(value)
            return isl.PwAff.from_aff(isl.Aff.var_on_domain(space, _PARAM, at))
        return isl.PwAff.from_aff(isl.Aff.zero_on_domain(space).set_constant_val(isl.Val(value)))


@dataclass(slots=True)
class StatementRanges:
    """The ranges of one statement; sets have a dimension for each of its iterators.

    ``is_first``: no statement or input before has its target.
    """

    work: Known
    statement: Assignment
    iterators: tuple[str, ...]
    space: isl.LocalSpace
    is_first: bool = True
    known: dict[str, isl.Set] = field(default_factory=dict)

    @classmethod
    def of(cls, work: Known, statement: Assignment) -> StatementRanges:
        """Infer the range of each iterator; the target's axes become known."""
        bounded = [bound.name for bound in statement.ranges]
        used = (*statement.index, *names_in(statement.value, *statement.exists), *bounded)
        shapes = work.whole.comprehension.shape_variables
        names = tuple(name for name in dict.fromkeys(used) if name not in shapes)
        space = work.parameters.add_dims(_SET, len(names))
        is_first = statement.tensor not in work.axes
        self = cls(work, statement, names, isl.LocalSpace.from_space(space), is_first)
        self.infer()
        return self

    @property
    def reductions(self) -> tuple[str, ...]:
        """The iterators that the target lacks."""
        return tuple(name for name in self.iterators if name not in self.statement.index)

    @in_turn
    def bounds(self, name: str) -> tuple[int, int]:
        """Return the first value and one behind the last, where all sizes have values."""
        return interval(self.alone(name))

    @in_turn
    def affine(self, term: Term) -> Affine | None:
        """Return a term as a linear form of iterators, where it is one and sizes have values."""
        form = self.form(term)
        return None if form is None or not is_linear(form) else affine_of(form, self.iterators)

    @in_turn
    def alone(self, name: str) -> isl.Set:
        """Return the values of an iterator, as a set of one dimension."""
        return project(self.known[name], self.iterators.index(name))

    def error(self, at: int, what: str, rule: str = "") -> PolysciError:
        return self.work.whole.error(at, what, rule)

    def infer(self) -> None:
        for bound in self.statement.ranges:
            values = self.range_of(bound.name, bound.low, bound.high)
            self.known[bound.name] = values & self.known.get(bound.name, values)
        reaches, progress = [*self.reaches(floor=True)], True
        while progress:
            unknown = [name for name in self.iterators if name not in self.known]
            resolved = [(name, self.resolve(name, reaches)) for name in unknown]
            new = {name: range_ for name, range_ in resolved if range_ is not None}
            self.known |= new
            progress = bool(new)
        for name in self.iterators:
            self.check_range(name, reaches)
        for reach in self.reaches():
            if reach.form is not None:
                self.check_reach(reach)
        self.place()

    def range_of(self, name: str, low: Term, high: Term) -> isl.Set:
        """Return ``low <= name < high``."""
        shapes = self.work.whole.comprehension.shape_variables
        known = {*names_in(low, high)} <= {*shapes}
        first, end = (self.form(term) if known else None for term in (low, high))
        if first is None or end is None:
            raise self.error(low.at, f"{name}: the ends of a range are numbers or shape variables")
        iterator = self.iterator(name)
        return iterator.ge_set(first) & iterator.lt_set(end)

    def iterator(self, name: str) -> isl.PwAff:
        """Return an iterator as a form."""
        at = self.iterators.index(name)
        return isl.PwAff.from_aff(isl.Aff.var_on_domain(self.space, _SET, at))

    @in_turn
    def form(self, term: Term, floor: bool = False) -> isl.PwAff | None:
        """Return a term as a quasi-affine form of the iterators; None where it is none.

        ``floor``: its quotients are rounded down, instead of towards zero.
        """
        match term:
            case Literal(value) if isinstance(value, int):
                return self.work.size(self.space, value)
            case Symbol(name) if name in self.iterators:
                return self.iterator(name)
            case Symbol(name):
                return self.work.size(self.space, name)
            case TensorElement(name, ()) if name in self.work.sizes:
                return self.work.size(self.space, name)
            case AxisExtent(tensor, axis):
                largest = self.work.axes[tensor][axis].dim_max(0)
                return largest.insert_domain(self.space.get_space()) + 1
            case Conversion("int32" | "int64", value):
                return self.form(value, floor)
            case Operation("neg", (value,)):
                form = self.form(value, floor)
                return None if form is None else form.neg()
            case Operation(function, (left, right)) if function in OPERATIONS:
                first, second = self.form(left, floor), self.form(right, floor)
                return combine_forms(function, first, second, floor)
        return None

    @in_turn
    def condition(self, term: Term) -> isl.Set | None:
        """Return where linear comparisons joined by ``&&`` hold; None for other conditions."""
        match term:
            case Operation("and", (left, right)):
                first, second = self.condition(left), self.condition(right)
                return None if first is None or second is None else first & second
            case Operation(function, (left, right)) if function in COMPARISONS:
                forms = [form for side in (left, right) if (form := self.form(side)) is not None]
                if len(forms) < 2 or not all(map(is_linear, forms)):
                    return None
                holds: isl.Set = getattr(forms[0], COMPARISONS[function])(forms[1])
                return holds
        return None

    def reaches(self, floor: bool = False) -> Iterator[Reach]:
        """Yield all subscripts; those of the target only where its extents are known."""
        statement = self.statement
        everywhere = isl.Set.universe(self.space.get_space())
        terms = [statement.value, *statement.exists]
        if statement.tensor in self.work.axes:
            index = tuple(map(Symbol, statement.index))
            terms.append(TensorElement(statement.tensor, index, statement.at))
        for term in terms:
            yield from self.reaches_of(term, everywhere, (), floor)

    def reaches_of(
        self, term: Term, condition: isl.Set, names: tuple[str, ...], floor: bool
    ) -> Iterator[Reach]:
        if isinstance(term, Operation) and term.function == "select":
            chosen, body, otherwise = term.arguments
            holds = self.condition(chosen)
            yield from self.reaches_of(chosen, condition, names, floor)
            if holds is not None:
                inner = (*names, *names_in(chosen))
                yield from self.reaches_of(body, condition & holds, inner, floor)
                yield from self.reaches_of(otherwise, condition - holds, inner, floor)
                return
        for axis, part in enumerate(parts(term)):
            yield from self.reaches_of(part, condition, names, floor)
            if isinstance(term, TensorElement):
                used = dict.fromkeys((*names_in(part), *names))
                iterators = tuple(name for name in used if name in self.iterators)
                yield Reach(term, axis, iterators, self.form(part, floor), condition)

    def inside(self, reach: Reach) -> isl.Set:
        """Return where a subscript lies inside its axis."""
        axis = self.work.axes[reach.element.tensor][reach.axis]
        assert reach.form is not None
        return isl.Map.from_pw_aff(reach.form).intersect_range(axis).domain()

    def outside(self, reach: Reach, but: str = "") -> isl.Set:
        """Return where it leaves its axis, as far as the ranges of iterators are known."""
        box = reach.condition
        for name in reach.names:
            if name != but:
                box = box & self.known[name]
        return with_positive_sizes(box) - self.inside(reach)

    def resolve(self, name: str, reaches: list[Reach]) -> isl.Set | None:
        """Return the range at which no subscript leaves its axis, as far as known, or None."""
        at, space = self.iterators.index(name), self.space.get_space()
        values, behind = with_positive_sizes(isl.Set.universe(space)), len(self.iterators) - at - 1
        for reach in reaches:
            others = {*reach.names} - {name}
            if reach.form is None or name not in reach.names or others - {*self.known}:
                continue
            outside = self.outside(reach, name).eliminate(_SET, at + 1, behind)
            values = values - outside.eliminate(_SET, 0, at)
        line = project(values, at)
        if not line.is_bounded():
            return None
        first, last = (end.insert_domain(space) for end in (line.dim_min(0), line.dim_max(0)))
        iterator = self.iterator(name)
        return iterator.ge_set(first) & iterator.le_set(last)

    def check_range(self, name: str, reaches: list[Reach]) -> None:
        """Raise SpecError for an iterator without a range, or whose range has no value."""
        rule = f"Say over which values it runs: where {name} in 0:10."
        if name in self.known:
            if with_positive_sizes(self.known[name]).is_empty():
                raise self.error(self.statement.at, f"{name} has no value inside all axes", rule)
            return
        for reach in reaches:
            if reach.form is None and name in reach.names:
                term = reach.element.index[reach.axis]
                text = str(term).replace("()", "")  # of scalars
                what = f"{text} is no affine form, so it says nothing of the range of {name}"
                raise self.error(term.at, what, rule)
        raise self.error(self.statement.at, f"nothing bounds {name}", rule)

    def check_reach(self, reach: Reach) -> None:
        """Raise SpecError where it leaves its axis for all sizes; warns where it may."""
        outside = self.outside(reach)
        assert reach.form is not None
        if outside.is_empty():
            return
        element, subscript = reach.element, reach.element.index[reach.axis]
        box = with_positive_sizes(reach.condition)
        for name in reach.names:
            box = box & self.known[name]
        values, axis = (
            text_of(part) for part in (
                isl.Map.from_pw_aff(reach.form).intersect_domain(box).range(),
                self.work.axes[element.tensor][reach.axis],
            )
        )  # fmt: skip
        what = f"{element}: {subscript} takes values {values}, but axis {reach.axis} has {axis}"
        always = with_positive_sizes(outside.params().complement().from_params()).is_empty()
        problem = self.error(subscript.at or self.statement.at, what)
        if always:
            raise problem
        self.work.warnings.append(str(problem))

    def place(self) -> None:
        """Set the axes of the target, from 0 to the last value of each of its iterators."""
        statement, work = self.statement, self.work
        if statement.tensor in work.axes:
            return
        axes = []
        for name in statement.index:
            values = self.alone(name)
            line = isl.Set.universe(values.get_space())
            natural = line.lower_bound_val(_SET, 0, isl.Val(0))
            if with_positive_sizes(values & natural).is_empty() or (
                not work.parameters.dim(_PARAM) and not values.is_subset(natural)
            ):
                what = f"{name} takes values {text_of(values)}, but axes begin at 0"
                raise self.error(statement.at, what, f"As in: where {name} in 0:10")
            upto = isl.Map.lex_ge(values.get_space()).intersect_range(natural)
            axes.append(with_positive_sizes(values).apply(upto).coalesce())
        work.axes[statement.tensor] = tuple(axes)


LARGEST: Final = 2**48  # elements of a tensor, more than any memory has


def bind_sizes(comprehension: Comprehension, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return by shape variable the extent that the tensors have there.

    Raises SpecError for a tensor that is missing, has another number of axes, or another extent
    than the declaration or a tensor before it says.
    """
    sizes: dict[str, int] = {}
    for tensor in comprehension.inputs:
        if tensor.name not in shapes:
            raise SpecError(f"{comprehension.name}: {tensor.name} is missing: expected {tensor}")
        shape = shapes[tensor.name]
        if len(shape) != len(tensor.extents):
            raise SpecError(f"{tensor.name}: expected {tensor}, got shape {tuple(shape)}")
        for extent, size in zip(tensor.extents, shape, strict=True):
            known = sizes.setdefault(extent, size) if isinstance(extent, str) else extent
            if known != size:
                raise SpecError(f"{tensor.name}: {extent} is {known}, got shape {tuple(shape)}")
    return sizes


def check_sizes(whole: Elaborated, sizes: Mapping[str, int | Sequence[int]]) -> None:
    """Raise SpecError for a size of something that has none, and for one below 1."""
    comprehension = whole.comprehension
    scalars = [tensor.name for tensor in comprehension.inputs if not tensor.extents]
    for name, size in sizes.items():
        if name not in (*comprehension.shape_variables, *scalars):
            raise SpecError(f"{comprehension.name}: {name}={size}: no shape variable or scalar")
        if name not in scalars and min([size] if isinstance(size, int) else size) < 1:
            raise SpecError(f"{comprehension.name}: {name}={size}: expected a positive size")


def infer_shapes(whole: Elaborated, sizes: Mapping[str, int]) -> ComprehensionRanges:
    """Infer the ranges of a comprehension of known sizes, and check what its calls promise.

    Raises SpecError for a size that is missing or below 1, and as ``infer`` does.
    """
    comprehension = whole.comprehension
    for name in comprehension.shape_variables:
        if name not in sizes:
            raise SpecError(f"{comprehension.name}: the size of {name} is missing: {name}=64")
    check_sizes(whole, sizes)
    inference = infer(whole, sizes)
    for tensor in inference.axes:
        if prod(shape := inference.shape(tensor)) >= LARGEST:
            raise SpecError(f"{comprehension.name}: {tensor}: too many elements: shape {shape}")
    for promise in whole.contracts:
        shape = inference.shape(promise.tensor)
        for extent, actual in zip(promise.declaration.extents, shape, strict=True):
            expected = extent
            if isinstance(extent, str):
                axis = promise.sizes[extent]
                expected = inference.shape(axis.tensor)[axis.axis]
            if expected != actual:
                what = f"{promise.tensor}: {extent} is {expected}, but its shape is {shape}"
                raise whole.error(promise.at, what, f"It is called for {promise.declaration}.")
    return inference
