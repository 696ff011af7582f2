"""A witness judges what one client sees, at once and in bounded memory; others use the system, too.

Start reading at `witness`. The checkers of histories need every call of every client, and judge
them in the end; the witness needs the calls of one client, keeps none of them, and judges less.
"""

from .witness import Witness

__all__ = ["Witness"]
