"""What is done with a compiled network: reports, comparisons, exports."""
