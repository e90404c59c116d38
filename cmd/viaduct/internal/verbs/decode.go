package verbs

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/decode"
	"viaduct/cmd/viaduct/internal/shell"
)

func decodeCommand(e *shell.Env) *cobra.Command {
	var as []string
	var filter string
	var summary bool
	var opt decode.Options
	c := &cobra.Command{
		Use:   "decode FILE|-",
		Short: "print the protocol messages in a capture, and their errors",
		Long: `Print the messages of VI/TCP, MPA, DDP, RDMAP, SDP, the Port Mapper, FCIP, Fibre
Channel, FC-VI and RoCEv2 in a capture. FILE is in pcap or pcapng format, from --pcap,
tcpdump or Wireshark; - is standard input. Each message is a line: time,
connection, direction, layer, name, fields, and after WRONG the id of a broken
requirement. With --json, each message is an object on a line; docs/decode.md
has the schema. Protocols are recognised by content. --filter takes terms such
as proto=sdp, name~read, ddp.msn>=10 or wrong, all of which must hold.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := decode.ParseFilter(filter)
			if err != nil {
				return shell.Usage(fmt.Errorf("--filter: %w", err))
			}
			if opt.As, err = parseAs(as); err != nil {
				return shell.Usage(err)
			}
			in := e.Stdin
			if args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer file.Close()
				in = file
			}
			if summary {
				return decodeSummary(e, &stoppable{cmd.Context(), in}, opt, f)
			}
			return decodeLines(e, &stoppable{cmd.Context(), in}, opt, f)
		},
	}
	c.Flags().StringArrayVar(&as, "as", nil,
		"decode connections of a port as a protocol, `PORT=PROTO`; may be repeated. PROTO is one of "+strings.Join(decode.Protocols, ", "))
	c.Flags().StringVar(&filter, "filter", "", "only messages for which all `TERMS` hold")
	c.Flags().BoolVar(&summary, "summary", false, "count messages by connection instead")
	c.Flags().BoolVar(&opt.Segments, "segments", false, "every segment of a message, not only the last")
	c.Flags().IntVar(&opt.Stream, "stream", 0, "only connection number `N`")
	return c
}

// parseAs parses the values PORT=PROTO of --as. The result maps ports to protocols.
func parseAs(list []string) (map[uint16]string, error) {
	as := make(map[uint16]string)
	for _, s := range list {
		port, proto, _ := strings.Cut(s, "=")
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || !slices.Contains(decode.Protocols, proto) {
			return nil, fmt.Errorf("--as %q: want PORT=PROTO with PROTO one of %s", s,
				strings.Join(decode.Protocols, ", "))
		}
		as[uint16(n)] = proto
	}
	return as, nil
}

// A stoppable is a reader that ends at an interrupt, because a capture of a live network has no
// end.
type stoppable struct {
	ctx context.Context
	r   io.Reader
}

func (s *stoppable) Read(b []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, io.EOF
	}
	type result struct {
		n   int
		err error
	}
	if _, ok := s.r.(*os.File); !ok || s.r != os.Stdin {
		return s.r.Read(b)
	}
	// A read of a terminal or pipe cannot be interrupted. Data returned later is lost with the
	// process.
	ch := make(chan result, 1)
	own := make([]byte, len(b))
	go func() {
		n, err := s.r.Read(own)
		ch <- result{n, err}
	}()
	select {
	case x := <-ch:
		return copy(b, own[:x.n]), x.err
	case <-s.ctx.Done():
		return 0, io.EOF
	}
}

// flushLines bounds how long a line stays in the buffer.
const flushLines = 100 * time.Millisecond

func decodeLines(e *shell.Env, in io.Reader, opt decode.Options, f *decode.Filter) error {
	var mu sync.Mutex // guards the writer
	w := bufio.NewWriterSize(e.Stdout, 64<<10)
	var failed error // the first write error; guarded by mu
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(flushLines)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				mu.Lock()
				w.Flush()
				mu.Unlock()
			}
		}
	}()
	var line []byte
	err := decode.New(opt, func(m *decode.Message) {
		if !f.Wants(m) {
			return
		}
		if e.JSON {
			line = m.AppendJSON(line[:0])
		} else {
			line = m.AppendLine(line[:0])
		}
		line = append(line, '\n')
		mu.Lock()
		if _, err := w.Write(line); err != nil && failed == nil {
			failed = err
		}
		mu.Unlock()
	}).Read(&failing{in, &mu, &failed})
	close(stop)
	<-done
	if ferr := w.Flush(); err == nil {
		err = ferr
	}
	return notCapture(err)
}

// A failing is a reader that ends after the first write error of the output.
type failing struct {
	io.Reader
	mu  *sync.Mutex
	err *error
}

func (r *failing) Read(b []byte) (int, error) {
	r.mu.Lock()
	failed := *r.err != nil
	r.mu.Unlock()
	if failed {
		return 0, io.EOF
	}
	return r.Reader.Read(b)
}

func notCapture(err error) error {
	return shell.Hint(err, "give a file that tcpdump, Wireshark or --pcap has written")
}

func decodeSummary(e *shell.Env, in io.Reader, opt decode.Options, f *decode.Filter) error {
	s := decode.NewSummary()
	if err := decode.New(opt, func(m *decode.Message) {
		if f.Wants(m) {
			s.Add(m)
		}
	}).Read(in); err != nil {
		return notCapture(err)
	}
	totals := s.Totals()
	if e.JSON {
		return e.PrintJSON(struct {
			Connections []*decode.Total `json:"connections"`
			Dropped     int             `json:"dropped"`
		}{totals, s.Dropped})
	}
	for _, t := range totals {
		e.Printf("%s\n", t.Head())
		rows := [][]string{{"  ", "layer", "message", "count>", "bytes>"}}
		for _, c := range t.Messages {
			rows = append(rows, []string{"  " + c.Dir, c.Proto, c.Name, strconv.Itoa(c.Count),
				strconv.FormatUint(c.Bytes, 10)})
		}
		e.Printf("%s", shell.Table(rows))
		for _, m := range t.Modes {
			e.Printf("  %s %s half to %s Mode\n", m.Time.UTC().Format("15:04:05.000000"), halfOf(m), m.Mode)
		}
		for _, id := range slices.Sorted(maps.Keys(t.Wrong)) {
			e.Printf("  WRONG [%s] %d times\n", id, t.Wrong[id])
		}
	}
	if s.Dropped > 0 {
		e.Printf("%d messages of further connections are not counted\n", s.Dropped)
	}
	return nil
}

// halfOf returns the direction of the half-connection a ModeChange concerns: the sender's own, or
// the opposite direction if S is set.
func halfOf(m decode.ModeAt) string {
	if (m.Dir == ">") == (m.S == "false") {
		return ">"
	}
	return "<"
}
