"""Schemas of Protobuf: what protoc makes of the text of .proto files, each set of files in a pool of its own.

Nothing is generated, and nothing is put into the pool of the process: two schemas may have messages of one name.
protoc runs as a process of its own, since the text may be anybody's, and writes into a temporary directory.
"""

from __future__ import annotations

import re
import subprocess
import sys
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ratchet.errors import IncompleteRead
from ratchet.formats.avro_schema import Unreadable
from ratchet.values.unfit import excerpt

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

MAIN = "(schema).proto"
"""The name of the file that was said, whatever it was called: no other file can import it."""
SECONDS = 30
"""protoc is given so long."""
_NAME = re.compile(r"(?!/)(?:(?!\.{1,2}/)[A-Za-z0-9_.@+~ -]+/)*[A-Za-z0-9_.@+~ -]+\.proto", re.ASCII)
"""A name under which a file can be imported, and that leads nowhere out of a folder."""
_LONGEST_NAME = 500
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)
_COMPLAINT = re.compile(r"\S+\.proto:")
_META = """syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4; }
message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
_DECIMAL = """syntax = "proto3"; package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
"""
_KNOWN = {"confluent/meta.proto": _META, "confluent/type/decimal.proto": _DECIMAL}
"""What Confluent's registry takes for known to everybody, besides what protoc and Google ship."""


class Schema:
    """Files that belong together; the last one is that which was said. Raises Unreadable."""

    def __init__(self, files: FileDescriptorSet):
        from google.protobuf.descriptor_pool import DescriptorPool

        if not files.file:
            raise Unreadable("it has no file")
        self._main: FileDescriptorProto = files.file[-1]
        self._names = [name for file in files.file for name in _messages(file.package, file.message_type)]
        self._pool = DescriptorPool()
        try:
            for file in files.file:
                self._pool.AddSerializedFile(file.SerializeToString())
            for file in files.file:
                self._pool.FindFileByName(file.name)
        except (TypeError, KeyError, ValueError) as error:
            raise Unreadable(f"its files do not fit together: {excerpt(str(error))}") from error

    @property
    def own(self) -> tuple[str, ...]:
        """The full names of the message types of the file that was said, those within others among them."""
        return tuple(_messages(self._main.package, self._main.message_type))

    def message(self, name: str) -> Descriptor:
        """The message type of a full name."""
        if name not in self._names:
            raise Unreadable(f"it has no message {excerpt(name)!r}; it has {excerpt(', '.join(self.own)) or 'none'}")
        return self._pool.FindMessageTypeByName(name)

    def at(self, indexes: Sequence[int]) -> Descriptor:
        """The message type that indexes lead to in the file that was said, each among those of the one before.

        Entries of maps, which are messages too, are not counted, as Confluent's own serializers have it.
        """
        types: Sequence[DescriptorProto] = self._main.message_type
        names = [self._main.package] if self._main.package else []
        for index in indexes:
            types = [each for each in types if not each.options.map_entry]
            if not 0 <= index < len(types):
                raise Unreadable(f"it has no message at {list(indexes)}")
            names.append(types[index].name)
            types = types[index].nested_type
        return self._pool.FindMessageTypeByName(".".join(names))

    def named(self, name: str) -> Descriptor:
        """The message type of a short name, beside all others in the file that was said."""
        return self.message(f"{self._main.package}.{name}" if self._main.package else name)


def of_text(text: str) -> str:
    """The text of a .proto file, or a set of compiled files in base64, as such a set; raises Unreadable."""
    if _BASE64.fullmatch(text):
        try:
            return of_bytes(b64decode(text, validate=True))
        except NoBase64:
            raise Unreadable("it is neither the text of a .proto file nor base64") from None
    return _said(compiled(text, (), ()))


def of_file(path: Path, folders: Sequence[Path]) -> str:
    """A .proto file that may import others of these folders, or a file with a set of compiled ones, as such a set."""
    if path.suffix != ".proto":
        return of_bytes(path.read_bytes())
    try:
        return _said(compiled(path.read_text(encoding="utf-8"), (), tuple(map(str, folders))))
    except UnicodeDecodeError:
        raise Unreadable("it is no UTF-8") from None


def of_bytes(sent: bytes) -> str:
    """A set of compiled files, as protoc writes it, in the form in which a spec keeps it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        files = FileDescriptorSet.FromString(sent)
    except DecodeError:
        raise Unreadable("it is no set of compiled files, as `protoc --descriptor_set_out` writes it") from None
    Schema(files)
    return _said(_bare(files))


@lru_cache(64)
def schema_of(said: str) -> Schema:
    """The schema in the form in which a spec keeps it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return Schema(FileDescriptorSet.FromString(b64decode(said)))


def registered(text: str, references: Mapping[str, str]) -> Schema:
    """A schema as a registry has it: text, or one compiled file in base64; so are those that it imports, by name."""
    if _BASE64.fullmatch(text):
        return Schema(_of_compiled(text, references))
    return Schema(compiled(text, tuple(references.items()), ()))


@lru_cache(64)
def compiled(text: str, others: tuple[tuple[str, str], ...], folders: tuple[str, ...]) -> FileDescriptorSet:
    """What protoc makes of a file, which may import `others` by their names, and files of `folders`.

    Raises Unreadable with what protoc says.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with TemporaryDirectory(prefix="ratchet-protoc-") as home:
        own, known, out = (Path(home) / name for name in ("own", "known", "out"))
        for name, content in {**dict(others), MAIN: text}.items():
            _put(own, name, content)
        for name, content in _KNOWN.items():
            _put(known, name, content)
        (known / "google").mkdir()
        (known / "google" / "type").symlink_to(_google_types())
        paths = [f"-I{folder}" for folder in (own, *folders, known)]
        # Not from the working directory, where a file might be named as a module of Python.
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *paths, "--include_imports"]
        try:
            ended = subprocess.run(
                [*command, f"--descriptor_set_out={out}", MAIN],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise IncompleteRead(f"protoc has not read a schema within {SECONDS} s; the slice is tried again") from None
        if ended.returncode < 0:
            # Of memory there was too little, say: the schema is not to blame.
            raise IncompleteRead(f"protoc was ended by signal {-ended.returncode}; the slice is tried again")
        if ended.returncode or not out.is_file():
            raise Unreadable(f"protoc refuses it: {_complaint(ended, own)}")
        return _bare(FileDescriptorSet.FromString(out.read_bytes()))


def _put(folder: Path, name: str, content: str) -> None:
    if name != MAIN and (not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME):
        raise Unreadable(f"it imports {excerpt(name)!r}, which is no name of a .proto file")
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except UnicodeEncodeError:
        raise Unreadable("it has half of a surrogate pair") from None
    except OSError as error:
        raise Unreadable(f"it imports {excerpt(name)!r}, which cannot be beside the others: {error.strerror}") from None


def _complaint(ended: subprocess.CompletedProcess[bytes], own: Path) -> str:
    # The same of the same text, wherever it was put.
    lines = ended.stderr.decode(errors="replace").replace(f"{own}/", "").splitlines()
    errors = [line for line in lines if _COMPLAINT.match(line) and ": warning:" not in line]
    return excerpt("; ".join(errors)) or f"it ends with {ended.returncode}"


def _google_types() -> Path:
    """The folder of googleapis-common-protos with Google's common types."""
    found = find_spec("google.type")
    assert found is not None and found.submodule_search_locations, "it is installed beside ratchet"
    return Path(next(iter(found.submodule_search_locations)))


def _of_compiled(text: str, references: Mapping[str, str]) -> FileDescriptorSet:
    """A file that was registered compiled, with all that it imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.message import DecodeError

    found: dict[str, Any] = {}
    try:
        for name, each in {**references, MAIN: text}.items():
            if not _BASE64.fullmatch(each):
                raise Unreadable(f"it is compiled, and {excerpt(name)!r}, which it imports, is text")
            file = found[name] = FileDescriptorProto.FromString(b64decode(each, validate=True))
            file.name = name
    except (DecodeError, NoBase64):
        raise Unreadable("it is neither the text of a .proto file nor a compiled one in base64") from None
    missing = [name for file in found.values() for name in file.dependency if name not in found]
    lines = "".join(f'import "{name}";\n' for name in dict.fromkeys(missing) if _NAME.fullmatch(name))
    shipped = compiled(f'syntax = "proto3";\n{lines}', (), ()).file[:-1] if lines else []
    # What is imported stands first: references come in that order.
    return _bare(FileDescriptorSet(file=[*shipped, *found.values()]))


def _bare(files: FileDescriptorSet) -> FileDescriptorSet:
    """The same without comments and places in the text."""
    for file in files.file:
        file.ClearField("source_code_info")
    return files


def _said(files: FileDescriptorSet) -> str:
    return b64encode(files.SerializeToString(deterministic=True)).decode()


def _messages(outer: str, types: Sequence[DescriptorProto]) -> list[str]:
    """The full names of message types and of those within them."""
    found: list[str] = []
    for each in types:
        if not each.options.map_entry:
            name = f"{outer}.{each.name}" if outer else each.name
            found += [name, *_messages(name, each.nested_type)]
    return found
