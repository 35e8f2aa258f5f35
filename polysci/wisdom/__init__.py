"""Measured schedules kept across runs: a SQLite file, with JSON export and import."""

from polysci.wisdom.file import Repaired, Wisdom
from polysci.wisdom.record import LEVELS, TRIAL, Record, canonical_features

__all__ = ["LEVELS", "TRIAL", "Record", "Repaired", "Wisdom", "canonical_features"]
