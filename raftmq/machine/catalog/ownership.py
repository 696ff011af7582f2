"""How much a user may own: topics, their queues, and consumer groups, by the user's quota.

A topic or consumer group belongs to the user that created it. What a user owned before it got a
quota stays; it creates no more until it owns less. Topics and groups without an owner count for no
user.
"""

from raftmq.errors import Reason
from raftmq.results import Refused

from .quotas import Quota, SubjectKind
from .state import CatalogState


def over_topics(
    catalog: CatalogState, owner: str, *, topics: int = 0, queues: int
) -> Refused | None:
    """The refusal of `topics` and `queues` more of a user; None: it may have them."""
    quota = _quota(catalog, owner)
    if quota is None or not (quota.topics or quota.queues):
        return None
    owned, has_queues = catalog.owned_topics.of(owner), catalog.owned_queues.of(owner)
    if topics and 0 < quota.topics < owned + topics:
        return _over(owner, "topics", owned, topics, quota.topics)
    if 0 < quota.queues < has_queues + queues:
        return _over(owner, "queues", has_queues, queues, quota.queues)
    return None


def over_groups(catalog: CatalogState, owner: str) -> Refused | None:
    """The refusal of another consumer group of a user; None: it may have one."""
    quota = _quota(catalog, owner)
    if quota is None or not quota.groups:
        return None
    owned = catalog.consumer_groups.owned.of(owner)
    return _over(owner, "groups", owned, 1, quota.groups) if owned >= quota.groups else None


def _quota(catalog: CatalogState, owner: str) -> Quota | None:
    return catalog.quotas.find(SubjectKind.USER, owner) if owner else None


def _over(owner: str, what: str, owned: int, more: int, bound: int) -> Refused:
    message = (
        f"user {owner!r} owns {owned} {what} and would own {owned + more}, and its quota is "
        f"{bound}: delete some, or let an administrator raise it with `raftmq quota set user "
        f"{owner} --{what} N` and all other amounts of the quota, which it replaces"
    )
    return Refused(Reason.OVER_QUOTA, message)
