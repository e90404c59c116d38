package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/addr"
	"viaduct/cmd/viaduct/internal/conform"
	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
	"viaduct/internal/wire/portmapwire"
)

type conformPlan struct {
	listen, dangerous, list bool
	exec                    string
	only                    []string
	junit, html             string
	service                 string
	mtu                     int
	patience, wait, pause   time.Duration
}

func conformCommand(e *shell.Env) *cobra.Command {
	var p conformPlan
	c := &cobra.Command{
		Use:   "conform URL | conform --listen URL [--exec COMMAND] | conform --list",
		Short: "test a peer against the requirements of its protocol",
		Long: `Test the peer that listens at URL (iwarp, vitcp, sdp, fcvi,
portmap://HOST[:PORT] and roce://HOST[:PORT]), or with --listen the peers that
dial URL. Each case is one conversation. The most cases can be observed with a
server that echoes, or a client that waits for an echo. A case that fails prints
the id of the broken requirement in docs/requirements.

With --listen, the peer must dial once for each case. --exec COMMAND runs a
command for each case, in which {url} is replaced by the address, {address}
by its HOST:PORT, and {host} and {port} by the parts. For RoCEv2, queue pairs
are exchanged as ibv_rc_pingpong does. The exit status is 1 if a requirement is
broken.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if p.patience < 100*time.Millisecond {
				return shell.Usagef("--patience %v is shorter than 100ms", p.patience)
			}
			if p.wait < 0 || p.pause < 0 {
				return shell.Usagef("--wait and --pause must not be negative")
			}
			if p.exec != "" && p.wait > 0 {
				return shell.Usagef("--exec starts the peer, and there is nothing to --wait for")
			}
			if !slices.Contains(pathMTUs, p.mtu) {
				return shell.Usagef("--mtu %d: the MTU of a path is one of 256, 512, 1024, 2048 and 4096", p.mtu)
			}
			if len(args) == 0 && !p.list {
				return shell.Usagef("the URL of the peer is missing")
			}
			if p.list {
				return conformList(e, args)
			}
			if p.exec != "" && !p.listen {
				return shell.Usagef("--exec runs what dials, and needs --listen")
			}
			u, err := conformURL(args[0])
			if err != nil {
				return err
			}
			if err := noPath(u); err != nil {
				return err
			}
			if p.pause > 0 && (p.listen || u.Scheme != "iwarp") {
				return shell.Usagef("--pause comes after the Reply of an iwarp peer that listens")
			}
			return conformRun(cmd.Context(), e, u, p)
		},
	}
	f := c.Flags()
	f.BoolVar(&p.listen, "listen", false, "listen at URL and test the peers that dial it")
	f.StringVar(&p.exec, "exec", "",
		"with --listen, run `COMMAND` for each case; {url}, {address}, {host} and {port} in it are the address")
	f.StringArrayVar(&p.only, "only", nil, "run only the case `ID`, or the cases of requirement ID; may be repeated")
	f.BoolVar(&p.dangerous, "dangerous", false, "also run cases that are known to crash some peers")
	f.BoolVar(&p.list, "list", false, "list the cases and run none")
	f.StringVar(&p.junit, "junit", "", "write the report to `FILE` as JUnit XML")
	f.StringVar(&p.html, "html", "", "write the report to `FILE` as HTML")
	f.StringVar(&p.service, "service", "127.0.0.1:80", "portmap: the `ADDRESS` to ask for")
	f.IntVar(&p.mtu, "mtu", 1024, "roce: the path `MTU` that the peer's queue pair is made for")
	f.DurationVar(&p.wait, "wait", 0, "wait up to `TIME` for a peer that starts later")
	f.DurationVar(&p.pause, "pause", 0,
		"iwarp: wait `TIME` after a Reply, for peers that do not read bytes that arrive at once")
	f.DurationVar(&p.patience, "patience", 3*time.Second, "`TIME` that the peer may take for an answer")
	return c
}

// conformSchemes are the schemes of peers with cases.
var conformSchemes = []string{"iwarp", "vitcp", "sdp", "fcvi", "portmap", "roce"}

// pathMTUs are the packet payloads the ends of a queue pair can agree on.
var pathMTUs = []int{256, 512, 1024, 2048, 4096}

// conformOnly are the schemes no other command has, with their ports: a Port Mapper, and the TCP
// port where ibv_rc_pingpong exchanges queue pairs.
var conformOnly = map[string]string{"portmap": "3935", "roce": "18515"}

// conformURL parses the address of a peer, also with the schemes of conformOnly.
func conformURL(s string) (*addr.URL, error) {
	scheme, rest, _ := strings.Cut(s, "://")
	if port, ok := conformOnly[scheme]; ok {
		u, err := addr.Parse("tcp://" + rest)
		if err != nil { // the address has no port
			u, err = addr.Parse("tcp://" + rest + ":" + port)
		}
		if err != nil {
			return nil, shell.Usage(err)
		}
		u.Scheme = scheme
		return u, nil
	}
	if u, _, err := parse(s); err == nil ||
		slices.ContainsFunc(conformSchemes, func(x string) bool { return strings.HasPrefix(s, x+"://") }) {
		return u, err
	}
	return nil, shell.Usagef("address %q: it must start with %s", s, strings.Join(conformSchemes, "://, ")+"://")
}

func conformList(e *shell.Env, args []string) error {
	schemes := conformSchemes
	if len(args) == 1 {
		scheme, _, _ := strings.Cut(args[0], ":")
		if !slices.Contains(schemes, scheme) {
			return shell.Usagef("there are no cases for %q, but for %s", scheme, strings.Join(schemes, ", "))
		}
		schemes = []string{scheme}
	}
	rows := [][]string{{"CASE", "PEER", "REQUIREMENTS", "WHAT MUST HOLD"}}
	var all []conform.Case
	for _, s := range schemes {
		for _, role := range []conform.Role{conform.Passive, conform.Active} {
			for _, c := range conform.Cases(s, role) {
				all = append(all, c)
				rows = append(rows, []string{c.Name, string(c.Role), strings.Join(c.Rows, " "), c.Text})
			}
		}
	}
	if e.JSON {
		return e.PrintJSON(struct {
			Cases []conform.Case `json:"cases"`
		}{all})
	}
	e.Printf("%s", shell.Table(rows))
	return nil
}

// conformKeepAlive makes the kernel probe whether the peer's end still exists, because a reset is
// sent only once and may be lost.
var conformKeepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 20}

func conformRun(ctx context.Context, e *shell.Env, u *addr.URL, p conformPlan) error {
	role := conform.Passive
	if p.listen {
		role = conform.Active
	}
	cases := conform.Cases(u.Scheme, role)
	if len(cases) == 0 {
		return shell.Usagef("there are no cases for %s with a peer that is %s", u.Scheme, role)
	}
	g := conform.Target{Disc: u.Disc, Service: p.service, Patience: p.patience,
		Quiet: min(p.patience, max(p.patience/10, 100*time.Millisecond)), Pause: p.pause,
		Dangerous: p.dangerous, Only: p.only,
		MTU: p.mtu, Datagrams: func(own netip.Addr) (net.PacketConn, error) { return listenRoCE(e, own) }}
	var wg sync.WaitGroup
	defer wg.Wait()
	var first net.Conn // proves that there is a peer; the first case uses this connection
	defer func() {
		if first != nil {
			first.Close()
		}
	}()
	if p.listen {
		if u.Scheme == "portmap" {
			pc, err := net.ListenPacket("udp", u.HostPort())
			if err != nil {
				return err
			}
			defer pc.Close()
			u = u.WithPort(pc.LocalAddr())
			over := map[string]bool{} // clients of earlier cases
			g.Connect = func(ctx context.Context) (net.Conn, error) { return conformDatagram(ctx, e, &wg, pc, u, p.exec, over) }
		} else {
			lc := net.ListenConfig{KeepAliveConfig: conformKeepAlive}
			l, err := lc.Listen(ctx, "tcp", u.HostPort())
			if err != nil {
				return err
			}
			defer l.Close()
			u = u.WithPort(l.Addr())
			g.Connect = func(ctx context.Context) (net.Conn, error) { return conformAccept(ctx, e, &wg, l, u, p.exec) }
			g.Again = func(ctx context.Context) (net.Conn, error) { return conformAccept(ctx, e, &wg, l, u, "") }
		}
		e.Listening(u)
		if p.wait > 0 {
			wctx, cancel := context.WithTimeout(ctx, p.wait)
			c, err := g.Connect(wctx)
			cancel()
			if err != nil {
				return cmp.Or(context.Cause(ctx), fmt.Errorf("wait %v for a peer at %s: %w", p.wait, u, err))
			}
			first = c
		}
	} else {
		network := "tcp"
		if u.Scheme == "portmap" {
			network = "udp"
		}
		g.Connect = func(ctx context.Context) (net.Conn, error) {
			d := net.Dialer{KeepAliveConfig: conformKeepAlive, LocalAddr: conformLocal(u)}
			c, err := d.DialContext(ctx, network, u.HostPort())
			if err != nil {
				return nil, err
			}
			return e.Wrap(c, true), nil
		}
		if network == "tcp" {
			c, err := transport.Await(ctx, p.wait, func() (net.Conn, error) { return g.Connect(ctx) })
			if err != nil {
				return fmt.Errorf("connect to %s: %w", u, err)
			}
			first = c
		} else if p.wait > 0 {
			if err := conformMapper(ctx, u, p.wait); err != nil {
				return err
			}
		}
	}
	connect := g.Connect
	g.Connect = func(ctx context.Context) (c net.Conn, err error) {
		if c, first = first, nil; c != nil {
			return c, nil
		}
		return connect(ctx)
	}
	report := conform.Report{Peer: u.String(), Results: []conform.Result{}}
	paint := newPaint(e)
	conform.Run(ctx, g, cases, func(r conform.Result) {
		report.Results = append(report.Results, r)
		if e.JSON {
			return
		}
		line := fmt.Sprintf("%-15s %-28s %s", r.Verdict, r.Name, r.Text)
		switch {
		case r.Verdict == conform.Fail:
			line = paint.red(fmt.Sprintf("%-15s %-28s %s: %s", "FAIL", r.Name, r.Row, r.Detail))
		case r.Detail != "":
			line = paint.dim(line + " (" + r.Detail + ")")
		}
		e.Printf("%s\n", line)
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(report.Results) == 0 {
		return shell.Usagef("--only %s names no case (see --list)", strings.Join(p.only, ", "))
	}
	err := errors.Join(writeReport(p.junit, report.JUnit), writeReport(p.html, report.HTML))
	if e.JSON {
		err = errors.Join(err, e.PrintJSON(report))
	} else {
		e.Printf("%s\n", report.Summary())
	}
	if n := report.Count(conform.Fail); n > 0 && err == nil {
		err = shell.Hint(fmt.Errorf("%d of %d cases failed", n, len(report.Results)),
			"docs/requirements has the requirements by their ids")
	}
	return err
}

// conformMapper sends requests until a Port Mapper answers, for at most wait.
func conformMapper(ctx context.Context, u *addr.URL, wait time.Duration) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", u.HostPort())
	if err != nil {
		return err
	}
	defer c.Close()
	self := c.LocalAddr().(*net.UDPAddr).AddrPort()
	self = netip.AddrPortFrom(self.Addr().Unmap(), self.Port())
	q := portmapwire.Message{Type: portmapwire.Request, AssocHandle: rand.Uint64(), Cp: self, Ap: self}.Append(nil)
	pause := 100 * time.Millisecond
	for end := time.Now().Add(wait); time.Now().Before(end); {
		if _, err := c.Write(q); err == nil {
			c.SetReadDeadline(time.Now().Add(pause))
			if _, err = c.Read(make([]byte, 2048)); err == nil {
				return nil
			}
			if errors.Is(err, os.ErrDeadlineExceeded) { // the read has waited for the pause already
				continue
			}
		}
		select { // the read failed at once, because the kernel reports that nothing listens
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return cmp.Or(context.Cause(ctx), fmt.Errorf("no Port Mapper answers at %s within %v", u, wait))
}

func writeReport(file string, write func(io.Writer) error) error {
	if file == "" {
		return nil
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// dropWaiting closes the connections that the previous case left in the queue of l, because they do
// not belong to the next case. A connection to l of our own marks the end of the queue: a deadline
// can't, because it may pass before the queue was looked at.
func dropWaiting(ctx context.Context, l net.Listener) error {
	var d net.Dialer
	end, err := d.DialContext(ctx, l.Addr().Network(), l.Addr().String())
	if err != nil {
		return err
	}
	defer end.Close()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		c.Close()
		if c.RemoteAddr().String() == end.LocalAddr().String() {
			return nil
		}
	}
}

// conformAccept accepts a connection of the peer. A non-empty command is started first, and dials
// as the peer. Close of the connection also ends the command.
func conformAccept(ctx context.Context, e *shell.Env, wg *sync.WaitGroup, l net.Listener, u *addr.URL, command string) (net.Conn, error) {
	tl := l.(*net.TCPListener)
	over := func() {}
	if command != "" {
		if err := dropWaiting(ctx, l); err != nil {
			return nil, err
		}
		var err error
		if over, err = conformExec(ctx, wg, u, command); err != nil {
			return nil, err
		}
	}
	release := endsWith(ctx, tl.SetDeadline)
	c, err := l.Accept()
	release()
	if err != nil {
		over()
		if ctx.Err() != nil {
			return nil, errors.New("the peer does not dial in time")
		}
		return nil, err
	}
	return &peerConn{Conn: e.Wrap(c, false), over: over}, nil
}

// endsWith makes calls fail at the end of ctx, until release is called: set sets their deadline.
// release waits for a deadline that is being set, and removes it.
func endsWith(ctx context.Context, set func(time.Time) error) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		set(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-done
		}
		set(time.Time{})
	}
}

// conformExec starts the command that dials u in a case. over kills the command and waits for its
// end.
func conformExec(ctx context.Context, wg *sync.WaitGroup, u *addr.URL, command string) (over func(), err error) {
	cctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the program lives as long as the connection
	command = strings.NewReplacer("{url}", u.String(), "{address}", u.HostPort(), "{host}", u.Host, "{port}", strconv.Itoa(int(u.Port))).Replace(command)
	c := exec.CommandContext(cctx, "sh", "-c", command)
	c.WaitDelay = time.Second
	if err := c.Start(); err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan struct{})
	wg.Go(func() { defer close(ended); c.Wait() })
	return func() { cancel(); <-ended }, nil
}

// conformDatagram waits for a datagram, and returns a connection to the sender. The first Read
// returns that datagram. A non-empty command is started first, as the peer. Datagrams of the peers
// in before are then dropped, because they may still arrive. The new peer is added to before.
func conformDatagram(ctx context.Context, e *shell.Env, wg *sync.WaitGroup, pc net.PacketConn, u *addr.URL, command string, before map[string]bool) (net.Conn, error) {
	over := func() {}
	b := make([]byte, 2048)
	if command != "" {
		var err error
		if over, err = conformExec(ctx, wg, u, command); err != nil {
			return nil, err
		}
	}
	release := endsWith(ctx, pc.SetReadDeadline)
	n, from, err := pc.ReadFrom(b)
	for err == nil && command != "" && before[from.String()] {
		n, from, err = pc.ReadFrom(b)
	}
	release()
	if err == nil {
		before[from.String()] = true
	}
	if err != nil {
		over()
		if ctx.Err() != nil {
			return nil, errors.New("the peer does not ask in time")
		}
		return nil, err
	}
	return &peerConn{Conn: e.Wrap(&peerDatagrams{PacketConn: pc, from: from, first: b[:n]}, false), over: over}, nil
}

// A peerDatagrams is the connection of a shared socket to a single peer. It drops the datagrams of
// other peers.
type peerDatagrams struct {
	net.PacketConn
	from  net.Addr
	first []byte // the datagram that identified the peer; nil once Read has returned it
}

func (d *peerDatagrams) RemoteAddr() net.Addr { return d.from }

func (d *peerDatagrams) Write(b []byte) (int, error) { return d.WriteTo(b, d.from) }

func (d *peerDatagrams) Read(b []byte) (int, error) {
	if d.first != nil {
		n := copy(b, d.first)
		d.first = nil
		return n, nil
	}
	for {
		n, from, err := d.ReadFrom(b)
		if err != nil || from.String() == d.from.String() {
			return n, err
		}
	}
}

// Close clears the deadlines. It leaves the socket open for later cases.
func (d *peerDatagrams) Close() error { return d.SetDeadline(time.Time{}) }

// A peerConn is a connection whose Close also ends the program of the peer.
type peerConn struct {
	net.Conn
	over func()
}

// CloseWrite ends the sending direction. It returns errors.ErrUnsupported if the connection has no
// half-close.
func (c *peerConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (c *peerConn) Close() error {
	defer c.over()
	return c.Conn.Close()
}
