"""Values as messages have them: alike from a snapshot and from the stream, of each database."""

import base64
import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.pipeline import PipelineError
from raftmq.pipeline.cdc import open_source
from raftmq.pipeline.cdc.change import Change, Column, Op, Row, Table, message_of
from raftmq.pipeline.cdc.change_capture import capture
from raftmq.pipeline.cdc.digest import digest_of
from tests.pipeline.cdc.shops import Shop, contents, opened

if TYPE_CHECKING:
    from raftmq.blocking import BlockingClient

LARGE = base64.b64encode(Random(1).randbytes(30_000)).decode()
"""Too large for PostgreSQL's pages, so an update does not send it again."""

KINDS = {
    "sqlite": [
        ("whole INTEGER", -(2**63), -(2**63)),
        ("part REAL", 0.1, "0.1"),
        ("words TEXT", "é€𝄞\n", "é€𝄞\n"),
        ("bits BLOB", b"\0\xff", "AP8="),
        ("yes BOOLEAN", True, True),
        ("cents DECIMAL(9,2)", "12.50", "12.5"),
        ("day DATE", "2026-01-02", "2026-01-02"),
    ],
    "postgresql": [
        ("whole bigint", -(2**63), -(2**63)),
        ("cents numeric(12,3)", "12345.600", "12345.600"),
        ("part real", 0.1, "0.1"),
        ("double double precision", "NaN", "NaN"),
        ("words text", "é€𝄞\n", "é€𝄞\n"),
        ("fixed char(5)", "ab", "ab   "),
        ("yes boolean", False, False),
        ("bits bytea", b"\0\xff", "AP8="),
        ("day date", "0044-03-15 BC", "0044-03-15 BC"),
        ("moment timestamp", "2026-01-02 03:04:05.000006", "2026-01-02 03:04:05.000006"),
        ("zoned timestamptz", "2026-01-02 03:04:05+01", "2026-01-02 02:04:05+00"),
        ("span interval", "1 day 2 hours", "P1DT2H"),
        ("json jsonb", '{"a":1}', '{"a": 1}'),
        ("list int[]", "{1,NULL,3}", "{1,NULL,3}"),
        ("large text", LARGE, LARGE),
    ],
    "mariadb": [
        ("whole bigint", -(2**63), -(2**63)),
        ("big bigint unsigned", 2**64 - 1, str(2**64 - 1)),
        ("tiny tinyint unsigned", 255, 255),
        ("cents decimal(12,3)", "12345.600", "12345.600"),
        ("small decimal(20,10)", "0", "0.0000000000"),
        ("part float", 0.1, "0.10000000149011612"),
        ("`double` double", 1e300, "1e+300"),
        ("words varchar(50) CHARACTER SET utf8mb4", "é€𝄞\n", "é€𝄞\n"),
        ("latin text CHARACTER SET latin1", "é", "é"),
        ("fixed char(5)", "ab ", "ab"),
        ("bits varbinary(9)", b"\0\xff", "AP8="),
        ("padded binary(4)", b"\1", "AQAAAA=="),
        ("blobs blob", b"", ""),
        ("day date", "2026-01-02", "2026-01-02"),
        ("moment datetime(6)", "2026-01-02 03:04:05.000006", "2026-01-02 03:04:05.000006"),
        ("stamp timestamp(3) NULL", "2026-01-02 03:04:05.120", "2026-01-02 03:04:05.120"),
        ("span time(2)", "-12:30:01.25", "-12:30:01.25"),
        ("spare time(6)", "-00:00:00.000001", "-00:00:00.000001"),
        ("plain time", "100:00:00", "100:00:00"),
        ("choice enum('x','y')", "y", "y"),
        ("some set('p','it''s','r')", "r,it's", "it's,r"),
        ("none set('p','q')", "", ""),
        ("json json", '{"a": 1}', '{"a": 1}'),
        ("y year", 2026, 2026),
        ("no_year year", "0000", 0),
        ("flags bit(9)", 0b101010101, "341"),
    ],
}
KINDS["mysql"] = [
    *KINDS["mariadb"],
    (
        "nested json",
        '[1.5, 1e20, {"k": null, "é": "\\"\\n"}]',
        '[1.5, 1e20, {"k": null, "é": "\\"\\n"}]',
    ),
    ("least float", -0.0, "-0.0"),
    ("asian varchar(9) CHARACTER SET gbk", "中文", "中文"),
    ("all_bits bit(64)", 2**64 - 1, str(2**64 - 1)),
]
"""A column, the written value, and the value in the message."""


def test_values_are_alike_from_a_snapshot_and_from_the_stream(
    mq: "BlockingClient", shop: Shop
) -> None:
    kind = shop.url.partition(":")[0]
    kinds = KINDS[kind]
    names = [declared.split()[0].strip("`") for declared, _, _ in kinds]
    shop.execute("DROP TABLE IF EXISTS kinds")
    columns = ", ".join(declared for declared, _, _ in kinds)
    shop.execute(f"CREATE TABLE kinds (id integer PRIMARY KEY, {columns})")
    if kind in ("mariadb", "mysql"):
        shop.execute("SET time_zone = '+00:00'")
    marks = ", ".join("?" * (len(kinds) + 1))
    insert = f"INSERT INTO kinds VALUES ({marks})"
    shop.execute(insert, 1, *(written for _, written, _ in kinds))
    shop.execute("INSERT INTO kinds (id) VALUES (2)")
    topic = f"values-{kind}"
    with opened(shop, topic, "kinds") as source:
        list(capture(mq, source, topic, until=source.now()))
        shop.execute(insert, 3, *(written for _, written, _ in kinds))
        shop.execute("INSERT INTO kinds (id) VALUES (4)")
        shop.execute("UPDATE kinds SET id = 5 WHERE id = 4")
        shop.execute(f"UPDATE kinds SET {kinds[0][0].split()[0]} = NULL WHERE id = 3")
        list(capture(mq, source, topic, until=source.now()))
    found = [change for change in contents(mq, topic) if change["op"] in "rcud"]
    wanted: dict[str, Any] = dict(zip(names, (value for _, _, value in kinds), strict=True))
    nothing: dict[str, Any] = dict.fromkeys(names)
    assert [(change["op"], change["after"]) for change in found] == [
        ("r", {"id": 1, **wanted}),
        ("r", {"id": 2, **nothing}),
        ("c", {"id": 3, **wanted}),
        ("c", {"id": 4, **nothing}),
        ("d", None),
        ("c", {"id": 5, **nothing}),
        ("u", {"id": 3, **wanted, names[0]: None}),
    ]
    assert found[-1]["before"] == {"id": 3, **wanted}


JSON_EXPRESSIONS = [
    "json_array(cast(-0.50 AS decimal(3, 2)), cast(repeat('9', 65) AS decimal(65, 0)))",
    "json_array(cast('-12:34:56.789' AS time(3)), timestamp('2026-01-02 03:04:05'))",
    "json_object('bytes', repeat(x'00ff', 100), 'bits', b'101')",
    "json_object('large', repeat('é', 70000), 'whole', 70000, 'none', NULL)",
    "json_array(repeat('x', 70000), -40000, 4294967295, true, false)",
    "json_array(18446744073709551615, -9223372036854775808, '\\u0001\\n\\\"\x7f', '')",
]


def test_json_of_mysql_is_written_as_a_query_writes_it(
    mq: "BlockingClient", mysql_item: Shop
) -> None:
    random = Random(3)
    mysql_item.execute("DROP TABLE IF EXISTS notes")
    mysql_item.execute("CREATE TABLE notes (id integer AUTO_INCREMENT PRIMARY KEY, note json)")
    with opened(mysql_item, "notes", "notes") as source:
        list(capture(mq, source, "notes", until=source.now()))
        for expression in JSON_EXPRESSIONS:
            mysql_item.execute(f"INSERT INTO notes (note) VALUES ({expression})")
        for _ in range(100):
            doubles = [random.random() * 10.0 ** random.randrange(-30, 30) for _ in range(20)]
            doubles += [random.randrange(10**15, 10**16) + 0.5, float(random.randrange(10**20))]
            mysql_item.execute("INSERT INTO notes (note) VALUES (?)", json.dumps(doubles))
        list(capture(mq, source, "notes", until=source.now()))
    rows = [change["after"] for change in contents(mq, "notes") if change["op"] == "c"]
    asked = mysql_item.execute("SELECT id, note FROM notes ORDER BY id").fetchall()
    assert [(row["id"], row["note"]) for row in rows] == list(asked)
    assert len(rows) == len(JSON_EXPRESSIONS) + 100


@pytest.mark.parametrize(
    ("column", "value"), [("id INTEGER, x INT", "text"), ("id INTEGER, x TEXT", b"bytes")]
)
def test_value_that_would_be_read_as_another_is_refused(
    mq: "BlockingClient", sqlite_item: Shop, column: str, value: object
) -> None:
    sqlite_item.execute(f"CREATE TABLE odd ({column}, PRIMARY KEY (id))")
    sqlite_item.execute("INSERT INTO odd VALUES (1, ?)", value)
    refused = pytest.raises(PipelineError, match=r"odd\.x is (INT|TEXT) and holds (str|bytes)")
    with opened(sqlite_item, "odd", "odd") as source, refused:
        list(capture(mq, source, f"odd-{type(value).__name__}", until=source.now()))


@pytest.mark.parametrize("value", ["0000-00-00", "2026-01-00"])
def test_date_with_zeros_is_refused(mq: "BlockingClient", logged_item: Shop, value: str) -> None:
    logged_item.execute("SET SESSION sql_mode = ''")
    logged_item.execute("DROP TABLE IF EXISTS days")
    logged_item.execute("CREATE TABLE days (id integer PRIMARY KEY, day date)")
    topic = f"days-{logged_item.kind}-{value}"
    with opened(logged_item, topic, "days") as source:
        list(capture(mq, source, topic, until=source.now()))
        logged_item.execute("INSERT INTO days VALUES (1, ?)", value)
        # From the stream, and in a snapshot.
        for snapshot in (False, True):
            with pytest.raises(PipelineError, match="day has a date of which a part is zero"):
                list(capture(mq, source, topic, until=source.now(), snapshot=snapshot))


@pytest.mark.parametrize(
    ("column", "found"),
    [
        ("place point", "place is POINT"),
        ("two integer AS (id * 2)", "two is generated"),
        ("wide text CHARACTER SET utf16", "wide has texts in utf16.*CHARACTER SET utf8mb4"),
        ("member enum('é') CHARACTER SET latin1", "member has texts in latin1"),
    ],
)
def test_types_that_cannot_be_told_are_refused(logged_item: Shop, column: str, found: str) -> None:
    logged_item.execute("DROP TABLE IF EXISTS odd")
    logged_item.execute(f"CREATE TABLE odd (id integer PRIMARY KEY, {column})")
    with pytest.raises(PipelineError, match=f"column {found}"):
        open_source(logged_item.url, "odd", "odd")


def test_key_of_several_columns_is_json_in_the_order_of_the_key() -> None:
    columns = (Column("a", "text", "TEXT", 2), Column("b", "int", "INTEGER", 1))
    row: Row = {"a": "x,y", "b": 7}
    message = message_of(
        Table("sqlite", "t", columns), Change(Op.CREATE, 1, 1, "1", None, None, row), is_last=True
    )
    assert message.key == '[7,"x,y"]'
    missing = Change(Op.CREATE, 1, 1, "1", None, None, {"a": None, "b": 7})
    with pytest.raises(PipelineError, match="NULL in its primary key b, a"):
        message_of(Table("sqlite", "t", columns), missing, is_last=True)


def test_digest_tells_tables_apart_and_forgets_the_order() -> None:
    rows: list[list[Any]] = [[1, "a", None], [2, "", True], [2, None, False]]
    whole = digest_of(rows)
    assert digest_of(reversed(rows)) == whole
    others: list[list[list[Any]]] = [
        rows[:2], [*rows, rows[0]], [[1, "a", None], [2, None, True], [2, "", False]],
        [[1, "a", "~"], *rows[1:]], [[None, "1a", None], *rows[1:]],
    ]  # fmt: skip
    assert len({whole, *map(digest_of, others)}) == 6
    # `verify` prints it, so runs of two releases can be compared.
    assert str(whole) == "3:ef782663b72bc57:1f7fb7cf4bbc00b8"
