"""What can be asked: every key of a job once, and what is made of its row."""
