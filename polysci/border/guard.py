"""Turn what no caller can expect into an UnexpectedError, which asks to be reported."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from opcode import opmap
from pathlib import Path
from types import CodeType, TracebackType
from typing import ParamSpec, TypeVar

from polysci.errors import PolysciError, UnexpectedError

P = ParamSpec("P")
R = TypeVar("R")

DOCUMENTED = (PolysciError, OSError, MemoryError, Warning)  # the last under -W error
_PACKAGE = __name__.partition(".")[0]
_RAISE = opmap["RAISE_VARARGS"]


def guard(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, whose unexpected errors become UnexpectedError.

    Errors of a callback that it was called with are the caller's own and stay as they are.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if is_expected(error) or _is_from(error, (*args, *kwargs.values())):
                raise
            raise report_of(error) from error

    return call


def is_expected(error: Exception) -> bool:
    """Return whether callers must reckon with it: a documented type, or a wrong argument."""
    if isinstance(error, DOCUMENTED):
        return True
    frames = list(_frames(error))
    if not isinstance(error, TypeError | ValueError) or not frames:
        return False
    last = frames[-1]
    if not _is_ours(last):
        return False
    code = last.tb_frame.f_code.co_code
    return code[last.tb_lasti] == _RAISE or len(frames) == 1  # one: the call itself


def report_of(error: Exception) -> UnexpectedError:
    """Return the error that asks to report ``error`` and says where it arose."""
    place = next((frame for frame in reversed(list(_frames(error))) if _is_ours(frame)), None)
    where = ""
    if place is not None:
        code = place.tb_frame.f_code
        where = f" in {code.co_qualname} ({Path(code.co_filename).name}:{place.tb_lineno})"
    return UnexpectedError(
        f"unexpected {type(error).__name__}{where}: {str(error) or 'no message'}; this is a fault "
        "of polysci: please report it with this line and the input (on the command line, "
        "'polysci --traceback COMMAND' shows all of it)"
    )


def _frames(error: Exception) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_ours(frame: TracebackType) -> bool:
    return str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE


def _is_from(error: Exception, arguments: tuple[object, ...]) -> bool:
    """Tell whether the error passed through a callback among the arguments or their fields."""
    values = [*arguments, *(value for argument in arguments for value in _field_values(argument))]
    codes = {_code(value) for value in values if callable(value)}
    frames = (frame for frame in _frames(error) if not _is_ours(frame))
    return any(frame.tb_frame.f_code in codes for frame in frames)


def _field_values(argument: object) -> list[object]:
    """Return the values in the fields of a dataclass; none of another object."""
    if not is_dataclass(argument) or isinstance(argument, type):
        return []
    return [getattr(argument, field.name) for field in fields(argument)]


def _code(argument: Callable[..., object]) -> CodeType | None:
    """Return the code of a Python function, method, partial or callable object."""
    while isinstance(argument, functools.partial):
        argument = argument.func
    function = argument if hasattr(argument, "__code__") else type(argument).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
