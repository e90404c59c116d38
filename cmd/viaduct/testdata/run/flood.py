# Prints how many bytes either end of a TCP connection takes while nothing reads them.
import select, socket, sys


def flood(c):
    c.setblocking(False)
    n, idle = 0, 0
    while idle < 20:
        try:
            n += c.send(b"x" * 10000)
            idle = 0
        except BlockingIOError:
            idle += 1
            select.select([], [c], [], 0.1)
    return n


with socket.socket() as l:
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    l.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    l.bind(("127.0.0.1", int(sys.argv[1])))
    l.listen()
    for connecting in True, False:
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        c.connect(l.getsockname())
        s, _ = l.accept()
        print(flood(c if connecting else s), flush=True)
        c.close()
        s.close()
