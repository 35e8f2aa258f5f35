"""Stages of programs as loop IR."""
