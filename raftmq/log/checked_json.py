"""Small JSON files with a checksum: a flipped bit must not turn one promise into another.

    {"term": 7, "why": "...", "crc": "8a136aa9"}

`crc` is the CRC-32C of the object without that entry, as `json.dumps` writes it with sorted keys
and no spaces. A file without `crc` is of older software, and is believed.
"""

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c

from raftmq.log.files import FileSystem, prepare, publish, read_filled

KEY = "crc"


def write(files: FileSystem, folder: str, name: str, fields: Mapping[str, Any]) -> None:
    """Write a file; durable on return. Raises `OSError`."""
    prepare(files, folder, name, [encode(fields)]).close()
    publish(files, folder, name)


def read(files: FileSystem, folder: str, name: str) -> dict[str, Any] | None:
    """The object in a file; None: the file does not exist. Raises as `decode`, and `OSError`."""
    try:
        file = files.open(f"{folder}/{name}")
    except FileNotFoundError:
        return None
    try:
        return decode(read_filled(file, file.size(), 0))
    finally:
        file.close()


def encode(fields: Mapping[str, Any]) -> bytes:
    """The bytes of the file for an object, whose keys are strings."""
    return json.dumps({**fields, KEY: _checksum(fields)}, indent=2).encode() + b"\n"


def decode(data: bytes) -> dict[str, Any]:
    """The object in a file. Raises `ValueError` if it is none, or fails its checksum."""
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError("it holds no object")
    crc = fields.pop(KEY, None)
    if crc not in (None, _checksum(fields)):
        raise ValueError("it fails its CRC-32C")
    return fields


def _checksum(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"{google_crc32c.value(text.encode()):08x}"
