"""Text for people: aligned tables, templates, suggestions for misspelt names."""
