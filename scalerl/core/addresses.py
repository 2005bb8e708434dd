"""Network addresses: whether one is of this machine only, whose a connection is, free ports, room for connections."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def comes_from_this_user(client: Sequence[object], server: Sequence[object]) -> bool:
    """Return whether a process of this user opened a TCP connection; False if it comes from another machine.

    Args:
        client: Address and port of the end that connected.
        server: Address and port of the end that accepted.
    """
    owners = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):  # no IPv6 here
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if _end(fields[1]) == _plain(client) and _end(fields[2]) == _plain(server):
                    owners.add(int(fields[7]))
    return owners == {os.getuid()}


def _plain(end: Sequence[object]) -> tuple[str, int]:
    """Return an end of a connection with an IPv4 address where IPv6 only wraps one."""
    address = ipaddress.ip_address(str(end[0]).partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address), int(str(end[1]))


def _end(text: str) -> tuple[str, int]:
    """Parse an end of a connection in /proc/net/tcp: words of 4 bytes in the order of the processor, then the port.

    Example: _end("0100007F:2116") == ("127.0.0.1", 8470)
    """
    words, _, port = text.partition(":")
    starts = range(0, len(words), 8)
    packed = b"".join(int(words[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in starts)
    return _plain((ipaddress.ip_address(packed), int(port, 16)))


@contextmanager
def reserved_port(host: str = "") -> Iterator[int]:
    """Keep a free TCP port from other programs, until a server that is told the port listens on it.

    Linux lets a second socket bind a port if both set SO_REUSEADDR and none listens. Servers set it (uvicorn, vLLM and
    torch's TCPStore do), and the kernel gives a bound port to nobody who asks for any.

    Args:
        host: Address of this machine; empty: all of them.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, 0))
        yield int(holder.getsockname()[1])


MOST_CONNECTIONS = 4096
"""Most open connections, if the limit of file descriptors allows as many."""


def most_connections() -> int:
    """Return half of the file descriptors that this process may still open, at most `MOST_CONNECTIONS`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = MOST_CONNECTIONS * 2 if soft == resource.RLIM_INFINITY else soft - len(os.listdir("/dev/fd"))
    return max(1, min(MOST_CONNECTIONS, free // 2))
