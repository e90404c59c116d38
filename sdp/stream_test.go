package sdp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"viaduct/internal/testkit"
	"viaduct/internal/wire/ddp"
	"viaduct/internal/wire/sdpwire"
	"viaduct/samehost"
)

var streamMiB = flag.Int("sdp.mib", 24, "MiB that TestStreamMixed moves in each direction")

// TestStreamMixed sends long streams in both directions at once, with all mechanisms mixed: sizes
// from 1 byte to a MiB, changing policies and thresholds, full reads, transfers of lent memory, and
// deadlines in the middle of calls. Every byte must arrive once, in order. [SDP-4.1-1] [SDP-9-3]
// [SDP-9-4] [SDP-11-3] [SDP-11-2] [D-40]
func TestStreamMixed(t *testing.T) {
	var used [2]Counters // used by each end, over all rounds
	for round := uint64(0); ; round++ {
		for i, s := range streamMixed(t, round) {
			t.Logf("%+v", s)
			u := &used[i]
			u.SentBytesBcopy += s.SentBytesBcopy
			u.SentBytesRead += s.SentBytesRead
			u.SentBytesWrite += s.SentBytesWrite
			u.ModeChangesSent += s.ModeChangesSent
		}
		missing := ""
		for _, u := range used {
			if u.SentBytesBcopy == 0 || u.SentBytesRead == 0 || u.SentBytesWrite == 0 || u.ModeChangesSent == 0 {
				missing = fmt.Sprintf("%+v", u)
			}
		}
		if missing == "" || t.Failed() {
			return
		}
		// A receiver lends buffers for Writes only while waiting for a slower sender, so a round
		// may do without Writes.
		if round == 9 {
			t.Fatalf("a mechanism was not used: %s", missing)
		}
	}
}

// TestStreamFullSegments sends messages with a full last segment, mixed with messages of any
// length, to longer reads. The receiver predicts from earlier lengths where bytes read ahead
// belong, and is sometimes wrong. Every byte must arrive, with and without CRCs. [SDP-4.1-1]
func TestStreamFullSegments(t *testing.T) {
	for _, noCRC := range []bool{false, true} {
		opt := Options{NoCRC: noCRC, SameHost: samehost.Off}
		a, b := pair(t, opt, opt)
		full := a.qp.Stats().MULPDU - ddp.UntaggedLen
		rnd := rand.New(rand.NewPCG(5, 6))
		data := make([]byte, *streamMiB<<20)
		for i := 0; i < len(data); i += 8 {
			binary.LittleEndian.PutUint64(data[i:], rnd.Uint64())
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			buf := make([]byte, 256<<10) // reused for every Write, as by io.Copy
			for rest := data; len(rest) > 0; {
				n := 1 + rnd.IntN(len(buf))
				if rnd.IntN(2) == 0 {
					n = full*(1+rnd.IntN(len(buf)/full)) - sdpwire.BSDHLen
				}
				n = copy(buf[:n], rest)
				if _, err := a.Write(buf[:n]); err != nil {
					t.Errorf("no CRC %t: %v", noCRC, err)
					break
				}
				rest = rest[n:]
			}
			a.CloseWrite()
		})
		lens := rand.New(rand.NewPCG(7, 8))
		buf := make([]byte, 1<<20)
		at := 0
		for {
			n, err := b.Read(buf[:1+lens.IntN(len(buf))])
			if !bytes.Equal(buf[:n], data[at:at+n]) {
				t.Errorf("no CRC %t: other bytes in a read of %d at %d", noCRC, n, at)
				break
			}
			if at += n; err != nil {
				if err != io.EOF || at < len(data) {
					t.Errorf("no CRC %t: %v at %d", noCRC, err, at)
				}
				break
			}
		}
		if t.Failed() {
			a.Abort()
			b.Abort()
		}
		wg.Wait()
		a.Close()
		b.Close()
	}
}

func streamMixed(t *testing.T, seed uint64) (used [2]Counters) {
	opt := Options{NoCRC: true, SendThreshold: 8 << 10, RecvThreshold: 8 << 10, RecvBufferSize: 8 << 10,
		RecvBuffers: 16, SendBuffer: 64 << 10, ReceiveBuffer: 64 << 10}
	a, b := pair(t, opt, opt)
	total := int64(*streamMiB) << 20
	var wg sync.WaitGroup
	check := func(err error) {
		if err != nil {
			t.Error(err)
			a.Abort()
			b.Abort()
		}
	}
	sums := map[string]string{}
	var mu sync.Mutex
	note := func(name string, h hash.Hash) {
		mu.Lock()
		sums[name] = fmt.Sprintf("%x", h.Sum(nil))
		mu.Unlock()
	}
	for i, c := range []*Conn{a, b} {
		wg.Go(func() {
			h := sha256.New()
			check(sendMixed(c, h, total, 2*seed+uint64(i)))
			note(fmt.Sprint("sent", i), h)
			check(c.CloseWrite())
		})
		wg.Go(func() {
			h := sha256.New()
			n, err := recvMixed(c, h, 2*seed+uint64(i))
			if err == nil && n != total {
				err = fmt.Errorf("%d bytes of %d", n, total)
			}
			check(err)
			note(fmt.Sprint("got", 1-i), h)
		})
	}
	wg.Wait()
	if sums["sent0"] != sums["got0"] || sums["sent1"] != sums["got1"] {
		t.Errorf("streams differ: %v", sums)
	}
	for i, c := range []*Conn{a, b} {
		used[i] = c.Stats().Counters
	}
	shut(t, a, b)
	return used
}

func sendMixed(c *Conn, h hash.Hash, total int64, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	buf := make([]byte, 1<<20)
	for i := range buf {
		buf[i] = byte(r.Uint32())
	}
	var lent []*Transfer
	settle := func() error {
		for _, t := range lent {
			if _, err := t.Wait(context.Background()); err != nil {
				return err
			}
		}
		lent = lent[:0]
		return nil
	}
	for total > 0 {
		n := 1 + r.IntN(64)
		switch r.IntN(4) {
		case 0:
			n = 1 + r.IntN(16<<10)
		case 1, 2:
			n = 1 + r.IntN(len(buf))
		}
		n = int(min(int64(n), total))
		off := r.IntN(len(buf) - n + 1)
		p := buf[off : off+n]
		switch r.IntN(20) {
		case 0:
			c.SetPolicies(Policy(r.IntN(4)), Policy(r.IntN(4)))
		case 1, 2, 3, 4: // several writes at a time, for Pipelined Mode
			t, err := c.StartWrite(p)
			if err != nil {
				return err
			}
			lent = append(lent, t)
			h.Write(p)
			total -= int64(n)
			continue
		case 5: // a deadline in the middle of a write: the count must be exact [D-32]
			if err := settle(); err != nil {
				return err
			}
			c.SetWriteDeadline(time.Now().Add(time.Duration(r.IntN(300)) * time.Microsecond))
			k, err := c.Write(p)
			c.SetWriteDeadline(time.Time{})
			if err != nil && !os.IsTimeout(err) {
				return err
			}
			if err == nil && k != n {
				return fmt.Errorf("short write of %d without error", k)
			}
			h.Write(p[:k])
			total -= int64(k)
			continue
		}
		if len(lent) > 4 {
			if err := settle(); err != nil {
				return err
			}
		}
		k, err := c.Write(p)
		if err != nil {
			return err
		}
		h.Write(p[:k])
		total -= int64(k)
	}
	return settle()
}

func recvMixed(c *Conn, h hash.Hash, seed uint64) (total int64, err error) {
	r := rand.New(rand.NewPCG(seed, 2))
	buf := make([]byte, 1<<20)
	for {
		n := 1 + r.IntN(len(buf))
		if r.IntN(3) == 0 {
			n = 1 + r.IntN(9<<10)
		}
		k := 0
		switch r.IntN(12) {
		case 0:
			k, err = c.ReadFull(buf[:n])
			if err == io.ErrUnexpectedEOF {
				err = io.EOF
			}
		case 1:
			c.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(300)) * time.Microsecond))
			k, err = c.Read(buf[:n])
			c.SetReadDeadline(time.Time{})
			if os.IsTimeout(err) {
				err = nil
			}
		case 2:
			var t *Transfer
			if t, err = c.StartRead(buf[:n]); err == nil {
				k, err = t.Wait(context.Background())
			}
		default:
			k, err = c.Read(buf[:n])
		}
		h.Write(buf[:k])
		total += int64(k)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// TestHTTP runs net/http over SDP at both ends, without changes, on many connections that must not
// delay each other. [SDP-9.1-2] [SDP-8.1.1-3]
func TestHTTP(t *testing.T) {
	l, err := Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /big", func(w http.ResponseWriter, r *http.Request) { w.Write(big) })
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	d := &Dialer{}
	tr := &http.Transport{DialContext: d.DialContext}
	client := &http.Client{Transport: tr, Timeout: testkit.Patience}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 3 {
				resp, err := client.Get("http://" + l.Addr().String() + "/big")
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || !bytes.Equal(got, big) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				body := strings.Repeat(fmt.Sprint(i), 300_000)
				resp, err = client.Post("http://"+l.Addr().String()+"/echo", "text/plain", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				got, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || string(got) != body {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}
