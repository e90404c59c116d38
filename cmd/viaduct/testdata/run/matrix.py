# Prints what sockets say in every style that Python has, in a table that is
# compared between runs: PORT to listen at, CERTIFICATE and KEY files. Servers and
# clients are in this process. Addresses are compared, not printed.
import asyncio, errno, os, selectors, socket, socketserver, ssl, struct, sys, threading, time
import http.server, urllib.request

port, cert, key = int(sys.argv[1]), sys.argv[2], sys.argv[3]
here = ("127.0.0.1", port)
data = os.urandom(1 << 20)

def say(name, f):
    try:
        r = f()
    except BaseException as e:
        r = "%s %s" % (type(e).__name__, errno.errorcode.get(getattr(e, "errno", None), ""))
    print("%s: %s" % (name, r), flush=True)

def listener():
    return socket.create_server(here)

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        name = "%s %d\n" % self.client_address
        self.request.sendall(name.encode())
        while True:
            b = self.request.recv(65536)
            if not b: return
            self.request.sendall(b)

class Threading(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

class Forking(socketserver.ForkingTCPServer):
    allow_reuse_address = True

class serving:
    def __init__(self, kind=Threading, handler=Echo): self.s = kind(here, handler)
    def __enter__(self):
        self.t = threading.Thread(target=self.s.serve_forever, args=(0.01,))
        self.t.start()
    def __exit__(self, *a):
        self.s.shutdown(); self.s.server_close(); self.t.join()

def talk(c):
    # The first line is the name that the server saw.
    f = c.makefile("rb")
    name = f.readline().decode().strip()
    mine, peer = "%s %d" % c.getsockname(), c.getpeername()
    t = threading.Thread(target=lambda: (c.sendall(data), c.shutdown(socket.SHUT_WR)))
    t.start()
    got = f.read()
    t.join()
    return "%s, name %s, peer %s" % ("right" if got == data else "WRONG %d" % len(got), "right" if name == mine else "WRONG %s %s" % (name, mine),
        "right" if peer == here else "WRONG")

def blocking():
    with serving(), socket.create_connection(here) as c: return talk(c)

def forking():
    with serving(Forking), socket.create_connection(here) as c: return talk(c)

def timeouts():
    with listener() as l:
        l.settimeout(0.05)
        try: l.accept(); return "accepted"
        except socket.timeout: pass
        with socket.create_connection(here, timeout=30) as c:
            s, a = l.accept()
            with s:
                c.settimeout(0.05)
                try: c.recv(1); return "received"
                except socket.timeout: pass
                c.settimeout(30)
                s.sendall(b"x")
                return "%r %s" % (c.recv(1), a == c.getsockname())

def select_with(kind):
    with serving():
        c = socket.socket()
        c.setblocking(False)
        sel = kind()
        sel.register(c, selectors.EVENT_WRITE)
        r = c.connect_ex(here)
        # What an unconnected socket says is not waited for.
        while True:
            sel.select(30)
            try: c.getpeername(); break
            except OSError as e:
                if e.errno != errno.ENOTCONN: raise
        e = c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        again = c.connect_ex(here)
        sel.close()
        c.setblocking(True)
        with c: return "%s, SO_ERROR %d, again %s, %s" % (errno.errorcode.get(r, r), e, errno.errorcode.get(again, again), talk(c))

def accept_with(kind):
    with listener() as l, kind() as sel:
        l.setblocking(False)
        try: l.accept(); return "accepted"
        except BlockingIOError: pass
        sel.register(l, selectors.EVENT_READ)
        c = socket.create_connection(here)
        n = len(sel.select(30))
        s, a = l.accept()
        with c, s: return "%d ready, %s, blocking %s, inheritable %s" % (n, a == c.getsockname() == s.getpeername(), s.getblocking(), s.get_inheritable())

def reset():
    with listener() as l, socket.create_connection(here) as c:
        s, _ = l.accept()
        s.recv  # nothing is waiting
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
        c.settimeout(30)
        return "ended %r" % c.recv(1)

def half_close():
    with listener() as l, socket.create_connection(here) as c:
        s, _ = l.accept()
        with s:
            c.shutdown(socket.SHUT_WR)
            a = s.recv(1)
            s.sendall(b"late")
            s.shutdown(socket.SHUT_WR)
            return "%r %r %r" % (a, c.recv(4, socket.MSG_WAITALL), c.recv(1))

def vectors():
    with listener() as l, socket.create_connection(here) as c:
        s, _ = l.accept()
        with s:
            n = c.sendmsg([b"ab", b"cd", b"ef"])
            a, b = bytearray(3), bytearray(3)
            while len(s.recv(6, socket.MSG_PEEK)) < 6: time.sleep(0.001)
            m = s.recvmsg_into([a, b])[0]
            return "%d %d %s" % (n, m, bytes(a + b))

async def aio():
    async def serve(r, w):
        w.write(("%s %d\n" % w.get_extra_info("peername")).encode())
        while b := await r.read(65536):
            w.write(b)
            await w.drain()
        w.close()
    async def one():
        r, w = await asyncio.open_connection(*here)
        name = (await r.readline()).decode().strip()
        mine = "%s %d" % w.get_extra_info("sockname")
        async def send():
            w.write(data)
            await w.drain()
            w.write_eof()
        t = asyncio.create_task(send())
        got = await r.read()
        await t
        w.close()
        return got == data and name == mine and w.get_extra_info("peername") == here
    async with await asyncio.start_server(serve, *here):
        return (await asyncio.gather(*[one() for _ in range(8)])).count(True)

async def aio_sock():
    loop = asyncio.get_running_loop()
    with listener() as l, socket.socket() as c:
        l.setblocking(False); c.setblocking(False)
        a = asyncio.create_task(loop.sock_accept(l))
        await loop.sock_connect(c, here)
        s, peer = await a
        with s:
            await loop.sock_sendall(c, b"hello")
            return (await loop.sock_recv(s, 5)), peer == c.getsockname()

async def aio_timeout():
    with listener() as l:
        r, w = await asyncio.open_connection(*here)
        try: await asyncio.wait_for(r.read(1), 0.05); return "received"
        except asyncio.TimeoutError: return "timeout"
        finally: w.close()

server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server_tls.load_cert_chain(cert, key)
client_tls = ssl.create_default_context(cafile=cert)

def tls():
    with listener() as l:
        def serve():
            s, _ = l.accept()
            with server_tls.wrap_socket(s, server_side=True) as s:
                left = len(data)
                while left:
                    b = s.recv(65536)
                    left -= len(b)
                    s.sendall(b)
        t = threading.Thread(target=serve)
        t.start()
        with client_tls.wrap_socket(socket.create_connection(here), server_hostname="localhost") as c:
            got = bytearray() # by one thread: two in the same SSLSocket may wait for each other for ever
            while len(got) < len(data):
                part = data[len(got):len(got) + 65536]
                c.sendall(part)
                end = len(got) + len(part)
                while len(got) < end: got += c.recv(end - len(got))
            t.join()
            return "%s, %s" % (got == data, c.version())

async def aio_tls():
    async def serve(r, w):
        w.write(await r.readexactly(len(data)))
        await w.drain()
        w.close()
    async with await asyncio.start_server(serve, *here, ssl=server_tls):
        r, w = await asyncio.open_connection(*here, ssl=client_tls, server_hostname="localhost")
        w.write(data)
        got = await r.readexactly(len(data))
        w.close()
        return got == data

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Client", "%s %d" % self.client_address)
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *a): pass

def web():
    with serving(http.server.ThreadingHTTPServer, Page):
        with urllib.request.urlopen("http://127.0.0.1:%d/" % port) as r:
            return "%s %s" % (r.status, r.read() == data)

def refused():
    with socket.socket() as c: return errno.errorcode[c.connect_ex(("127.0.0.1", int(sys.argv[4])))]

def connect_timeout():
    with socket.socket() as c:
        c.settimeout(0.1)
        try: c.connect(("127.0.0.1", int(sys.argv[5])))
        except socket.timeout: return "timeout"

for f in (blocking, forking, timeouts, reset, half_close, vectors, tls, web, refused, connect_timeout): say(f.__name__, f)
for kind in (selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector):
    say("connect by " + kind.__name__, lambda: select_with(kind))
    say("accept by " + kind.__name__, lambda: accept_with(kind))
for f in (aio, aio_sock, aio_timeout, aio_tls): say(f.__name__, lambda: asyncio.run(f()))
