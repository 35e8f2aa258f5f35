"""How Sphinx builds the documentation: ``make docs``; warnings are errors."""

import argparse

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from polysci import __version__
from polysci.cli import parser
from polysci.graph.operators import OPERATORS

project = "polysci"
author = "polysci developers"
project_copyright = f"2026, {author}"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"polysci {version}"

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True


class CommandLine(Directive):
    """``command-line``: a section for every command of ``polysci``, with its help text."""

    def run(self) -> list[nodes.Node]:
        top = parser()
        (commands,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
        sections = [_section(name, command) for name, command in commands.choices.items()]
        return [_literal(top.format_help()), *sections]


class Operators(Directive):
    """``operators``: a table of the operators of graphs that ONNX files may hold."""

    def run(self) -> list[nodes.Node]:
        table = nodes.container()
        self.state.nested_parse(StringList(operator_lines()), self.content_offset, table)
        return list(table.children)


def operator_lines() -> list[str]:
    """Return a table in Markdown with a line for each row that has a name in ONNX."""
    rows = sorted((row for row in OPERATORS.values() if row.onnx), key=lambda row: row.onnx)
    return ["| ONNX | in graphs and messages | gradient |", "|---|---|---|", *(
        f"| `{row.onnx}` | `{row.name}` | {'yes' if row.gradient else ''} |" for row in rows
    )]  # fmt: skip


def _section(name: str, command: argparse.ArgumentParser) -> nodes.section:
    section = nodes.section(ids=[nodes.make_id(name)], names=[name])
    section += nodes.title(text=name)
    section += _literal(command.format_help())
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            section += [_literal(inner.format_help()) for inner in action.choices.values()]
    return section


def _literal(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def setup(app: Sphinx) -> None:
    """Register the directives."""
    app.add_directive("command-line", CommandLine)
    app.add_directive("operators", Operators)
