"""Readers of networks; each makes a graph of the network's own representation."""
