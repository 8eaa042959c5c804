"""What a training program takes, and which combinations have been traced."""
