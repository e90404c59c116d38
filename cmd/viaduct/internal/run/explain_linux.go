//go:build linux && (amd64 || arm64)

package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"viaduct/sdp"
)

type counter = atomic.Int64

// stats counts the program's connections by path.
type stats struct {
	Carried  counter // carried over SDP
	Pairs    counter // carried by a socket pair with another program on this host
	Plain    counter // not carried, or relayed over TCP
	Refused  counter // connects that failed
	Accepted counter // connections of Carried and Pairs that the program's listeners accepted
	BytesIn  counter // bytes relayed to the program
	BytesOut counter // bytes relayed from the program
}

// An event is a line of --explain.
type event struct {
	// Call is connect, trying (before a slow connect), listen, accept, portmap, or reset (at the end
	// of a broken connection).
	Call    string         `json:"call"`
	Pid     int            `json:"pid,omitempty"`
	Program string         `json:"program,omitempty"`
	Local   netip.AddrPort `json:"local,omitzero"`
	Remote  netip.AddrPort `json:"remote,omitzero"`
	Path    string         `json:"path"` // sdp, pair, tcp, "tcp, relayed", refused; for portmap: udp, registered, off
	Why     string         `json:"why,omitempty"`

	thread int
	via    net.Conn // the transport's connection
}

// An explainer writes events. A nil explainer writes nothing.
type explainer struct {
	mu   sync.Mutex
	w    io.Writer
	json bool
}

func (x *explainer) line(e event) {
	if x == nil {
		return
	}
	if e.thread != 0 {
		e.Pid, e.Program = processOf(e.thread)
	}
	if c, ok := e.via.(*sdp.Conn); ok && e.Why == "" {
		p := c.Path()
		e.Why = fmt.Sprintf("%v -> %v", p.Local, p.Remote)
		if p.Mapped {
			e.Why += ", by the Port Mapper"
		}
		if p.SharedMemory {
			e.Why += ", through shared memory"
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.json {
		json.NewEncoder(x.w).Encode(e)
		return
	}
	at := ""
	for _, a := range []netip.AddrPort{e.Local, e.Remote} {
		if a.IsValid() { // the address of some calls could not be read
			at = " " + a.String()
		}
	}
	by := ""
	if e.Pid != 0 {
		by = fmt.Sprintf("%s[%d] ", e.Program, e.Pid)
	}
	fmt.Fprintf(x.w, "viaduct run: %s%s%s: %s", by, e.Call, at, e.Path)
	if e.Why != "" {
		fmt.Fprintf(x.w, " (%s)", e.Why)
	}
	fmt.Fprintln(x.w)
}

// summary writes the counters as the last line of --explain. It does nothing if x is nil.
func (x *explainer) summary(s *stats) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.json {
		json.NewEncoder(x.w).Encode(map[string]any{"summary": map[string]int64{
			"carried": s.Carried.Load(), "pairs": s.Pairs.Load(), "plain": s.Plain.Load(), "refused": s.Refused.Load(),
			"accepted": s.Accepted.Load(), "bytes_in": s.BytesIn.Load(), "bytes_out": s.BytesOut.Load()}})
		return
	}
	fmt.Fprintf(x.w, "viaduct run: connections: %d over sdp, %d by socket pairs, %d plain tcp, %d refused; %d bytes in, %d bytes out\n",
		s.Carried.Load(), s.Pairs.Load(), s.Plain.Load(), s.Refused.Load(), s.BytesIn.Load(), s.BytesOut.Load())
}

// ownProc reports whether /proc belongs to this process's pid namespace. It does not if a pid
// namespace was entered without mounting /proc: then our numbers name other processes there.
var ownProc = sync.OnceValue(func() bool {
	self, err := os.Readlink("/proc/self")
	return err == nil && self == strconv.Itoa(os.Getpid())
})

// processOf returns the process of a thread and the program's name, or tid and "?" if unknown.
func processOf(tid int) (pid int, name string) {
	if !ownProc() {
		return tid, "?"
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return tid, "?"
	}
	for line := range bytes.Lines(b) {
		k, v, _ := bytes.Cut(line, []byte(":"))
		switch string(k) {
		case "Name":
			name = string(bytes.TrimSpace(v))
		case "Tgid":
			pid, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
			return pid, name
		}
	}
	return tid, name
}
