"""Printers: loop IR as text of a target language."""
