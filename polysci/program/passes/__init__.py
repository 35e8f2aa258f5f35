"""What changes a network's stages or places them; each is from program to program."""
