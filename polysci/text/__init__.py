"""How polysci prints: aligned tables, text files with holes to fill."""
