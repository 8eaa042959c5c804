"""The job: parse, merge defaults, validate, resolve."""

from vramplan.job.echo import job_to_dict
from vramplan.job.file import JobEntry, build_any_job, build_job, check_keys, read_job_file, read_one_job

__all__ = ["JobEntry", "build_any_job", "build_job", "check_keys", "job_to_dict", "read_job_file", "read_one_job"]
