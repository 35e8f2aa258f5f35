"""Machines: instruction sets, this host, machine files, microkernels and their headers."""
