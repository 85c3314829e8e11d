"""Servers that tests start themselves: a mosquitto and a PostgreSQL cluster, on loopback."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

START_S = 15.0
STOP_S = 5.0


def free_port() -> int:
    """A loopback port that nobody holds now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def mosquitto_program() -> str | None:
    """The broker's program, or None where it is not installed."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def postgres_programs() -> Path | None:
    """The newest folder of PostgreSQL's server programs, or None where there is none."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    usable = [folder for folder in folders if (folder / "initdb").exists()]
    return max(usable, key=lambda folder: float(folder.parent.name), default=None)


class Server:
    """A child process with a port and a folder of its own; both end with the context."""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="ciar-test-"))
        self._account = _account()
        if self._account is not None:
            shutil.chown(self.folder, self._account, self._account)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def command(self) -> Sequence[str | Path]:
        """The command line; the port and the folder are this server's."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts the process and returns when it listens."""
        self._log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            self.command(),
            stdout=self._log,
            stderr=self._log,
            cwd="/",
            user=self._account,
            extra_groups=None if self._account is None else [],
        )
        self._wait_listening()

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Ends the process; the port and what it stored stay for another start."""
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def kill(self) -> None:
        """Ends the process as a crash would."""
        self.stop(signal.SIGKILL)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_listening(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError((self.folder / "log").read_text(errors="replace"))
            time.sleep(0.02)


class Mosquitto(Server):
    """A mosquitto that forgets everything when it stops; `options` hold from the next start."""

    def __init__(self) -> None:
        super().__init__()
        self.options = "allow_anonymous true\nset_tcp_nodelay true\n"

    def command(self) -> Sequence[str | Path]:
        program = mosquitto_program()
        assert program is not None
        settings = self.folder / "mosquitto.conf"
        settings.write_text(f"listener {self.port} 127.0.0.1\n{self.options}")
        return [program, "-c", settings]


class Postgres(Server):
    """A PostgreSQL cluster of one superuser `ciar`, trusted on loopback."""

    def __init__(self) -> None:
        super().__init__()
        programs = postgres_programs()
        assert programs is not None
        self._programs = programs
        options: list[str] = [
            "--username=ciar",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        self._run([programs / "initdb", f"--pgdata={self.folder / 'data'}", *options])

    def command(self) -> Sequence[str | Path]:
        switches = ["-c", "fsync=off", "-c", f"unix_socket_directories={self.folder}"]
        address = ["-h", "127.0.0.1", "-p", str(self.port)]
        return [self._programs / "postgres", "-D", self.folder / "data", *address, *switches]

    def create_database(self, name: str) -> str:
        """Makes an empty database and returns its SQLAlchemy URL."""
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "ciar"]
        self._run([str(self._programs / "createdb"), *address, name])
        return f"postgresql+psycopg://ciar@127.0.0.1:{self.port}/{name}"

    def drop_database(self, name: str) -> None:
        """Drops a database, whoever is connected to it; hundreds of them take minutes to delete."""
        address = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "ciar"]
        self._run([str(self._programs / "dropdb"), *address, "--force", "--if-exists", name])

    def _wait_listening(self) -> None:
        # The port opens before recovery ends, so only pg_isready's word counts.
        super()._wait_listening()
        probe = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        deadline = time.monotonic() + START_S
        while subprocess.run(probe, check=False).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text(errors="replace"))
            time.sleep(0.02)

    def _run(self, command: Sequence[str | Path]) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd="/", user=self._account
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)


def _account() -> str | None:
    """Whom to run a server as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    return "postgres" if Path("/etc/passwd").read_text().find("\npostgres:") >= 0 else "nobody"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
