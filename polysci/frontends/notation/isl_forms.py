"""isl's sets and forms of a tensor notation: what is asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import islpy as isl

from polysci.polyhedral.affine import Affine

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
    """First value, and behind the last one."""
    return values.dim_min_val(0).to_python(), values.dim_max_val(0).to_python() + 1


def with_positive_sizes(values: isl.Set) -> isl.Set:
    """A set where no size is below 1."""
    for at in range(values.dim(_PARAM)):
        values = values.lower_bound_val(_PARAM, at, isl.Val(1))
    return values


def name_for_isl(name: str) -> str:
    """A name that isl takes for one: those that begin with a digit look like numbers to it."""
    return f"_{name}" if name[0].isdigit() else name


def combine_forms(
    function: str, left: isl.PwAff | None, right: isl.PwAff | None, floor: bool = False
) -> isl.PwAff | None:
    """Two forms by an operation; None where the result is no quasi-affine form.

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
    """Whether it is one linear form, without a division."""
    return form.n_piece() == 1 and not form.as_aff().dim(isl.dim_type.div)


def _is_number(form: isl.PwAff) -> bool:
    return form.n_piece() == 1 and form.as_aff().is_cst()


def _value(form: isl.PwAff) -> int:
    value: int = form.as_aff().get_constant_val().to_python()
    return value


def affine_of(form: isl.PwAff, names: tuple[str, ...]) -> Affine:
    """A linear form of these iterators, all parameters of which have values."""
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
    """One dimension of a set."""
    behind = values.dim(_SET) - at - 1
    return values.project_out(_SET, at + 1, behind).project_out(_SET, 0, at)


def text_of(values: isl.Set) -> str:
    """``3 to 7``; isl's text where sizes are open."""
    if not values.dim(_PARAM):
        first, end = interval(values)
        return f"{first} to {end - 1}"
    sizes = with_positive_sizes(isl.Set.universe(values.get_space())).params()
    text = values.gist_params(sizes).coalesce().to_str()
    return str(text[text.index("{") :])
