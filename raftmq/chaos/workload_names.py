"""Names of the clients' workloads, for the command line, which starts without the worlds."""

WORKLOADS = ("log", "queue", "register", "pop", "members", "flows", "admin")
"""The work of the clients, in the worlds that have clients."""
