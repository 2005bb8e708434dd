"""Programs that exhaust resources or do not end. Name -> program and expected text of the verdict."""

FLOODS = {
    "spins": ("while True: pass", "took longer than 1 s"),
    "ignores signals": (
        "import signal, time\nfor n in set(signal.Signals) - {9, 19}: signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)",
        "took longer than 1 s",
    ),
    "closes its output and continues": (
        "import os, time; os.close(1); os.close(2); time.sleep(60)",
        "took longer than 1 s",
    ),
    "waits for more input": ("import sys; sys.stdin.read(); input()", "EOFError"),
    "never ends at exit": ("import atexit, time; atexit.register(time.sleep, 60); print(42)", "took longer than 1 s"),
    "leaves a thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start(); print(42)",
        "took longer than 1 s",
    ),
    "matches a pattern forever": ("import re; re.match('(a+)+b', 'a' * 64)", "took longer than 1 s"),
    "computes a tower": ("print(9 ** 9 ** 9)", "took longer than 1 s"),
    "writes without end": ("while True: print('x' * 100000)", "wrote more than 4096 KiB"),
    "complains without end": ("import sys\nwhile True: sys.stderr.write('x' * 100000)", "took longer than 1 s"),
    "fills the memory bit by bit": ("x = []\nwhile True: x.append(bytearray(10 ** 7))", "MemoryError"),
    "maps memory": ("import mmap; m = [mmap.mmap(-1, 1 << 28) for _ in range(64)]", "Cannot allocate memory"),
    "starts threads without end": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "took longer than 1 s",  # after the first error, the program waits for its threads
    ),
    "opens files without end": ("f = []\nwhile True: f.append(open('/dev/null'))", "Too many open files"),
    "fills pipes": ("import os\nfor _ in range(99): os.pipe()", "Too many open files"),
    "forks without end": ("import os\nwhile True: os.fork()", "Operation not permitted"),
    "overflows the stack": (
        "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(): return max([0], key=lambda _: f())\nf()",
        "status -11",
    ),
    "aborts": ("import os; os.abort()", "status -6"),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", "status -9"),
    "kills everything": ("import os; os.kill(-1, 9)", "ProcessLookupError"),
    "kills the harness": ("import os; os.kill(os.getppid(), 9); print(41)", "expected '42', got '41'"),
    "stops itself": ("import os; os.kill(os.getpid(), 19)", "took longer than 1 s"),
    "is deeply nested": ("x = " + "(" * 100_000 + ")" * 100_000, "does not run"),
    "holds a null byte": ("print(1)\0", "does not run"),
}
