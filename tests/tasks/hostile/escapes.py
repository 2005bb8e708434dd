"""Programs that try to escape from the sandbox. Each attempt must raise; the test checks the exception.

`{secret!r}` is a user's file with a secret, `{port}` a port on which the test listens, and `{pid}` the test's
process.
"""

SYSCALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
"""
NUMBERED = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
assert platform.machine() == "x86_64"
def attempt(number, *arguments):
    if libc.syscall(number, *arguments) == -1:
        raise OSError(ctypes.get_errno(), str(number))
"""

PAIRS = """
import errno, socket
try:
    socket.socketpair(socket.AF_INET)
except OSError as error:
    if error.errno == errno.EPERM: raise
"""

NETWORK = {
    "connects to this machine": "import socket; socket.create_connection(('127.0.0.1', {port}), 2)",
    "connects over IPv6": "import socket; socket.socket(socket.AF_INET6).connect(('::1', {port}))",
    "sends a datagram": "import socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    "queries a name server": "import socket; socket.getaddrinfo('example.org', 80)[0][4][0]",
    "opens a local socket": "import socket; socket.socket(socket.AF_UNIX).connect('/run/systemd/notify')",
    "opens a raw socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "talks to the kernel by netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "pairs sockets of another family": PAIRS,
    "listens": "import socket; s = socket.socket(); s.bind(('', 0)); s.listen()",
}

FILES = {
    "reads the user's file": "print(open({secret!r}).read())",
    "lists the user's directory": "import os; os.listdir(os.path.dirname({secret!r}))",
    "reads the users' names": "open('/etc/passwd').read()",
    "lists processes": "import os; os.listdir('/proc')",
    "reads its own memory": "open('/proc/self/mem', 'rb').read(1)",
    "lists its open files": "import os; os.listdir('/proc/self/fd')",
    "reads the kernel's tree": "import os; os.listdir('/sys')",
    "writes to /tmp": "open('/tmp/x', 'w').write('x')",
    "writes to /dev/shm": "open('/dev/shm/x', 'w').write('x')",
    "writes to /usr": "open('/usr/x', 'w').write('x')",
    "makes a temporary file": "import tempfile; tempfile.TemporaryFile()",
    "makes a device": "import os, stat; os.mknod('/tmp/sda', stat.S_IFBLK | 0o600, os.makedev(8, 0))",
    "changes the harness": "import scalerl.training.rewards.sandbox.guest.plain as p; open(p.__file__, 'a').write('#')",
    "loads the rest of the project": "import scalerl.training.rewards.scoring",
    "loads numpy from outside": "import sys; sys.path += ['/usr/lib/python3/dist-packages']; import torch",
    "opens the terminal": "open('/dev/tty', 'w')",
    "opens the disk": "open('/dev/sda', 'rb')",
}

PROCESSES = {
    "forks": "import os; os.fork() or os._exit(0)",
    "starts a shell": "import os; assert os.system('true') == 0",
    "starts a program": "import subprocess; subprocess.run(['/usr/bin/true'])",
    "becomes another program": "import os; os.execv('/bin/sh', ['sh', '-c', 'echo ESCAPED'])",
    "starts a pool": "import multiprocessing as m; m.get_context('fork').Pool(2).map(abs, [1])",
    "kills the test's process": "import os; os.kill({pid}, 9)",
    "becomes root": "import os; os.setuid(0)",
    "raises its limits": "import resource as r; r.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))",
    "raises its priority": "import os; os.nice(-5)",
    "dumps core": "import resource as r; r.setrlimit(r.RLIMIT_CORE, (1 << 20, 1 << 20))",
}

KERNEL = {
    "unshares a user namespace": SYSCALL + "attempt('unshare', 0x10000000)",
    "mounts": SYSCALL + "attempt('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
    "changes the root": SYSCALL + "attempt('chroot', b'/tmp')",
    "traces a process": SYSCALL + "attempt('ptrace', 16, 1, None, None)",
    "sets the host's name": SYSCALL + "attempt('sethostname', b'x', 1)",
    "sets the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "makes shared memory": SYSCALL + "attempt('shmget', 0, 1 << 30, 0o1600)",
    "makes a file in memory": "import os; os.memfd_create('x')",
    "clones a process": NUMBERED + "attempt(56, 17, 0, 0, 0, 0)",
    "loads a kernel program": NUMBERED + "attempt(321, 0, 0, 0)",
    "opens a kernel queue": NUMBERED + "attempt(425, 1, 0)",
    "handles page faults": NUMBERED + "attempt(323, 0)",
    "counts events": NUMBERED + "attempt(298, 0, 0, -1, -1, 0)",
    "keeps keys": NUMBERED + "attempt(250, 0, -3, 1)",
    "opens files by handle": NUMBERED + "attempt(304, 0, 0, 0)",
    "writes another's memory": NUMBERED + "attempt(311, 1, 0, 0, 0, 0, 0)",
    "loads a module": NUMBERED + "attempt(313, 0, 0, 0)",
}

ESCAPES = {**NETWORK, **FILES, **PROCESSES, **KERNEL}
