"""What a step is given: lengths of sequences, images, sounds, padding and packing."""
