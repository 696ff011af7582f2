"""Questions to the cluster behind the hints of commands about users: whether a user is known,
whether access control is on, who is an administrator by the settings.
"""

from typing import TYPE_CHECKING

from raftmq.cli.session import HINT_NAMES_MAX
from raftmq.words import did_you_mean

if TYPE_CHECKING:
    from raftmq.client import Client

# As in `raftmq.access.rules`, whose import would slow down the help.
EVERYBODY = "*"
"""In a rule or quota: every user."""

IS_OFF = "access control is off in this cluster: set access.is_on first (docs/security.md)"
"""The hint for an empty list of users, tokens or rules: none can be added."""


async def unknown_user(mq: "Client", name: str) -> str:
    """A warning about a user that was not added and has no rules, with the name that is like it;
    empty: it is known."""
    if name == EVERYBODY or await mq.access.users(name) or await mq.access.rules(name):
        return ""
    # The settings name administrators that were never added.
    if await is_administrator(mq, name):
        return ""
    names = [user.name for user in await mq.access.users()]
    return f"warning: no user {name} was added{did_you_mean(name, names[:HINT_NAMES_MAX])}"


async def is_administrator(mq: "Client", name: str) -> bool:
    """Whether `access.admins` of the settings names a user; True for all where access is off."""
    judged = await mq.access.judge(name, "admin", "cluster")
    # No default allows this: it is a rule, the settings, or no access control.
    return judged.is_allowed and judged.rule is None


async def is_off(mq: "Client") -> bool:
    """Whether access control is off in the cluster."""
    # No administrator has an empty name.
    return await is_administrator(mq, "")
