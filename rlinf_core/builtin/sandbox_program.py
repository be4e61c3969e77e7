"""Runs somebody else's program with few rights: no network, no processes, no files but those of a folder.

Started as a program of its own by `sandbox.py`; it imports the standard library alone. Linux: Landlock shows
it its folder and the interpreter's files, seccomp takes away calls, and resource limits hold from the start.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import struct
import sys
from typing import Any

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ_FILE, _READ = 1 << 2, 1 << 0 | 1 << 2 | 1 << 3  # a file; below a folder: execute, read, list
_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # where the filter finds them
_CLONE_THREAD = 0x10000
_X32 = 0x40000000
_ANY = (424, 425, 434, 438)  # pidfd_send_signal, io_uring_setup, pidfd_open, pidfd_getfd
# socket, ptrace, process_vm_readv and _writev, fork, vfork, execve, execveat, bpf, unshare, setns, mount,
# add_key, request_key, keyctl, userfaultfd, perf_event_open, prlimit64, setpriority
_MACHINES = {  # audit number, calls that are refused, (kill, tkill, tgkill), clone
    "x86_64": (
        0xC000003E,
        (41, 101, 310, 311, 57, 58, 59, 322, 321, 272, 308, 165, 248, 249, 250, 323, 298, 302, 141),
        (62, 200, 234),
        56,
    ),
    "aarch64": (
        0xC00000B7,
        (198, 117, 270, 271, 221, 281, 280, 97, 268, 40, 217, 218, 219, 282, 241, 261, 140),
        (129, 130, 131),
        220,
    ),
}
_CLONE3 = 435
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Argument: a file with JSON of what to run, its limits, and the secret that proves its end."""
    with open(sys.argv[1]) as file:
        told = json.load(file)
    os.unlink(sys.argv[1])
    _limit(told["seconds"], told["memory_bytes"], told["file_bytes"])
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _see_only(os.getcwd())
    _refuse_calls()
    _run(told["programs"], told["descriptor"], told["secret"])


def _run(programs: list[str], descriptor: int, secret: str) -> None:
    """All in one namespace; the secret is written when the last one has ended."""
    sys.argv = ["program"]
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, program in enumerate(programs):
        try:
            exec(compile(program, f"<program {number}>", "exec"), space)  # noqa: S102 - in a process without rights
        except SystemExit as end:
            if number or end.code not in (None, 0) or len(programs) > 1:
                raise
    sys.stdout.flush()
    os.write(descriptor, secret.encode())


def _limit(seconds: int, memory_bytes: int, file_bytes: int) -> None:
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))


def _see_only(folder: str) -> None:
    """Nothing of the file system but the folder, and to read what the interpreter is made of."""
    version = _check(_LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1))
    rights = (1 << (13 + min(2, version - 1))) - 1  # later versions know moving and truncating
    handled = struct.pack("Q", rights)
    rules = _check(_LIBC.syscall(_LANDLOCK_CREATE, handled, len(handled), 0))
    _show(rules, folder, rights)
    places = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, "/usr/lib", "/lib", "/lib64"}
    for place in (*places, "/usr/share/zoneinfo"):
        if os.path.isdir(place):
            _show(rules, place, _READ)
    for place in ("/etc/ld.so.cache", "/dev/urandom", "/dev/null"):
        if os.path.exists(place):
            _show(rules, place, _READ_FILE)
    _check(_LIBC.syscall(_LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)


def _show(rules: int, place: str, rights: int) -> None:
    descriptor = os.open(place, os.O_PATH)
    rule = struct.pack("=Qi", rights, descriptor)
    _check(_LIBC.syscall(_LANDLOCK_ADD, rules, 1, rule, 0))
    os.close(descriptor)


def _refuse_calls() -> None:
    """Sockets, processes, signals to others, and what could reach into them."""
    audit, refused, signals, clone = _MACHINES[platform.machine()]
    no, unknown = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    rules = [(_LOAD, 0, 0, _ARCHITECTURE), (_JUMP_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL)]
    rules += [(_LOAD, 0, 0, _NUMBER), (_JUMP_ABOVE, 0, 1, _X32), (_RETURN, 0, 0, no)]
    for number in (*refused, *_ANY):
        rules += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, no)]
    rules += [(_JUMP_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, unknown)]  # the library then asks for `clone`
    rules += [(_JUMP_EQUAL, 0, 4, clone), (_LOAD, 0, 0, _ARGUMENT), (_JUMP_SET, 0, 1, _CLONE_THREAD)]
    rules += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, no)]
    for number in signals:
        rules += [(_JUMP_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENT)]
        rules += [(_JUMP_EQUAL, 0, 1, os.getpid()), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, no)]
    rules += [(_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(text))
    _check(_LIBC.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(program), 0, 0))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel does not shut it in: {os.strerror(number)}")
    return int(result)


if __name__ == "__main__":
    main()
