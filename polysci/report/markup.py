"""Elements of a page: a tree, escaped when it is written as text."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, tostring

Child = Element | str | None


def tag(name: str, /, *children: Child | Iterable[Child], **attributes: object) -> Element:
    """An element; ``class_`` sets the attribute class, ``a_b`` a-b, None is left out."""
    element = Element(name)
    for key, value in attributes.items():
        if value is not None:
            element.set(key.rstrip("_").replace("_", "-"), shown(str(value)))
    for child in children:
        for part in [child] if child is None or isinstance(child, str | Element) else child:
            _append(element, part)
    return element


def _append(element: Element, child: Child) -> None:
    if isinstance(child, Element):
        element.append(child)
    elif child is not None and len(element):
        element[-1].tail = (element[-1].tail or "") + shown(child)
    elif child is not None:
        element.text = (element.text or "") + shown(child)


def shown(text: str) -> str:
    """The text with U+FFFD for every character that is neither printable nor a newline."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def document(html: Element) -> str:
    """A whole page as text."""
    return "<!DOCTYPE html>\n" + tostring(html, encoding="unicode", method="html")
