"""The text of a nest: its region, macros, conditionals, and errors that point at a column."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from polysci.errors import SpecError, UnsupportedError

_CONDITIONALS: Final = frozenset(
    {"if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif"}
)
_KEPT: Final = frozenset({"define", "undef", "include", "error"})  # conditions may depend on them
_NAME: Final = re.compile(r"\s*#\s*(\w*)")
_COMPILERS: Final = ("cc", "gcc", "clang")
_ERROR: Final = re.compile(r"error: (.*)")
_TIMEOUT_S: Final = 20.0
_LINE: Final = "polysci_line_"
MAX_FILE = 1 << 20  # characters
MAX_REGION = 1 << 16
MAX_NESTING = 64  # brackets; the parser recurses through each
SHOWN = 100  # columns of a source line in a message


def wordset(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = wordset(
    "auto break case char const continue default do double else enum extern float for goto if"
    " inline int long register restrict return short signed sizeof static struct switch typedef"
    " union unsigned void volatile while"
)
# Words of isl's own notation: a round trip through its text would change them.
RESERVED = wordset(
    "and or not implies exists mod floor ceil floord ceild min max rat true false infty infinity"
    " nan"
)

_LEXICAL = re.compile(
    r"""//(?:\\.|[^\n\\])*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|/\*""", re.S
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
_UNDEF = re.compile(r"\s*#\s*undef\s+([A-Za-z_]\w*)\s*")
_DEFINE = re.compile(r"\s*#\s*define\s+([A-Za-z_]\w*)(\(?)(.*)", re.S)
_PRAGMA = re.compile(r"\s*#\s*pragma\s+(scop|endscop)\s*")
_INTEGER = re.compile(
    r"[+-]?\s*(?P<digits>0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9][0-9]*)"
    r"(?P<unsigned>[uU]?)(?P<long>(?:ll?|LL?)?)(?P<last>[uU]?)"
)
_LONGEST_LITERAL = 80  # characters: 64 binary digits, a sign and a suffix
UNSIGNED = "an unsigned literal makes the whole expression unsigned"
_WORD = re.compile(r"[A-Za-z_]\w*")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e\t\u00a0-\uffff]")


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Line and column, both from 1."""

    line: int
    column: int = 1


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text that errors point at; ``code`` is the text with comments and directives blanked out.

    ``region`` is the pair of offsets between the pragmas; ``constants`` the integer macros,
    ``opaque`` every other macro and why it cannot be used.
    """

    filename: str
    text: str
    code: str = ""
    region: tuple[int, int] = (0, 0)
    constants: dict[str, int] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)

    def fail(self, place: SourcePlace, what: str, rule: str = "") -> NoReturn:
        """Raise the SpecError for ``what`` at ``place``."""
        lines = self.text.split("\n")
        line = lines[place.line - 1] if 0 < place.line <= len(lines) else ""
        first = max(0, place.column - SHOWN) if len(line) > SHOWN else 0
        shown = _UNPRINTABLE.sub("?", line[first : first + SHOWN])
        margin = re.sub(r"[^\t]", " ", shown[: place.column - 1 - first])
        where = f"{self.filename}:{place.line}:{place.column}"
        message = f"{where}: {what}\n    {shown}\n    {margin}^"
        raise SpecError(f"{message}\n{rule}" if rule else message)

    def place(self, offset: int) -> SourcePlace:
        line = self.text.count("\n", 0, offset) + 1
        return SourcePlace(line, offset - self.text.rfind("\n", 0, offset))

    def offset(self, place: SourcePlace) -> int:
        start = 0
        for _ in range(place.line - 1):
            start = self.code.index("\n", start) + 1
        return start + place.column - 1

    @property
    def inside(self) -> str:
        """The code of the region, everything before it blanked, so that places stay the same."""
        first, last = self.region
        return _blank(self.code[:first]) + self.code[first:last]

    @property
    def outside(self) -> str:
        first, last = self.region
        return self.code[:first] + _blank(self.code[first:last]) + self.code[last:]


def read(text: str, filename: str) -> SourceText:
    """Find the region, the macros and the code. Raises SpecError."""
    if len(text) > MAX_FILE:
        raise SpecError(f"{filename}: {len(text)} characters; at most {MAX_FILE} are read")
    text = text.replace("\r\n", "\n")
    source = SourceText(filename, text)
    code = _LEXICAL.sub(lambda match: _without_comment(match, source), text)
    code = _without_uncounted(code, source)
    directives = list(_DIRECTIVE.finditer(code))
    region = _region(source, directives)
    constants, opaque = _macros(source, directives, region)
    blanked = _DIRECTIVE.sub(lambda match: _blank(match.group()), code)
    source = SourceText(filename, text, blanked, region, constants, opaque)
    _check_region(source, directives)
    return source


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _without_comment(match: re.Match[str], source: SourceText) -> str:
    token = match.group()
    if token == "/*":
        source.fail(source.place(match.start()), "this comment is never closed")
    return _blank(token) if token[0] == "/" else token


def _without_uncounted(code: str, source: SourceText) -> str:
    """Return the code with its conditionals, and the lines that they leave out, blanked."""
    directives = list(_DIRECTIVE.finditer(code))
    first = next((m for m in directives if _name(m.group()) in _CONDITIONALS), None)
    if first is None:
        return code
    try:
        counted = lines_that_count(code, directives, Path(source.filename).parent)
    except UnsupportedError as error:
        what = f"{' '.join(first.group().split())[:SHOWN]}: {error}"
        rule = "A text without #if, #ifdef and #ifndef is read without a preprocessor."
        source.fail(source.place(first.start()), what, rule)
    lines = enumerate(code.split("\n"))
    return "\n".join(line if number in counted else _blank(line) for number, line in lines)


def _region(source: SourceText, directives: list[re.Match[str]]) -> tuple[int, int]:
    """Offsets of the code between the two pragmas."""
    marks = [(m, kind.group(1)) for m in directives if (kind := _PRAGMA.fullmatch(m.group()))]
    kinds = [kind for _, kind in marks]
    if kinds == ["scop", "endscop"]:
        return marks[0][0].end(), marks[1][0].start()
    rule = "A file has one region: #pragma scop, the loop nest, #pragma endscop."
    if not marks:
        raise SpecError(f"{source.filename}: no #pragma scop found. {rule}")
    for (mark, name), expected in zip(marks, ("scop", "endscop"), strict=False):
        if name != expected:
            what = "a scop inside a scop" if name == "scop" else "#pragma endscop without a scop"
            source.fail(source.place(mark.start()), what, rule)
    what = "#pragma scop is never ended" if len(marks) == 1 else "a second region"
    return source.fail(source.place(marks[min(2, len(marks) - 1)][0].start()), what, rule)


def _macros(
    source: SourceText, directives: list[re.Match[str]], region: tuple[int, int]
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the integer macros before the region; every other one, and why it cannot be used."""
    constants: dict[str, int] = {}
    opaque: dict[str, str] = {}
    for directive in directives:
        if directive.start() >= region[0]:
            break
        if undefined := _UNDEF.fullmatch(directive.group()):
            name = undefined.group(1)
            if name in constants.keys() | opaque.keys():
                opaque[name] = f"the macro {name} is undefined again by #undef"
            continue
        match = _DEFINE.fullmatch(directive.group())
        if match is None:
            continue
        name, call, body = match.groups()
        if name in KEYWORDS:
            source.fail(source.place(directive.start()), f"#define of the keyword {name}")
        value = None if call else integer(body, constants)
        if name in opaque:
            continue
        if value is None:
            unsigned = not call and is_unsigned(body)
            what = f"is unsigned: {UNSIGNED}" if unsigned else "is not an integer constant"
            opaque[name] = f"the macro {name} {what}"
        elif constants.setdefault(name, value) != value:
            opaque[name] = f"the macro {name} is defined twice: {constants[name]} and {value}"
    return {n: value for n, value in constants.items() if n not in opaque}, opaque


def integer(text: str, constants: dict[str, int]) -> int | None:
    """A signed literal or a constant's name, in parentheses or not; None if it is neither."""
    text = _inside_parentheses(text)
    if text in constants:
        return constants[text]
    literal = _literal(text)
    if literal is None or literal[1]:
        return None
    return -literal[0] if text[0] == "-" else literal[0]


def is_unsigned(text: str) -> bool:
    """Return whether C gives an integer literal, perhaps in parentheses, such a type."""
    literal = _literal(_inside_parentheses(text))
    return literal is not None and literal[1]


def _inside_parentheses(text: str) -> str:
    text = text.strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    return text


def _literal(text: str) -> tuple[int, bool] | None:
    """Return the absolute value of an integer literal, and whether C makes it unsigned.

    It has the first type that holds it (C11, 6.4.4.1): of int and long, and where it is not
    decimal, after each of them its unsigned one. An int has 32 bits, a long 64.
    """
    match = _INTEGER.fullmatch(text)
    if match is None or len(text) > _LONGEST_LITERAL or (match["unsigned"] and match["last"]):
        return None
    digits = match["digits"]
    octal = digits[0] == "0" and digits.isdigit()
    value = int(digits, 8 if octal else 0)
    bits = [64] if match["long"] else [32, 64]
    wide = digits[0] == "0" and any(1 << size - 1 <= value < 1 << size for size in bits)
    return value, wide or bool(match["unsigned"] or match["last"])


def _check_region(source: SourceText, directives: list[re.Match[str]]) -> None:
    first, last = source.region
    if last - first > MAX_REGION:
        what = f"a region of {last - first} characters; at most {MAX_REGION} are read"
        source.fail(source.place(first - 1), what)
    for directive in directives:
        tokens = directive.group().replace("#", " ").split()
        if first <= directive.start() < last and tokens[:1] not in ([], ["pragma"]):
            source.fail(
                source.place(directive.start()),
                "a preprocessor directive inside the region",
                "The region is read without a preprocessor: put #define before it.",
            )
    for word in _WORD.finditer(source.code, first, last):
        if word.group() in source.opaque:
            source.fail(
                source.place(word.start()),
                source.opaque[word.group()],
                "Macros are '#define NAME integer'; the region is read without a preprocessor.",
            )
    odd = re.search(r"[^\x20-\x7e\s]|\$", source.code[first:last])
    if odd:
        source.fail(source.place(first + odd.start()), f"the character {odd.group()!a} in the code")
    _check_nesting(source)


def _check_nesting(source: SourceText) -> None:
    depth = 0
    for bracket in re.finditer(r"[(\[{]|[)\]}]", source.code[slice(*source.region)]):
        depth += 1 if bracket.group() in "([{" else -1
        if depth > MAX_NESTING:
            place = source.place(source.region[0] + bracket.start())
            source.fail(place, f"brackets nested deeper than {MAX_NESTING}")


def lines_that_count(
    code: str, directives: Sequence[re.Match[str]], folder: Path
) -> frozenset[int]:
    """Return the lines of ``code``, from 0, that the preprocessor keeps, conditionals excluded.

    ``code`` has no comments; ``folder`` is where it includes files from. Raises UnsupportedError
    where no preprocessor can be run or it refuses the text.
    """
    text = "\n".join(_probe(code, directives)) + "\n"
    try:
        done = subprocess.run(
            [*_compiler(), "-E", "-P", "-I", str(folder), "-x", "c", "-"],
            input=text, capture_output=True, encoding="utf-8", errors="replace",
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"the C preprocessor cannot be run: {error}") from None
    if done.returncode:
        reason = _ERROR.search(done.stderr)
        said = reason.group(1) if reason else f"exit status {done.returncode}"
        raise UnsupportedError(f"the C preprocessor refuses the file: {said:.200}")
    return frozenset(int(number) for number in re.findall(rf"\b{_LINE}(\d+)\b", done.stdout))


def _probe(code: str, directives: Sequence[re.Match[str]]) -> Iterator[str]:
    lines, line = code.split("\n"), 0
    for directive in directives:
        start = code.count("\n", 0, directive.start())
        yield from (f"{_LINE}{number}" for number in range(line, start))
        line = start + directive.group().count("\n") + 1
        name = _name(directive.group())
        if name not in _CONDITIONALS:
            yield from (f"{_LINE}{number}" for number in range(start, line))
        if name in _CONDITIONALS | _KEPT:
            yield directive.group()
    yield from (f"{_LINE}{number}" for number in range(line, len(lines)))


def _name(directive: str) -> str:
    match = _NAME.match(directive)
    return match.group(1) if match else ""


def _compiler() -> list[str]:
    """Return the command of the C compiler, as builds choose it. Raises UnsupportedError."""
    chosen = os.environ.get("CC", "").strip()
    if not chosen:
        chosen = next(filter(shutil.which, _COMPILERS), "")
    try:
        command = shlex.split(chosen)
    except ValueError as error:
        raise UnsupportedError(f"environment variable CC={chosen!r}: {error}") from None
    if not command:
        raise UnsupportedError("a C compiler is needed to evaluate it, and none is in PATH")
    return command
