"""How long a step takes, from the kernels that a replay lists.

`rates.py` says how fast a device is, `kernels.py` prices each kernel, `optimizer.py` the step, `communication.py` one
collective, `traffic.py` those of an iteration, `step.py` puts them together. `fitted.py` has every constant that was
fitted to published rates, with their rows. It imports the standard library, the replay's record and values.
"""
