package exchange

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"viaduct/cmd/viaduct/internal/decode"
	"viaduct/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// names returns the names of the messages of an exchange. It fails the test if a message breaks a
// rule.
func names(t *testing.T, x Exchange, r *Recording) string {
	f, err := decode.ParseFilter(x.Filter)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	if err := decode.New(decode.Options{}, func(m *decode.Message) {
		line := string(m.AppendLine(nil))
		if len(m.Wrong) > 0 || m.Proto == "capture" {
			t.Error(line)
		}
		if !f.Wants(m) {
			return
		}
		name := m.Name
		if r.Lost[m.Frame] {
			name += " lost"
		}
		if m.Back {
			name = "<" + name
		}
		list = append(list, name)
	}).Read(bytes.NewReader(r.Capture)); err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, ", ")
}

// TestExchanges: the engines' messages violate no rule, and only the intended frames are lost.
func TestExchanges(t *testing.T) {
	lost := map[string]string{"fcvi-connect": "CONNECT_RESP2 lost", "fcvi-loss": "SEND_RQST lost"}
	for _, x := range All() {
		t.Run(x.Name, func(t *testing.T) {
			t.Parallel()
			r, err := x.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := names(t, x, r)
			if n := strings.Count(got, " lost"); n != len(r.Lost) || (n == 1) != (lost[x.Name] != "") ||
				!strings.Contains(got, lost[x.Name]) {
				t.Errorf("%d packets lost, of %s", len(r.Lost), got)
			}
		})
	}
}

// TestBusy: if a busy machine misses the times of an exchange, Run repeats the exchange with longer
// times, and gives up in the end. Other failures are not repeated.
func TestBusy(t *testing.T) {
	for _, c := range []struct {
		enough int   // the leisure with which the exchange succeeds
		err    error // the error with less leisure
		want   []int
	}{
		{1, errBusy, []int{1}},
		{16, fmt.Errorf("as is: %w", errBusy), []int{1, 4, 16}},
		{1000, errBusy, []int{1, 4, 16, 64}},
		{16, errNotLost, []int{1}},
	} {
		var got []int
		x := Exchange{Name: "busy", run: func(l *line) error {
			got = append(got, l.leisure)
			if l.leisure < c.enough {
				return c.err
			}
			return nil
		}}
		r, err := x.Run(t.Context())
		last := c.want[len(c.want)-1]
		if !slices.Equal(got, c.want) || (r != nil) != (last >= c.enough) || (r == nil) != errors.Is(err, c.err) {
			t.Errorf("enough %d, %v: carried out with %v, want %v; %v", c.enough, c.err, got, c.want, err)
		}
	}
}

// TestLateRecord: a packet arrives a Delay after the time that the capture shows, even if the
// machine was slow while the packet was recorded. An answer is therefore never as early as the
// question.
func TestLateRecord(t *testing.T) {
	l, err := newLine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slow := sync.OnceFunc(func() { time.Sleep(2 * Delay) })
	l.cut = func(b []byte) int { slow(); return len(b) }
	near, far, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	near = l.join(near)
	defer near.Close()
	defer far.Close()
	one := []byte("x")
	for _, c := range []struct{ from, to net.Conn }{{near, far}, {far, near}} {
		if _, err := c.from.Write(one); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c.to, one); err != nil {
			t.Fatal(err)
		}
	}
	b, err := l.close()
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	var times []time.Time
	for {
		p, ci, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if p[len(p)-1] == 'x' {
			times = append(times, ci.Timestamp)
		}
	}
	if len(times) != 2 || times[1].Sub(times[0]) < Delay {
		t.Errorf("question and answer at %v", times)
	}
}
