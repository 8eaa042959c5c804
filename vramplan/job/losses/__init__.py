"""What a job minimizes: its loss, a teacher, a classifier's head, and what a model returns beside."""
