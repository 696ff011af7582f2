"""Counters of processes, from outside: processor time, memory, system calls, bytes.

Start reading at `usage.py` (processor time and memory of the servers of any benchmark), then
`counts.py` (context switches, system calls, bytes, stacks), then `one_message.py`, which counts the
way of one message through all processes:

    python -m bench.counting.one_message
"""
