"""Compiled code in this process: build, load, check arguments, call."""
