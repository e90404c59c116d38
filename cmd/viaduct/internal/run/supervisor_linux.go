//go:build linux && (amd64 || arm64)

package run

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/internal/notify"
	"viaduct/portmap"
)

// A supervisor serves the calls of a program and carries the connections.
type supervisor struct {
	e       *shell.Env
	o       *Options
	rules   rules
	carrier *carrier
	explain *explainer
	service Service // serves the calls instead of this supervisor; usually nil
	front   *net.UnixConn
	netns   uint64
	lanes   [2]*lane // for IPv4 and IPv6; nil if the host does not have the family

	ls     listeners
	names  nameTable
	spare  spare
	pairs  pairs
	short  shortNames
	stats  stats
	relays sync.WaitGroup // connects, accepts, dials and relays; the supervisor waits for them at its end

	alive context.Context // done when no process of the program is left
	die   context.CancelFunc

	mu    sync.Mutex
	dials map[uint64]*dial // guarded by mu; by socket cookie

	restarting sync.Mutex    // held while restart waits for the front
	restarted  chan struct{} // one slot; the front has begun to trace

	sigs  signalCounts
	stops stops
}

// supervise is the main function of the supervisor's process.
func supervise(e *shell.Env, o *Options, r rules, control string) error {
	fail := func(code int, err error) error { return &shell.Exit{Code: code, Err: err} }
	var fd int
	var ignored signalSet
	if _, err := fmt.Sscanf(control, "%d,%x", &fd, &ignored); err != nil {
		return fail(ExitRun, err)
	}
	var err error
	s := &supervisor{e: e, o: o, rules: r, netns: netnsCookie(), dials: map[uint64]*dial{},
		restarted: make(chan struct{}, 1)}
	s.stops.frontPid = os.Getppid()
	s.stops.front, err = unix.PidfdOpen(s.stops.frontPid, 0)
	if err != nil {
		return fail(ExitRun, err)
	}
	unix.CloseOnExec(fd)
	conn, err := unixConn(fd)
	if err != nil {
		return fail(ExitRun, err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fail(ExitRun, err)
	}
	path, code, err := findProgram(o.Program)
	if err != nil {
		return fail(code, err)
	}
	s.front = conn
	s.alive, s.die = context.WithCancel(context.Background())
	defer s.die()
	s.ls = listeners{services: map[place]*service{}, sockets: map[uint64]*carriedListener{},
		arrivals: map[netip.AddrPort]*arrival{}}
	if err := s.open(); err != nil {
		return fail(ExitRun, err)
	}
	if s.service != nil {
		defer s.service.Close()
	}
	outlive(ignored)
	s.sigs.count()
	cmd := &notify.Command{Path: path, Args: o.Args, Rules: s.filter(), Ignored: uint64(ignored),
		Before: s.giveListener}
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getppid()) {
		cmd.PidEnv = []string{"LISTEN_PID"}
	}
	child, err := notify.Start(cmd)
	if errors.Is(err, notify.ErrNested) && !o.Require {
		// Only the outer supervisor sees the program's calls, so that the outer rules apply.
		fmt.Fprintln(os.Stderr, "viaduct run: inside another viaduct run, whose rules hold; these do not")
		return fail(ExitNotExec, syscall.Exec(path, o.Args, os.Environ()))
	}
	if err != nil {
		return startFailed(o.Program, err)
	}
	s.sendFront(sayPid, child.Pid)
	closeInherited(conn)
	s.stops.program = child.Pid
	s.stops.stopOrder = func(sig int) { s.sendFront(sayStopped, sig) }
	s.stops.resume = func() { s.sigs.kill(child.Pid, syscall.SIGCONT) }
	go s.readFront(child.Pid)
	ended := make(chan struct{})
	go s.reap(child.Pid, ended)
	err = s.serve(child.Listener)
	<-ended
	s.die()
	s.relays.Wait()
	return fail(0, err)
}

// findProgram finds a program like a shell does. If err is not nil, code is the exit code that a
// shell would return.
func findProgram(name string) (path string, code int, err error) {
	path, err = exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot):
		return path, 0, nil
	case errors.Is(err, fs.ErrPermission):
		return "", ExitNotExec, shell.Hint(fmt.Errorf("%s can't be executed", name), "check its permissions")
	}
	if st, serr := os.Stat(name); serr == nil && st.IsDir() {
		return "", ExitNotExec, shell.Hint(fmt.Errorf("%s is a directory", name), "name a program in it")
	}
	return "", ExitNoProgram, shell.Hint(fmt.Errorf("there is no program %s", name), "check its name and PATH")
}

// startFailed returns the exit for a program that did not start.
func startFailed(name string, err error) error {
	code, hint := ExitRun, "see viaduct run --check"
	if se, ok := errors.AsType[*notify.StartError](err); ok {
		switch {
		case errors.Is(err, notify.ErrNested):
			err, hint = errors.New("inside another viaduct run"), "leave the inner one or --require out"
		case se.Step == "exec" && errors.Is(err, unix.ENOENT):
			code, hint = ExitNoProgram, "check its interpreter"
		case se.Step == "exec":
			code, hint = ExitNotExec, "check that it is a program of this machine"
		}
	}
	return &shell.Exit{Code: code, Err: shell.Hint(fmt.Errorf("start %s: %w", name, err), hint)}
}

// open prepares the supervisor before the program starts.
func (s *supervisor) open() error {
	if s.o.Service != nil {
		return s.openService()
	}
	var server netip.AddrPort
	if s.o.PortMap != "" {
		a, err := netip.ParseAddrPort(s.o.PortMap)
		if err != nil {
			ip, ierr := netip.ParseAddr(s.o.PortMap)
			if ierr != nil {
				return shell.Usagef("--portmap %q is neither ADDRESS nor ADDRESS:PORT", s.o.PortMap)
			}
			a = netip.AddrPortFrom(ip, portmap.Port)
		}
		server = a
	}
	var err error
	if s.carrier, err = newCarrier(s.e, s.o, server); err != nil {
		return err
	}
	if err := s.openExplain(); err != nil {
		return err
	}
	if s.lanes[0], err = newLane(unix.AF_INET); err != nil {
		return err
	}
	s.lanes[1], _ = newLane(unix.AF_INET6)
	if err := s.servePortMap(); err != nil {
		return err
	}
	s.inheritListeners()
	s.e.Status.Server() // "viaduct ps" then lists the program before its first connection
	return nil
}

// openExplain opens the output of --explain. Without the option, s.explain stays nil.
func (s *supervisor) openExplain() error {
	switch s.o.Explain {
	case "":
	case "-":
		s.explain = &explainer{w: os.Stderr, json: s.e.JSON}
	default:
		f, err := os.OpenFile(s.o.Explain, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		s.explain = &explainer{w: f, json: s.e.JSON}
	}
	return nil
}

// filter returns the rules for the program's calls.
func (s *supervisor) filter() []notify.Rule {
	if s.service != nil {
		return s.service.Rules()
	}
	const fastOpen = unix.MSG_FASTOPEN
	refuse := notify.Errno(uint16(unix.EOPNOTSUPP))
	with := func(arg int) []notify.Cond {
		return []notify.Cond{{Arg: arg, Mask: fastOpen, Low: fastOpen, High: fastOpen}}
	}
	rules := []notify.Rule{
		// Programs fall back to connect.
		{Nr: unix.SYS_SENDTO, If: with(3), Do: refuse},
		{Nr: unix.SYS_SENDMSG, If: with(2), Do: refuse},
		{Nr: unix.SYS_SENDMMSG, If: with(3), Do: refuse},
		// The supervisor does not see calls made through io_uring.
		{Nr: unix.SYS_IO_URING_SETUP, Do: notify.Errno(uint16(unix.ENOSYS))},
		{Nr: unix.SYS_CONNECT, Do: notify.Notify},
		{Nr: unix.SYS_GETSOCKNAME, Do: notify.Notify},
		{Nr: unix.SYS_GETPEERNAME, Do: notify.Notify},
	}
	if len(s.rules.listen) > 0 || len(s.rules.pairs) > 0 {
		rules = append(rules, notify.Rule{Nr: unix.SYS_LISTEN, Do: notify.Notify},
			notify.Rule{Nr: unix.SYS_ACCEPT, Do: notify.Notify},
			notify.Rule{Nr: unix.SYS_ACCEPT4, Do: notify.Notify})
	}
	if len(s.rules.pairs) > 0 {
		rules = append(rules, pairFilter()...)
	}
	return rules
}

// giveListener passes a copy of the listener to the front before the program runs.
func (s *supervisor) giveListener(pid int, l *notify.Listener) error {
	if err := s.checkAccess(pid); err != nil {
		return err
	}
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, err := s.front.WriteMsgUnix([]byte{sayListener}, unix.UnixRights(int(f.Fd())), nil); err != nil {
		return err
	}
	var b [2]byte
	if n, err := s.front.Read(b[:]); err != nil || n != 1 || b[0] != sayAck {
		return errors.Join(errors.New("the front does not answer"), err)
	}
	return nil
}

func (s *supervisor) sendFront(what byte, n int) {
	s.front.Write(binary.LittleEndian.AppendUint32([]byte{what}, uint32(n)))
}

// serve answers calls until no process of the program is left.
func (s *supervisor) serve(l *notify.Listener) error {
	defer l.Close()
	if s.service != nil {
		return ignoreEOF(attend(l.Recv, s.service.Serve))
	}
	runtime.LockOSThread()
	for {
		c, err := l.Recv()
		if err != nil {
			return ignoreEOF(err)
		}
		switch c.Nr {
		case unix.SYS_CONNECT:
			s.connect(c)
		case unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME:
			s.getname(c)
		case unix.SYS_ACCEPT, unix.SYS_ACCEPT4:
			s.accept(c)
		case unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT:
			s.option(c)
		case unix.SYS_LISTEN:
			go s.listen(c)
		default:
			c.Continue()
		}
	}
}

// reap waits for the program and then closes ended. It also waits for orphaned descendants.
func (s *supervisor) reap(program int, ended chan<- struct{}) {
	for {
		c, err := changedChild()
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // there is no child, but there may be one later
			time.Sleep(10 * time.Millisecond)
			continue
		case c.traced: // notify.Call.Perform traces the child and waits for it
			time.Sleep(time.Millisecond)
			continue
		case c.stopped || c.continued:
			if c.pid == program {
				s.stops.changed()
			} else {
				takeChange(c.pid, 0)
			}
			continue
		case c.pid == program:
			program = 0 // once waited for, the number may belong to another process
			s.sigs.programEnded()
			// The services end before the front does, so that a caller of viaduct run can bind to
			// the program's ports at once.
			if s.service == nil {
				s.checkListeners()
				s.explain.summary(&s.stats)
			} else {
				s.service.Sweep()
			}
			if s.e.Capture != nil { // a caller of viaduct run may read the capture now
				s.e.Capture.Flush() // an error is kept for Close
			}
			// A reader of standard error must see the end without a wait for the supervisor.
			toNull(2)
			s.sendFront(sayExit, c.code)
			close(ended)
		}
		if s.service != nil {
			s.service.Reap(c.pid)
		}
		unix.Wait4(c.pid, nil, 0, nil)
	}
}

// A change is a change of state of a child of this process.
type change struct {
	pid, code          int // the exit code as in shells, or the signal that has stopped the child
	stopped, continued bool
	traced             bool // the child is stopped because this process traces it
}

// waitChange waits for a change with waitid. With unix.WNOHANG, the pid of the result is 0 if there
// is no change.
func waitChange(idType, id, options int) (change, error) {
	var info struct { // siginfo_t
		_, _, code, _ int32
		pid           int32
		_, status     int32
		_             [100]byte
	}
	if err := unix.Waitid(idType, id, (*unix.Siginfo)(unsafe.Pointer(&info)), options, nil); err != nil {
		return change{}, err
	}
	c := change{pid: int(info.pid), code: int(info.status)}
	switch info.code {
	case 1: // CLD_EXITED
	case 4: // CLD_TRAPPED
		c.traced = true
	case 5: // CLD_STOPPED
		c.stopped = true
	case 6: // CLD_CONTINUED
		c.continued = true
	default: // a signal has ended the child, or there is no change
		c.code += 128
	}
	return c, nil
}

// changedChild waits until a child has ended, stopped or was continued. It does not consume the
// event, so that an ended child keeps the process number.
func changedChild() (change, error) {
	return waitChange(unix.P_ALL, 0, unix.WEXITED|unix.WSTOPPED|unix.WCONTINUED|unix.WNOWAIT)
}

// takeChange consumes a stop or continue event of a child. pid is 0 if there is none.
func takeChange(pid, options int) change {
	c, _ := waitChange(unix.P_PID, pid, unix.WSTOPPED|unix.WCONTINUED|unix.WNOHANG|options)
	return c
}

// readFront receives the front's messages. If the front is killed, readFront kills the program,
// because a user who kills viaduct run means the program.
func (s *supervisor) readFront(program int) {
	for {
		var b [8]byte
		n, err := s.front.Read(b[:])
		if err != nil || n == 0 {
			s.sigs.kill(program, syscall.SIGKILL)
			return
		}
		switch {
		case b[0] == saySignal && n == 2:
			go s.sigs.pass(program, syscall.Signal(b[1]))
		case b[0] == sayContinued:
			s.stops.frontContinued()
		case b[0] == sayRestarts:
			select {
			case s.restarted <- struct{}{}:
			default:
			}
		}
	}
}

// carried counts and explains a connection over SDP.
func (s *supervisor) carried(c *notify.Call, call string, d *dial) {
	s.count("sdp")
	s.explain.line(event{Call: call, thread: c.TID, Remote: d.to, Path: "sdp", via: d.conn})
}

// count counts a connection by path.
func (s *supervisor) count(path string) {
	switch path {
	case "sdp":
		s.stats.Carried.Add(1)
	case "pair":
		s.stats.Pairs.Add(1)
	default:
		s.stats.Plain.Add(1)
	}
}

// ignoreEOF returns nil for io.EOF, the sign of the end of all processes.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
