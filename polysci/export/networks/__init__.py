"""Exports of compiled networks."""
