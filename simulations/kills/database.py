"""A PostgreSQL of its own: `python -m simulations.kills.database FOLDER PORT`.

The cluster in FOLDER is made where there is none; its one superuser is `ciar`, trusted on the
loopback interface. As root the server runs under another account, since it refuses root.
"""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from fleet.errors import InvalidInputError
from fleet.process import command_errors

USER = NAME = "ciar"


def postgres_programs() -> Path:
    """The newest folder of PostgreSQL's server programs.

    Raises:
        InvalidInputError: They are not installed.
    """
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = [each.parent for each in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not folders:
        raise InvalidInputError("PostgreSQL's server programs are not installed: install them")
    return max(folders, key=lambda folder: float(folder.parent.name))


def url_of(port: int) -> str:
    """The database of a cluster that listens on a port of this machine."""
    return f"postgresql+psycopg://{USER}@127.0.0.1:{port}/{NAME}"


@command_errors
def main() -> None:
    """Becomes the server."""
    if len(sys.argv) != 3:
        raise InvalidInputError("two arguments: the folder of the cluster, and a port")
    folder, port = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    _leave_root(folder)
    programs, data = postgres_programs(), folder / "data"
    try:
        os.chdir(folder)
    except PermissionError as error:
        raise InvalidInputError(
            f"PostgreSQL runs as another account than root, which may not enter {folder}: take a"
            " folder that it may, such as one in /tmp"
        ) from error
    if not (data / "PG_VERSION").exists():
        _make(programs, data)
    switches = ["-c", f"unix_socket_directories={folder}", "-c", "listen_addresses=127.0.0.1"]
    server = programs / "postgres"
    os.execv(server, [str(server), "-D", str(data), "-p", str(port), *switches])  # noqa: S606


def _make(programs: Path, data: Path) -> None:
    options = [f"--username={USER}", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
    subprocess.run([programs / "initdb", f"--pgdata={data}", *options], check=True)
    # Alone, before anybody can connect.
    subprocess.run(
        [programs / "postgres", "--single", "-D", data, "postgres"],
        input=f"CREATE DATABASE {NAME};\n".encode(),
        check=True,
    )


def _leave_root(folder: Path) -> None:
    if os.geteuid():
        return
    names = {each.pw_name for each in pwd.getpwall()}
    account = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(folder, account.pw_uid, account.pw_gid)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


if __name__ == "__main__":
    main()
