"""The C of a host that launches the kernels of a device: launches as calls, a text as C strings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from textwrap import wrap

from polysci.loop_ir.interface import Function, Parameter
from polysci.loop_ir.kernels import Launch, LaunchedFunction, LaunchLoop, Step
from polysci.loop_ir.nodes import Buffer
from polysci.text.templates import Rows

_WIDTH = 98
_JOINED = "\xa0"  # a space at which no line is broken
_ON_DEVICE = ("packed", "workspace")
NUMBERS = ("x_zero",)  # the parameters of layers that are no memory


def launching(function: LaunchedFunction, device: str) -> str:
    """Return the C function ``launch_NAME`` that enqueues the kernels of a call.

    It takes a pointer to ``device``, numbers and the memory of every other argument. Marks are left
    out: who runs it notes no times.
    """
    used = {word for step in _all_launches(function.steps) for word in step.arguments}
    kinds = {word: "int64_t" if word in NUMBERS else "buffer" for word in function.parameters}
    words = "".join(f", {kind} {word}" for word, kind in kinds.items())
    head = f"static void launch_{function.name}({device} *device{words})"
    lines = [*_wrapped(head, 0), "{"]
    lines += [f"    (void){word};" for word in function.parameters if word not in used]
    if not used:
        lines.append("    (void)device;")
    return "\n".join([*lines, *_statements(function.steps, 1), "}"]) + "\n"


def launch_call(name: str, arguments: Sequence[str]) -> str:
    """Return the call of a function that ``launching`` prints."""
    return "\n".join(_wrapped(f"launch_{name}(device, {', '.join(arguments)});", 2))


def kernel_rows(functions: Iterable[LaunchedFunction]) -> Rows:
    """Return the names of all kernels, each once, as the rows KERNELS of templates."""
    launches = [step for function in functions for step in _all_launches(function.steps)]
    return {"KERNELS": [{"KERNEL": name} for name in dict.fromkeys(it.kernel for it in launches)]}


def string_lines(text: str) -> str:
    """Return a text as C strings, one a line, as ``sed`` in the Makefile does."""
    lines = (line.replace("\\", "\\\\").replace('"', '\\"') for line in text.splitlines())
    return "".join(f'"{line}\\n",\n' for line in lines)


def number_lines(data: bytes) -> str:
    """Return bytes as 64-bit numbers of a C array, four a line, zeros behind them."""
    whole = data + bytes(-len(data) % 8)
    words = [f"0x{int.from_bytes(whole[at : at + 8], 'little'):016x}"
             for at in range(0, len(whole), 8)]  # fmt: skip
    return "".join(f"{', '.join(words[at : at + 4])},\n" for at in range(0, len(words), 4))


def parameter_lines(parameters: Iterable[str]) -> str:
    """Return parameters in C, in as many lines as they fill."""
    return "\n".join(_wrapped(", ".join(parameters), 0))


def device_functions(rows: Sequence[Function], name: str) -> tuple[Function, ...]:
    """Return the functions of a primitive in the host ``name``: they take a device ahead.

    Packed weights and workspace are its memory, and all that do work return whether they could.
    """
    device = Buffer("device", f"{name}_device")
    return tuple(
        replace(row, result="int", parameters=(device, *(
            _memory(part, name) if part.name in _ON_DEVICE else part for part in row.parameters
        )))
        if row.parameters else row
        for row in rows
    )  # fmt: skip


def launch_function(run: Function, name: str) -> Function:
    """Return the function that launches what ``run`` does, of memory of the device alone."""
    device = Buffer("device", f"{name}_device")
    memory = [_memory(part, name) for part in run.parameters]
    return replace(run, parameters=(device, *memory))


def _memory(parameter: Parameter, name: str) -> Buffer:
    return Buffer(parameter.name, f"{name}_memory")


def _all_launches(steps: Iterable[Step]) -> Iterator[Launch]:
    for step in steps:
        if isinstance(step, LaunchLoop):
            yield from _all_launches(step.steps)
        elif isinstance(step, Launch):
            yield step


def _statements(steps: Iterable[Step], depth: int) -> Iterator[str]:
    indent = "    " * depth
    for step in steps:
        if isinstance(step, LaunchLoop):
            word, values = step.variable, step.values
            yield (
                f"{indent}for (int64_t {word} = {values.start}; {word} < {values.stop}; "
                f"{word} += {values.step}) {{"
            )
            yield from _statements(step.steps, depth + 1)
            yield f"{indent}}}"
        elif isinstance(step, Launch) and step.items:
            arguments = ", ".join(f"OF({word})" for word in step.arguments)
            count = len(step.arguments)
            sizes = f"{step.items}, {step.group}, {count}"
            yield from _wrapped(
                f"launch(device, {step.kernel}, {sizes}, (const argument[]){{{arguments}}});",
                depth,
            )


def _wrapped(text: str, depth: int) -> list[str]:
    """Return lines of a text that is broken behind commas."""
    indent = "    " * depth
    lines = wrap(
        text.replace(" ", _JOINED).replace(f",{_JOINED}", ", "), _WIDTH, initial_indent=indent,
        subsequent_indent=f"{indent}       ", break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(_JOINED, " ") for line in lines]
