"""`python -m raftmq`: the same as the command `raftmq`."""

from raftmq.cli import main

if __name__ == "__main__":
    main()
