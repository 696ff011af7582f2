"""How a client finds its first node, and when it gives up.

| the addresses of the URL | what is done |
|---|---|
| a node answers | its routing table is taken |
| every one refuses the connection, for `wait_refused` seconds | the answer: no process listens |
| a node of another cluster than the wanted one answers at each | the answer: the wrong cluster |
| anything else | all of them again, after a short while, until the caller's deadline |

A node that is started again refuses connections for a moment, so one refusal is no answer to a
program; to a person at a terminal it is, and commands wait for none.
"""

from math import inf

import anyio

from raftmq.errors import Unavailable

from .router import Router

REFUSED_SECONDS = 3.0
"""Of `wait_refused`, unless the caller says otherwise."""


async def first_contact(router: Router, wait_refused: float | None) -> None:
    """Wait until any node has answered, however long it takes; give it a deadline.

    Raises:
        Rejected: `WRONG_CLUSTER`, at every address.
        Unavailable: for `wait_refused` seconds every address has refused the connection; None:
            that is never an answer.
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
