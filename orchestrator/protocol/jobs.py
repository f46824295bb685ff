"""Jobs: work that a door asks a worker of a pool for where no session is: a command, a look at files.

Both ends are Dendro's own; the texts inside come from clients and from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter

from orchestrator.protocol.policy import SandboxPolicyField
from orchestrator.protocol.wire import Flag, Int, Maybe, Source, Uint, WireModel

MOST_WORDS = 1_000
MOST_ROOTS = 20
MOST_VARIABLES = 100
MOST_COMMAND_BYTES = 64 << 10
MOST_PATH_BYTES = 4_096
MOST_QUERY = 200
MOST_TIMEOUT_MS = 600_000
DEFAULT_TIMEOUT_MS = 10_000

Path = Annotated[str, Field(min_length=1, max_length=MOST_PATH_BYTES, pattern=r"^[^\x00]+$")]


class JobModel(WireModel):
    """A job, or the answer to one."""

    stated_in = Source.DENDRO


class RunCommand(JobModel):
    """A command under the sandbox; without a policy under the worker's own."""

    kind: Literal["run_command"] = "run_command"
    command: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_WORDS)]
    cwd: Maybe[Path] = None
    timeout_ms: Annotated[Uint, Field(ge=1, le=MOST_TIMEOUT_MS)] = DEFAULT_TIMEOUT_MS
    sandbox_policy: Maybe[SandboxPolicyField] = None
    env: Annotated[Mapping[str, str], Field(max_length=MOST_VARIABLES)] = {}


class DiffToRemote(JobModel):
    """The changes of a repository since the last commit that a remote has."""

    kind: Literal["diff_to_remote"] = "diff_to_remote"
    cwd: Path


class ReadFile(JobModel):
    """The content of a file."""

    kind: Literal["read_file"] = "read_file"
    path: Path


class ReadDirectory(JobModel):
    """The entries of a folder."""

    kind: Literal["read_directory"] = "read_directory"
    path: Path


class GetMetadata(JobModel):
    """The kind of a path, and its times."""

    kind: Literal["get_metadata"] = "get_metadata"
    path: Path


class SearchFiles(JobModel):
    """The files whose paths have the letters of a query in their order, the best first."""

    kind: Literal["search_files"] = "search_files"
    query: Annotated[str, Field(max_length=MOST_QUERY)]
    roots: Annotated[tuple[Path, ...], Field(min_length=1, max_length=MOST_ROOTS)]


Job: TypeAlias = RunCommand | DiffToRemote | ReadFile | ReadDirectory | GetMetadata | SearchFiles
JOB: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Field(discriminator="kind")])


class CommandResult(JobModel):
    """A command that is over; outputs that are too long have lost their middles."""

    kind: Literal["command"] = "command"
    exit_code: Int
    stdout: str
    stderr: str


class DiffResult(JobModel):
    """The last commit that a remote has, and what differs from it, untracked files too."""

    kind: Literal["diff"] = "diff"
    sha: str
    diff: str


class FileContent(JobModel):
    """A file's bytes."""

    kind: Literal["content"] = "content"
    data_base64: str


class Entry(JobModel):
    """A name in a folder; what a link leads to counts."""

    file_name: str
    is_directory: Flag
    is_file: Flag


class Directory(JobModel):
    """A folder's entries by name."""

    kind: Literal["directory"] = "directory"
    entries: tuple[Entry, ...]


class Metadata(JobModel):
    """The kind of a path; `is_symlink` is about the path itself, all else about what it leads to."""

    kind: Literal["metadata"] = "metadata"
    is_directory: Flag
    is_file: Flag
    is_symlink: Flag
    created_at_ms: Int
    modified_at_ms: Int


class FoundFile(JobModel):
    """A file or folder that was found; `indices` are the places of the query's letters in `path`."""

    root: str
    path: str
    match_type: Literal["file", "directory"]
    file_name: str
    score: Uint
    indices: tuple[Uint, ...]


class FoundFiles(JobModel):
    """The best of what was found."""

    kind: Literal["files"] = "files"
    files: tuple[FoundFile, ...]


class JobFailed(JobModel):
    """A job that could not be done; `refused` if it may not, as the worker is set up."""

    kind: Literal["failed"] = "failed"
    message: str
    refused: Flag = False


JobResult: TypeAlias = (
    CommandResult | DiffResult | FileContent | Directory | Metadata | FoundFiles | JobFailed
)
JOB_RESULT: TypeAdapter[JobResult] = TypeAdapter(Annotated[JobResult, Field(discriminator="kind")])
Result = TypeVar("Result", CommandResult, DiffResult, FileContent, Directory, Metadata, FoundFiles)
