"""Loops of a problem's own nest around a microkernel."""
