"""What a job needs and takes at least, from one replay that stands for many."""
