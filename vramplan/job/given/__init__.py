"""What a job says, as it was given: options, files, matrices and spellings, read into values."""
