"""Where the time of some training steps goes: from a profiler's events, by interval arithmetic.

profiler.py    torch.profiler's events, and the trace
classify.py    events -> intervals of computation, communication and loading
intervals.py   sets of time
timeline.py    Horovod's own record of its collectives
"""
