"""The rule for names: 1 to 127 of `A-Z a-z 0-9 . _ -`, starting with a letter, digit or underscore.

| name | refused by | at |
|---|---|---|
| topic, user, subject of a quota | the catalog | each replica, alike |
| consumer group, instance, producer group | the broker | the request that brings a new one |

Machines take any consumer group, instance and producer group of 1 to 127 characters: logs of older
software may hold other names, and all replicas must apply a record alike.

>>> why_no_name("billing", "consumer group"), why_no_name("x y", "consumer group")[:38]
('', "'x y' is not a consumer group name: 1 ")
"""

import re

NAME_CHARACTERS_MAX = 127
"""The longest name."""

_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}}")


def why_no_place(name: str) -> str:
    """Why a text is no zone or machine of a node; empty: it is one, or says nothing.

    >>> why_no_place("rack 7")[:38], why_no_place("")
    ("'rack 7' is not a place name: 1 to 127", '')
    """
    return why_no_name(name, "place") if name else ""


def why_no_name(name: str, what: str) -> str:
    """Why a name is refused for a new thing of this kind, with the rule; empty: it is not."""
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{name[:140]!r} is not a {what} name: 1 to {NAME_CHARACTERS_MAX} of A-Z a-z 0-9 . _ -, "
        "starting with a letter, digit or underscore"
    )
