"""Places for connections: an address has its share, silence gives way, nothing is left behind."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from raftmq.broker.serve.load import NODE_PLACES, Load


@dataclass(eq=False)
class One:
    """A connection."""

    address: str
    load: Load = field(repr=False)
    has_place: bool = False
    is_ended: bool = False
    wakes: int = 0
    is_of_client: bool = True

    def wake(self) -> None:
        """Note it."""
        self.wakes += 1

    def end(self) -> None:
        """Note it."""
        self.is_ended = True


def make(places: int = 1000, address_places: int = 3) -> Load:
    return Load(bytes_max=1, places=places, address_places=address_places)


def taken(load: Load, address: str, count: int, *, greets: bool = True) -> list[One]:
    """Connections that got a place."""
    found = [One(address, load) for _ in range(count)]
    for one in found:
        assert load.take_place(one)
        if greets:
            load.greet(one)
    return found


def test_an_address_has_its_share_of_clients_and_others_go_on() -> None:
    load = make()
    taken(load, "10.0.0.1", 3)
    (fourth,) = taken(load, "10.0.0.1", 1, greets=False)
    why = load.why_no_client(fourth)
    assert why.startswith("10.0.0.1 has all 3 connections of its share: limits.address_conn")
    (other,) = taken(load, "10.0.0.2", 1, greets=False)
    assert load.why_no_client(other) == ""
    for one in taken(load, "", 10, greets=False):
        assert load.why_no_client(one) == ""


def test_a_full_address_pushes_out_its_own_silent_connections_alone() -> None:
    load = make()
    (theirs,) = taken(load, "10.0.0.2", 1, greets=False)
    silent = taken(load, "10.0.0.1", 3 + NODE_PLACES, greets=False)
    taken(load, "10.0.0.1", 2, greets=False)
    assert [one.is_ended for one in silent[:3]] == [True, True, False]
    assert not theirs.is_ended


def test_a_full_address_without_silent_connections_gets_no_place() -> None:
    load = make()
    taken(load, "10.0.0.1", 3 + NODE_PLACES)
    late = One("10.0.0.1", load)
    assert not load.take_place(late)
    assert "10.0.0.1" in load.why_no_place(late)
    load.leave(late)
    (other,) = taken(load, "10.0.0.2", 1)
    assert other.has_place
    full = make(places=1)
    taken(full, "a", 1)
    assert "all 1 places" in full.why_no_place(One("b", full))


def test_waiting_connections_are_woken_when_the_node_is_no_longer_at_its_limit() -> None:
    load = Load(bytes_max=100, places=10, address_places=3)
    (one,) = taken(load, "", 1)
    load.add(90)
    load.waiting[one] = None
    wakes: list[int] = []
    for size in (5, -5, 30, -10, -11, -50):
        load.add(size)
        wakes.append(one.wakes)
    assert wakes == [0, 0, 0, 0, 1, 1]


steps = st.lists(st.tuples(st.sampled_from("tgl"), st.sampled_from(["a", "b", ""])), max_size=300)


@given(steps, st.integers(1, 80))
def test_places_are_counted_once_and_given_back(steps: list[tuple[str, str]], places: int) -> None:
    load = make(places=places, address_places=1)
    alive: list[One] = []
    for step, address in steps:
        if step == "t":
            one = One(address, load)
            if load.take_place(one):
                alive.append(one)
        elif alive and step == "g":
            load.greet(alive[len(alive) // 2])
        elif alive:
            load.leave(alive.pop(len(alive) // 2))
        alive = [one for one in alive if not one.is_ended]
        assert load.connections == len(alive) <= places
        assert load.greeted == len(alive) - len(load.silent)
        for known in ("a", "b"):
            assert sum(one.address == known for one in alive) <= 1 + NODE_PLACES
    for one in alive:
        load.leave(one)
    assert (load.connections, load.silent, load._addresses) == (0, {}, {})
