"""A worker's bench for jobs: reads one, does it within its bounds, answers it whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, assert_never

from pydantic import ValidationError

from orchestrator.core.frozen import record
from orchestrator.protocol.jobs import (
    JOB,
    JOB_RESULT,
    DiffToRemote,
    GetMetadata,
    Job,
    JobFailed,
    JobResult,
    ReadDirectory,
    ReadFile,
    RunCommand,
    SearchFiles,
)
from orchestrator.tools.jobs import files
from orchestrator.tools.jobs.commands import Commands
from orchestrator.tools.jobs.policy import JobRefused
from orchestrator.tools.jobs.search import search

FILES_S = 10.0
T = TypeVar("T")


@record
class Workbench:
    """Does jobs; a door's worker is another process, so a job and its answer are bytes."""

    commands: Commands

    def extend(self, claim: str, deadline_boottime: float) -> None:
        """Lets what runs under a job's claim live until then."""
        self.commands.supervisor.extend(claim, deadline_boottime)

    async def do(self, payload: bytes, claim: str) -> bytes:
        """The answer to a job. Cancelling it kills what it runs, and waits for the proof."""
        try:
            result = await self._result(JOB.validate_json(payload), claim)
        except ValidationError as error:
            result = JobFailed(message=f"this worker does not know such a job: {error.errors()[0]['msg']}")
        except JobRefused as error:
            result = JobFailed(message=str(error), refused=True)
        except TimeoutError:
            result = JobFailed(message=f"the files did not answer within {FILES_S:.0f} s; check the mount")
        except OSError as error:
            place = f"{error.filename}: " if error.filename is not None else ""
            result = JobFailed(message=f"{place}{error.strerror or error}")
        except ValueError as error:
            # A name that no file can have.
            result = JobFailed(message=str(error))
        return JOB_RESULT.dump_json(result)

    async def _result(self, job: Job, claim: str) -> JobResult:
        hidden = self.commands.config.hidden
        match job:
            case RunCommand():
                return await self.commands.run(job, claim)
            case DiffToRemote():
                return await self.commands.diff_to_remote(job, claim)
            case ReadFile(path=path):
                return await _looked(lambda: files.read_file(path, hidden))
            case ReadDirectory(path=path):
                return await _looked(lambda: files.read_directory(path, hidden))
            case GetMetadata(path=path):
                return await _looked(lambda: files.metadata(path, hidden))
            case SearchFiles(query=query, roots=roots):
                return await _looked(lambda: search(query, roots, hidden))
            case _:
                assert_never(job)


async def _looked(look: Callable[[], T]) -> T:
    async with asyncio.timeout(FILES_S):
        return await asyncio.to_thread(look)
