# Urgent data in both directions of a TCP connection: prints a table of what the socket says.
import array, fcntl, os, select, signal, socket, sys, time

PATIENCE = 30
SIOCATMARK = 0x8905
signals = []
signal.signal(signal.SIGURG, lambda *_: signals.append(1))


def say(name, *values):
    print(f"{name}: {' '.join(str(v) for v in values)}", flush=True)


def errno_of(f):
    try:
        return f()
    except OSError as e:
        return e.strerror


def at_mark(s):
    b = array.array("i", [0])
    fcntl.ioctl(s, SIOCATMARK, b)
    return b[0]


def urgent(s, wanted=True):
    p = select.poll()
    p.register(s, select.POLLPRI)
    polled = p.poll(PATIENCE * 1000 if wanted else 200)
    e = select.epoll()
    e.register(s, select.EPOLLPRI)
    epolled = e.poll(0)
    e.close()
    return [ev & select.POLLPRI for _, ev in polled], [ev & select.EPOLLPRI for _, ev in epolled], len(select.select([], [], [s], 0)[2])


def read(s, n):
    """n bytes, and how the reads ended at the mark"""
    b, marks = b"", []
    while len(b) < n:
        got = s.recv(n - len(b))
        if not got:
            break
        b += got
        if at_mark(s):
            marks.append(len(b))
    return b, marks


def signalled(n):
    until = time.time() + PATIENCE
    while len(signals) < n and time.time() < until:
        time.sleep(0.01)
    return len(signals) >= n


def exchange(name, a, b):
    """from a to b, which has an owner for SIGURG"""
    signals.clear()
    say(name, "nothing urgent", urgent(b, False), errno_of(lambda: b.recv(1, socket.MSG_OOB)))
    a.sendall(b"abc")
    a.send(b"XY", socket.MSG_OOB)
    a.sendall(b"def")
    say(name, "comes", urgent(b), signalled(1), at_mark(b))
    say(name, "ahead of it", read(b, 4), at_mark(b))
    say(name, "the byte", b.recv(1, socket.MSG_OOB), errno_of(lambda: b.recv(1, socket.MSG_OOB)))
    say(name, "behind it", read(b, 3), urgent(b, False))
    b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    a.sendall(b"abc")
    a.send(b"Y", socket.MSG_OOB)
    a.sendall(b"def")
    say(name, "in line comes", urgent(b), signalled(2))
    say(name, "in line", read(b, 3), errno_of(lambda: b.recv(1, socket.MSG_OOB)), read(b, 4))
    b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 0)
    a.sendall(b"x" * 20000)
    a.send(b"Z", socket.MSG_OOB)
    say(name, "behind 20000 bytes", urgent(b), b.recv(1, socket.MSG_OOB), read(b, 20000)[0] == b"x" * 20000)
    right = 0
    for i in range(100):
        a.send(bytes([i]), socket.MSG_OOB)
        urgent(b)
        right += b.recv(1, socket.MSG_OOB) == bytes([i])
        b.send(b"+")
        a.recv(1)
    say(name, "one after the other", right)
    a.send(b"!", socket.MSG_OOB)
    a.shutdown(socket.SHUT_WR)
    say(name, "ahead of the end", urgent(b), b.recv(1, socket.MSG_OOB), b.recv(1))


with socket.socket() as l:
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind(("127.0.0.1", int(sys.argv[1])))
    l.listen()
    for name in "to the server", "to the client":
        c = socket.socket()
        fcntl.fcntl(c, fcntl.F_SETOWN, os.getpid() if name == "to the client" else 0)
        c.connect(l.getsockname())
        s, _ = l.accept()
        if name == "to the server":
            fcntl.fcntl(s, fcntl.F_SETOWN, os.getpid())
            exchange(name, c, s)
        else:
            exchange(name, s, c)
        c.close()
        s.close()
