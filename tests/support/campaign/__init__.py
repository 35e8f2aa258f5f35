"""A random campaign: problems and networks of which all axes are drawn together."""
