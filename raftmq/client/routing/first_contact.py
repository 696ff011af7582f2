"""The first contact of a client: how it finds a node, and when it gives up.

| the addresses of the URL | what is done |
|---|---|
| a node answers | the client takes its routing table |
| every one refuses the connection, for `wait_refused` seconds | the answer: no process listens |
| a node of another cluster, or one that does not agree on TLS, answers at each | the answer: that |
| anything else | all of them again, after a short while, until the caller's deadline |

A node that restarts refuses connections for a moment, so one refusal is no answer for a program.
For a person at a terminal one refusal is an answer: commands do not wait.
"""

from math import inf

import anyio

from raftmq.errors import Unavailable

from .router import Router

REFUSED_SECONDS = 3.0
"""Default of `wait_refused`, in seconds."""


async def first_contact(router: Router, wait_refused: float | None) -> None:
    """Wait until any node has answered, without a limit; the caller sets a deadline.

    Raises:
        Rejected: `WRONG_CLUSTER` or `TLS`, at every address.
        Unavailable: for `wait_refused` seconds every address has refused the connection; with None
            it is never raised.
    """
    limit = inf if wait_refused is None else wait_refused
    refused_since: float | None = None
    attempt = 0
    while (answer := await router.contact()) is not True:
        if answer is False:
            refused_since = None
        elif refused_since is None:
            refused_since = anyio.current_time()
        if refused_since is not None and anyio.current_time() >= refused_since + limit:
            where = ", ".join(map(str, router.bootstrap))
            raise Unavailable(f"no process listens at {where}")
        await anyio.sleep(router.delay(attempt))
        attempt += 1
