"""Passes, which change the stages of a program or place its tensors in memory."""
